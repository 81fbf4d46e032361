"""Limits of a topic: how many messages its consumers get in a time, and how many at a time.

A limit holds for all consumers, workers and queries of the topic together. Slots may be on
different servers, so each slot has a fixed share (`Limits.of_slot`), which `lua/lib/limits.lua`
keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq.core.validation import Duration, check_int, duration_ms, format_duration, parse_duration
from rmq.errors import InvalidType, InvalidValue

COUNT_MAX = 1_000_000
PER_MAX_MS = 86_400_000
OFF = "off"


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit: at most `count` messages in `per`, as a token bucket.

    A bucket of `burst` tokens is refilled at that rate, and each delivery takes one, a retry too.
    So in any time t at most burst + count * t / per messages are delivered.

    Args:
        count: how many messages, 1 to 1 000 000.
        per: in which time, seconds or timedelta, 1 ms to a day.
        burst: how many at once after a pause, 1 to 1 000 000; None: `count`. With 1, messages are
            delivered one by one, evenly.
    """

    count: int
    per: Duration = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        """Check the fields once."""
        check_int(self.count, "limit.count", 1, COUNT_MAX)
        duration_ms(self.per, "limit.per", high_ms=PER_MAX_MS)
        if self.burst is not None:
            check_int(self.burst, "limit.burst", 1, COUNT_MAX)

    @property
    def per_ms(self) -> int:
        """The time in ms."""
        return duration_ms(self.per, "limit.per", high_ms=PER_MAX_MS)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Limit: at most `count` messages are in flight.

    A message is in flight from the moment a consumer gets it, waiting in a worker or running, until
    it is settled or its lease expires: what a consumer that died had comes back so.

    Args:
        count: how many messages, at least the topic's slots and at most 1 000 000.
    """

    count: int

    def __post_init__(self) -> None:
        """Check the field once."""
        check_int(self.count, "limit.count", 1, COUNT_MAX)


Limit = Rate | Concurrency


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a topic: none, one, or one of each kind.

    Attributes:
        rate: how many messages in a time.
        concurrency: how many messages in flight.
    """

    rate: Rate | None = None
    concurrency: Concurrency | None = None

    def to_redis(self) -> str:
        """Return the limits as their text in Redis: durations in ms."""
        parts = []
        if self.rate:
            burst = self.rate.burst or self.rate.count
            parts.append(f"rate:{self.rate.count}:{self.rate.per_ms}:{burst}")
        if self.concurrency:
            parts.append(f"concurrency:{self.concurrency.count}")
        return ",".join(parts) or OFF

    def of_slot(self, index: int, slots: int) -> str:
        """Return a slot's share, as its scripts read it; '' without limits.

        The rate is divided exactly, by a longer time. Tokens at once, and messages in flight, are
        divided evenly; the first slots have one more where that leaves a remainder, and each slot
        has one at least.
        """
        if self == Limits():
            return ""
        rate = per = burst = most = 0
        if self.rate:
            rate, per = self.rate.count, self.rate.per_ms * slots
            burst = _share(self.rate.burst or rate, index, slots)
        if self.concurrency:
            most = _share(self.concurrency.count, index, slots)
        return f"{rate}:{per}:{burst}:{most}"

    def check_slots(self, slots: int) -> None:
        """Refuse a concurrency that leaves a slot without a share: it would never deliver.

        Raises:
            InvalidValue: there are more slots than messages may be in flight.
        """
        if self.concurrency and self.concurrency.count < slots:
            raise InvalidValue(
                f"limit: concurrency:{self.concurrency.count} is less than the {slots} slots of "
                f"the topic, each of which has a share of its own; give {slots} or more, or use a "
                "topic with fewer slots"
            )

    def __str__(self) -> str:
        """Return the limits as a person writes them: what `parse_limits` reads."""
        parts = []
        if self.rate:
            burst = f":{self.rate.burst}" if self.rate.burst else ""
            parts.append(f"rate:{self.rate.count}:{format_duration(self.rate.per)}{burst}")
        if self.concurrency:
            parts.append(f"concurrency:{self.concurrency.count}")
        return ",".join(parts) or OFF


def _share(count: int, index: int, slots: int) -> int:
    return max(1, count // slots + (index < count % slots))


def parse_limits(value: object) -> Limits:
    """Return limits from themselves, a Rate, a Concurrency, a list of them, or text; None is off.

    Text is as "rate:100:1s", "rate:100:1s:20" (with its burst), "concurrency:5", or both with a
    comma between.

    Raises:
        InvalidValue, InvalidType: it is none of these, or out of range.
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
        f"limit: {value!r:.80}; give rmq.Rate(100, per=1), rmq.Concurrency(5), a list of both, "
        "or None"
    )


def _joined(parts: Sequence[Limit]) -> Limits:
    rates = [part for part in parts if isinstance(part, Rate)]
    concurrencies = [part for part in parts if isinstance(part, Concurrency)]
    if len(rates) > 1 or len(concurrencies) > 1:
        raise InvalidValue("limit: give one rate and one concurrency at most")
    return Limits(rates[0] if rates else None, concurrencies[0] if concurrencies else None)


def _parse_limit(text: str) -> Limit:
    kind, *rest = text.split(":")
    numbers = rest[:1] + rest[2:]
    if all(number.isascii() and number.isdecimal() for number in numbers):
        if kind == "concurrency" and len(rest) == 1:
            return Concurrency(int(rest[0]))
        if kind == "rate" and 1 <= len(rest) <= 3:
            try:
                per = parse_duration(rest[1]) if len(rest) > 1 else 1.0
            except ValueError as error:
                raise InvalidValue(f"limit: {error}") from None
            return Rate(int(rest[0]), per, int(rest[2]) if len(rest) > 2 else None)
    raise InvalidValue(
        f"limit: {text!r} is not a limit; give rate:COUNT[:PER[:BURST]], concurrency:COUNT, or "
        "both with a comma between, as rate:100:1s,concurrency:5; or off"
    )


def from_redis(text: str) -> Limits:
    """Read limits from their text in Redis.

    Raises:
        InvalidValue: a later version of RMQ wrote it.
    """
    parts: list[Limit] = []
    try:
        for part in text.split(",") if text != OFF else ():
            kind, *numbers = part.split(":")
            if kind == "rate":
                count, per_ms, burst = map(int, numbers)
                parts.append(Rate(count, per_ms / 1000, None if burst == count else burst))
            elif kind == "concurrency":
                (count,) = map(int, numbers)
                parts.append(Concurrency(count))
            else:
                raise ValueError(kind)
    except ValueError:
        raise InvalidValue(f"limit: {text!r} in Redis is not a limit that this RMQ knows") from None
    return _joined(parts)
