"""Define the limits of a topic: deliveries per period, and messages in flight.

A limit applies to all consumers, workers and queries of the topic together. A limit without a key
applies to the whole topic. A limit with a key (the name of a header) applies to each value of this
header separately.

The slots of a topic may be on different servers, so each slot gets a fixed share of the limit
(`Limits.of_slot`). The files `lua/lib/take/room_in.lua` and `lua/lib/take/key_limits.lua` enforce
these shares.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.layout import Layout
from rmq.kernel.core.record import RESERVED
from rmq.kernel.core.validation import (
    Duration,
    check_int,
    duration_ms,
    format_duration,
    parse_duration,
)

TEXT_MAX, CONDITIONS_MAX, DEPTH_MAX, PATH_MAX = 2_000, 50, 20, 20

COUNT_MAX = 1_000_000
PER_MAX_MS = 86_400_000
OFF = "off"
KEY = "key="  # prefix of a header's name, in text
_HEADER = re.compile(r"[A-Za-z0-9._-]{1,64}")


def _check_key(key: str | None) -> None:
    if key is None:
        return
    if not isinstance(key, str):
        raise InvalidType(f"limit.key: {key!r:.80}; give the name of a header, as 'tenant'")
    if not _HEADER.fullmatch(key) or key.startswith(RESERVED):
        raise InvalidValue(
            f"limit.key: {key!r:.80}; give the name of a header that you send: 1 to 64 of "
            f"A-Z a-z 0-9 . _ -, not beginning with {RESERVED}"
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit the number of messages that are delivered per period.

    The limit is a token bucket. Each delivery takes one token, and a retry is also a delivery.
    During any time t, at most `burst + count * t / per` messages are delivered.

    Args:
        count: Number of messages per period, 1 to 1 000 000. With a `key`, at most one message per
            ms.
        per: Length of the period, seconds or timedelta, 1 ms to one day.
        burst: Number of messages that may be delivered at once after a pause, 1 to 1 000 000.
            Default: the same number as `count`. If the burst is 1, messages are delivered one by
            one, at equal intervals.
        key: Name of a header. Each value of this header has a limit of its own. Messages without
            the header are not limited.
    """

    count: int
    per: Duration = 1.0
    burst: int | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        check_int(self.count, "limit.count", 1, COUNT_MAX)
        per_ms = self.per_ms
        if self.burst is not None:
            check_int(self.burst, "limit.burst", 1, COUNT_MAX)
        _check_key(self.key)
        if self.key is not None and self.count > per_ms:
            raise InvalidValue(
                f"limit: {self.count} messages in {per_ms} ms; a rate with a key is at most "
                "1000 messages a second"
            )

    @property
    def per_ms(self) -> int:
        """Length of the period in ms."""
        return duration_ms(self.per, "limit.per", high_ms=PER_MAX_MS)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Limit the number of messages in flight.

    A message is in flight from its delivery until it is settled or its lease expires. This includes
    the time in which the message waits inside a worker. If a consumer dies, its messages no longer
    count after their leases expire.

    Args:
        count: Largest number of messages in flight, at most 1 000 000. It must not be less than the
            topic's number of slots.
        key: Name of a header. Each value of this header has a limit of its own. Messages without
            the header are not limited.
    """

    count: int
    key: str | None = None

    def __post_init__(self) -> None:
        check_int(self.count, "limit.count", 1, COUNT_MAX)
        _check_key(self.key)


Limit = Rate | Concurrency


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a topic.

    A topic may have one rate and one concurrency for all its messages. The topic may also have one
    rate and one concurrency for each value of a header.

    Attributes:
        rate: Limit of messages per period.
        concurrency: Limit of messages in flight.
        key_rate: Limit of messages per period, for each value of a header.
        key_concurrency: Limit of messages in flight, for each value of a header. If `key_rate` is
            also set, both have the same header.
    """

    rate: Rate | None = None
    concurrency: Concurrency | None = None
    key_rate: Rate | None = None
    key_concurrency: Concurrency | None = None

    @property
    def key(self) -> str | None:
        """Name of the header whose values have separate limits, or None."""
        by_key = self.key_rate or self.key_concurrency
        return by_key.key if by_key else None

    def to_redis(self) -> str:
        """Return the limits as the string that Redis stores, with durations in ms."""
        return ",".join(self._texts(exact=True)) or OFF

    def of_slot(self, index: int, slots: int, layout: Layout) -> str:
        """Return one slot's share of the topic's limits, as the string that scripts read.

        If there are no limits, return ''.

        For a rate, the slot gets the same count and a longer period. `Layout.share` divides bursts
        and messages in flight, so that each slot gets at least 1.
        """
        if self == Limits():
            return ""
        texts = []
        pairs = ((self.rate, self.concurrency), (self.key_rate, self.key_concurrency))
        for rate, concurrency in pairs:
            count = per = burst = most = 0
            if rate:
                count, per = rate.count, ceil(rate.per_ms / layout.part(index, slots))
                burst = layout.share(rate.burst or count, index, slots)
            if concurrency:
                most = layout.share(concurrency.count, index, slots)
            texts.append(f"{count}:{per}:{burst}:{most}")
        return texts[0] if self.key is None else ":".join((*texts, self.key))

    def check_slots(self, slots: int) -> None:
        """Raise an error if the topic has more slots than the allowed messages in flight.

        Each slot of the topic gets a share of the limit. A slot with a share of 0 would never
        deliver a message.

        Raises:
            InvalidValue: The concurrency is smaller than the number of slots that may have
                messages.
        """
        for limit in (self.concurrency, self.key_concurrency):
            if limit and limit.count < slots:
                raise InvalidValue(
                    f"limit: {_text(limit)} is less than the {slots} slots that may have messages "
                    f"of the topic, and each slot needs a share of 1; give {slots} or more, or "
                    "use a topic that never had more slots"
                )

    def __str__(self) -> str:
        """Return the limits as a text that `parse_limits` reads."""
        return ",".join(self._texts()) or OFF

    def _texts(self, exact: bool = False) -> list[str]:
        parts = (self.rate, self.concurrency, self.key_rate, self.key_concurrency)
        return [_text(part, exact) for part in parts if part]


