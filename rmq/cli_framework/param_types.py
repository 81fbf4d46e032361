"""Types of options: durations, times, sizes, headers, ids, retry policies."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem

import rmq
from rmq.cli_framework.names import ParamType, choices, message_ids
from rmq.kernel.core.delivery_limits import parse_limits
from rmq.kernel.core.message import parse_queue
from rmq.kernel.core.retry import parse_policy
from rmq.kernel.core.slo import check as check_slo
from rmq.kernel.core.validation import check_message_type, parse_duration

_SIZES = {"": 1, "k": 1024, "ki": 1024, "m": 1024**2, "mi": 1024**2, "g": 1024**3, "gi": 1024**3}
_SIZE = re.compile(r"(\d+)\s*(k|ki|m|mi|g|gi|)b?", re.IGNORECASE)


def moment(text: str) -> datetime:
    """Parse a time in ISO 8601 with a time zone. The ValueError says which texts are allowed."""
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; give ISO 8601 with a zone, as 2030-01-31T09:00:00Z"
        ) from None
    if parsed.utcoffset() is None:
        raise ValueError(f"{text!r} has no time zone; add Z or an offset, as +02:00")
    return parsed


def _moment_or_ago(text: str) -> datetime:
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except ValueError:
        pass
    try:
        return moment(text)
    except ValueError as error:
        raise ValueError(f"{error}, or give a duration before now, as 2h") from None


class _Parsed(ParamType):
    def __init__(self, name: str, read: Any, zero: str = "", words: tuple[str, ...] = ()) -> None:
        self.name = name
        self._read = read
        self._zero = zero  # another accepted word, for 0
        self._words = words or ((zero,) if zero else ())  # that completion offers

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self._zero and value == self._zero:
            return 0
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; give bytes, or 256k, 2M, 1G")
    return int(match[1]) * _SIZES[match[2].lower()]


def _durability(text: str) -> object:
    from rmq.kernel.core.settings import (
        parse_durability,  # imports many modules, which completion does not need
    )

    return parse_durability(text) or "memory"


def _timed_priority(text: str) -> object:
    from rmq.kernel.core.settings import parse_timed_priority

    return parse_timed_priority(text) or "first"


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not a header; give name=value")
    return name, value


class _MessageIds(_Parsed):
    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return choices(ctx, incomplete, message_ids)


def _groups(text: str) -> str:
    from rmq.kernel.core.groups import OFF, parse_groups

    return str(parse_groups(text) or OFF)


def _history(text: str) -> str:
    from rmq.kernel.core.history_limits import OFF, parse_history

    return str(parse_history(text) or OFF)


DURATION = _Parsed("duration", parse_duration)
DURATION_OR_OFF = _Parsed("duration", parse_duration, "off")
MOMENT = _Parsed("moment", moment)
MOMENT_OR_AGO = _Parsed("moment", _moment_or_ago)
SIZE = _Parsed("size", _size)
HEADER = _Parsed("name=value", _header)
RETRY = _Parsed("policy", parse_policy)
LIMIT = _Parsed("limit", parse_limits)
SLO = _Parsed("slo", check_slo, words=("off",))
GROUPS = _Parsed("groups", _groups, words=("off", "order"))
HISTORY = _Parsed("history", _history, words=("off",))
DURABILITY = _Parsed("level", _durability)
TIMED_PRIORITY = _Parsed("priority", _timed_priority, words=("first",))
MESSAGE_ID = _MessageIds("id", rmq.MessageId.parse)
MESSAGE_TYPE = _Parsed("type", check_message_type)
QUEUE = _Parsed("queue", parse_queue, words=("store", "waiting", "prepare", "in-flight", "dead"))
