"""Read and write the setting `history` of a topic: how many acked messages RMQ keeps.

`lua/lib/history/history.lua` describes how a slot of the topic keeps these messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.layout import Layout
from rmq.kernel.core.validation import (
    Duration,
    check_int,
    duration_ms,
    format_duration,
    parse_duration,
)

OFF = "off"
KEEP_MIN_MS, BYTES_MIN, BYTES_MAX = 60_000, 1 << 20, 1 << 50
_SIZE = re.compile(r"(\d{1,16})(B|KiB|MiB|GiB|TiB)?")
_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class History:
    """Says how many acked messages of a topic RMQ keeps.

    RMQ removes the oldest messages first. Both limits apply.

    Args:
        keep: Time for which RMQ keeps an acked message, at least a minute. Seconds, a timedelta, or
            text such as "7d".
        max_bytes: Memory for the messages, 1 MiB or more. A number of bytes, or text such as
            "2GiB". The slots of the topic share this memory equally.
    """

    keep: Duration | str
    max_bytes: int | str

    def __post_init__(self) -> None:
        """Check both limits, and convert text to numbers."""
        keep = self.keep
        if isinstance(keep, str):
            try:
                keep = parse_duration(keep)
            except ValueError as error:
                raise InvalidValue(f"history.keep: {error}") from None
        size = _size(self.max_bytes) if isinstance(self.max_bytes, str) else self.max_bytes
        keep_ms = duration_ms(keep, "history.keep", KEEP_MIN_MS)
        check_int(size, "history.max_bytes", BYTES_MIN, BYTES_MAX)
        object.__setattr__(self, "keep", keep_ms / 1000)
        object.__setattr__(self, "max_bytes", size)

    @property
    def keep_ms(self) -> int:
        """How long RMQ keeps an acked message, ms."""
        return duration_ms(self.keep, "history.keep")

    def __str__(self) -> str:
        size = int(self.max_bytes)
        unit = next(unit for unit, one in reversed(_UNITS.items()) if not size % one)
        text = f"{size // _UNITS[unit]}{unit}" if unit else str(size)
        return f"keep={format_duration(self.keep_ms / 1000)},max_bytes={text}"

    to_redis = __str__

    def of_slot(self, index: int, slots: int, parts: Layout) -> str:
        """Return the limits of one slot of the topic, as the string that scripts read."""
        size = max(1, int(int(self.max_bytes) * parts.part(index, slots)))
        return f"{size}:{self.keep_ms}"


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(
            f"history.max_bytes: {text!r:.60}; give bytes, or a number with KiB, MiB, GiB or TiB"
        )
    return int(match[1]) * _UNITS[match[2]]


def parse_history(value: object) -> History | None:
    """Read the setting `history` from `History` or from text. Return None for `off`.

    Raises:
        InvalidValue: The text is not valid, or a limit is out of range.
        InvalidType: The value is neither `History` nor text.
    """
    if value is None or value == OFF:
        return None
    if isinstance(value, History):
        return value
    if not isinstance(value, str):
        raise InvalidType(f"history: {value!r:.80}; give rmq.History(...), its text, or None")
    parts = dict(part.partition("=")[::2] for part in value.replace(" ", "").split(","))
    if set(parts) != {"keep", "max_bytes"}:
        raise InvalidValue(
            f"history: {value!r:.80}; give off, or both limits, as keep=7d,max_bytes=2GiB"
        )
    return History(**parts)
