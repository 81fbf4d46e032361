"""What options are made of: durations, moments, sizes, headers, ids, policies. No Redis here."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

import rmq

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)")
_SIZES = {"": 1, "k": 1024, "ki": 1024, "m": 1024**2, "mi": 1024**2}
_SIZE = re.compile(r"(\d+)\s*(k|ki|m|mi|)b?", re.IGNORECASE)


def seconds(text: str) -> float:
    """A duration as seconds. Raises ValueError that tells what is taken."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; give 1.5 (seconds), 500ms, 30s, 5m, 2h, 1d")
    return round(float(found[1]) * _UNITS[found[2]], 6)


def spell_seconds(value: float) -> str:
    """Seconds as a person writes them: the inverse of `seconds`."""
    if value < 1:
        return f"{value * 1000:g}ms" if value else "0s"
    for unit in ("d", "h", "m"):
        if value % _UNITS[unit] == 0:
            return f"{value / _UNITS[unit]:g}{unit}"
    return f"{value:.10g}s"


def moment(text: str) -> datetime:
    """A moment from ISO 8601 with a zone. Raises ValueError that tells what is taken."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is not a moment; give ISO 8601 with a zone, as 2030-01-31T09:00:00Z"
        ) from None
    if found.utcoffset() is None:
        raise ValueError(f"{text!r} has no time zone; add Z or an offset, as +02:00")
    return found


def retry(text: str) -> Any:
    """A retry policy. Raises ValueError that tells what is taken."""
    kind, *rest = text.strip().split(":")
    if kind in ("immediate", "exponential", "levels") and not rest:
        return kind
    if kind == "exponential" and len(rest) in (2, 3):
        jitter = float(rest[2]) if len(rest) == 3 else 1.0
        return rmq.Exponential(seconds(rest[0]), seconds(rest[1]), jitter)
    if kind == "levels" and len(rest) in (1, 2):
        jitter = float(rest[1]) if len(rest) == 2 else 0.0
        return rmq.Levels(tuple(seconds(part) for part in rest[0].split(",")), jitter)
    raise ValueError(
        f"{text!r} is not a retry policy; give immediate, exponential, levels, "
        "exponential:BASE:CAP[:JITTER] or levels:WAIT,WAIT,...[:JITTER], as exponential:1s:10m"
    )


def spell_retry(policy: object) -> str:
    """A policy as `retry` reads it."""
    if isinstance(policy, rmq.Exponential):
        base, cap = (_spell_duration(one) for one in (policy.base, policy.cap))
        return f"exponential:{base}:{cap}:{policy.jitter:g}"
    if isinstance(policy, rmq.Levels):
        waits = ",".join(_spell_duration(one) for one in policy.waits)
        return f"levels:{waits}" + (f":{policy.jitter:g}" if policy.jitter else "")
    return "immediate"


def durability(text: str) -> Any:
    """A durability. Raises ValueError that tells what is taken."""
    kind, *rest = text.strip().split(":")
    if kind == "memory" and not rest:
        return "memory"
    if kind in ("replicated", "fsync") and len(rest) <= 2:
        made = rmq.Replicated if kind == "replicated" else rmq.Fsync
        if not rest:
            return made()
        if rest[0].isdecimal():
            return made(int(rest[0]), *(seconds(one) for one in rest[1:]))
    raise ValueError(
        f"{text!r} is not a durability; give memory, replicated[:N[:TIMEOUT]] or "
        "fsync[:N[:TIMEOUT]], as replicated:1:500ms"
    )


def spell_durability(value: object) -> str:
    """A durability as `durability` reads it."""
    if isinstance(value, rmq.Replicated | rmq.Fsync):
        kind = "replicated" if isinstance(value, rmq.Replicated) else "fsync"
        return f"{kind}:{value.n}:{_spell_duration(value.timeout)}"
    return "memory"


def _spell_duration(value: Any) -> str:
    return spell_seconds(value if isinstance(value, int | float) else value.total_seconds())


if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # generic from click 8.2 on, and for type checkers only
    ParamType = click.ParamType


class _Parsed(ParamType):
    """A parameter read by a function that raises ValueError."""

    def __init__(self, name: str, read: Any, words: str = "") -> None:
        self.name = name
        self._read = read
        self._words = words  # a word that is taken too, meaning 0

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, or tell what is taken."""
        if not isinstance(value, str):
            return value
        if self._words and value == self._words:
            return 0
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; give bytes, or 256k, 2M")
    return int(found[1]) * _SIZES[found[2].lower()]


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not a header; give name=value")
    return name, value


DURATION = _Parsed("duration", seconds)
DURATION_OR_OFF = _Parsed("duration", seconds, "off")
MOMENT = _Parsed("moment", moment)
SIZE = _Parsed("size", _size)
HEADER = _Parsed("name=value", _header)
RETRY = _Parsed("policy", retry)
DURABILITY = _Parsed("level", durability)
MESSAGE_ID = _Parsed("id", rmq.MessageId.parse)