def _text(limit: Limit, exact: bool = False) -> str:
    """Return a limit as text.

    If `exact` is True, the text is for Redis: the period is in ms, and the burst is always
    included.
    """
    fields = [str(limit.count)]
    if isinstance(limit, Rate):
        fields.append(str(limit.per_ms) if exact else format_duration(limit.per))
        if exact or limit.burst:
            fields.append(str(limit.burst or limit.count))
    if limit.key is not None:
        fields.append(KEY + limit.key)
    return ":".join(("rate" if isinstance(limit, Rate) else "concurrency", *fields))


def parse_limits(value: object) -> Limits:
    """Convert the setting `limits` to a `Limits` object.

    The value is a Rate, a Concurrency, a list of these, a text, `Limits`, or None.

    Examples of text are "rate:100:1s", "rate:100:1s:20" (with its burst) and "concurrency:5".
    Commas separate several limits. With ":key=tenant" at the end, each value of the header `tenant`
    is limited separately.

    Raises:
        InvalidValue, InvalidType: The value is not valid, or out of range.
    """
    if isinstance(value, Limits):
        return value
    if value is None or value in ("", OFF):
        return Limits()
    if isinstance(value, str):
        return _joined([_parse_limit(part.strip()) for part in value.split(",")])
    if isinstance(value, Rate | Concurrency):
        return _joined([value])
    if isinstance(value, Sequence) and all(isinstance(part, Rate | Concurrency) for part in value):
        return _joined(value)
    raise InvalidType(
        f"limit: {value!r:.80}; give rmq.Rate(100, per=1), rmq.Concurrency(5, key='tenant'), a "
        "list of them, or None"
    )


def _joined(parts: Sequence[Limit]) -> Limits:
    fields: dict[str, Limit] = {}
    for part in parts:
        name = "rate" if isinstance(part, Rate) else "concurrency"
        if part.key is not None:
            name = f"key_{name}"
        if name in fields:
            raise InvalidValue(
                "limit: give one rate and one concurrency at most, and one of each with a key"
            )
        fields[name] = part
    if len({part.key for part in parts if part.key is not None}) > 1:
        raise InvalidValue("limit: give all limits with a key the same key; a topic has only one")
    return Limits(**fields)  # type: ignore[arg-type]


def _split(text: str) -> tuple[str, list[str], str | None]:
    kind, *fields = text.split(":")
    key = fields.pop().removeprefix(KEY) if fields and fields[-1].startswith(KEY) else None
    return kind, fields, key


def _parse_limit(text: str) -> Limit:
    kind, rest, key = _split(text)
    numbers = rest[:1] + rest[2:]
    if all(number.isascii() and number.isdecimal() for number in numbers):
        if kind == "concurrency" and len(rest) == 1:
            return Concurrency(int(rest[0]), key)
        if kind == "rate" and 1 <= len(rest) <= 3:
            try:
                per = parse_duration(rest[1]) if len(rest) > 1 else 1.0
            except ValueError as error:
                raise InvalidValue(f"limit: {error}") from None
            return Rate(int(rest[0]), per, int(rest[2]) if len(rest) > 2 else None, key)
    raise InvalidValue(
        f"limit: {text!r} is not a limit; give rate:COUNT[:PER[:BURST]][:key=HEADER], "
        "concurrency:COUNT[:key=HEADER], or several with a comma between, as "
        "rate:100:1s,concurrency:5; or off"
    )


def from_redis(text: str) -> Limits:
    """Parse the text of limits that Redis stores.

    Raises:
        InvalidValue: RMQ cannot read the text, because a later version of RMQ wrote it.
    """
    parts: list[Limit] = []
    try:
        for part in text.split(",") if text != OFF else ():
            kind, fields, key = _split(part)
            if kind == "rate":
                count, per_ms, burst = map(int, fields)
                parts.append(Rate(count, per_ms / 1000, None if burst == count else burst, key))
            elif kind == "concurrency":
                (count,) = map(int, fields)
                parts.append(Concurrency(count, key))
            else:
                raise ValueError(kind)
    except ValueError:
        raise InvalidValue(f"limit: {text!r} in Redis is not a limit that this RMQ knows") from None
    return _joined(parts)


HEADERS_MAX, HEADERS_BYTES = 32, 4096
