"""Times of schedules: when RMQ sends a message, and what it does after missed times.

All times are epoch ms. RMQ computes the jitter of a time from the schedule's name and the time, so
that all schedulers use the same due time.

The package cronsim evaluates cron expressions (`rmq[schedule]`; docs/decisions/0029). This module
does not use Redis.
"""

from __future__ import annotations

import hashlib
import zoneinfo
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal, NamedTuple, cast, get_args

import msgpack

from rmq.errors import ConfigurationError, InvalidType, InvalidValue
from rmq.kernel.core import packages
from rmq.kernel.core.validation import MOMENT_MAX_MS, UNREADABLE, check_int

CatchUp = Literal["skip", "last", "all"]

VERSION = 1  # version of stored definitions
EVERY_MIN_MS = 100
JITTER_MAX_MS = 86_400_000
CATCH_UP_MAX = 10_000
ON_TIME_MS = 10_000  # a time that is overdue by more than this counts as missed
STEPS_MAX = 1000  # maximum number of times in one plan; the next plan continues
QUARTER_S = 900  # the offsets of all time zones are multiples of this time
FIELDS = 5  # fields of a cron expression, which has no seconds; for seconds, use an interval

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class Step(NamedTuple):
    """A step of a schedule. It sends the message of one time, or skips times.

    After the step, the schedule waits for `next_ms`.

    Attributes:
        time_ms: Time for which the step sends a message, or None if the step skips missed times.
        next_ms: Next time of the schedule, or None if there is none.
    """

    time_ms: int | None
    next_ms: int | None


class _Interval:
    """Times that are multiples of an interval since 1970-01-01 00:00 UTC."""

    def __init__(self, every_ms: int) -> None:
        self.every_ms = every_ms

    def after(self, time_ms: int) -> Iterator[int]:
        yield (time_ms // self.every_ms + 1) * self.every_ms

    def between(self, first: int, last: int, since: int, most: int) -> Sequence[int]:
        return range(first, last + 1, self.every_ms)


class _Cron:
    """The times of a cron expression in a time zone, with the rules of Debian's cron."""

    def __init__(self, expression: str, tz: str) -> None:
        self._expression = expression
        self._zone = time_zone(tz)
        self._cronsim = packages.load("cronsim", "schedule", "cron schedules")

    def after(self, time_ms: int) -> Iterator[int]:
        # cronsim has two quirks at clock changes. It maps two nonexistent times to the same time.
        # If it starts in a repeated hour, it returns a time in the first of the two hours.
        for found_ms in self._walk(time_ms):
            if found_ms > time_ms:
                time_ms = found_ms
                yield found_ms

    def between(self, first: int, last: int, since: int, most: int) -> Sequence[int]:
        """Return the times from `first` to `last`.

        The result may omit times before `since`, but not the latest `most` of these times.
        """
        start = max(first, since)
        if start > first:
            # The reverse walk only finds the start; the times come from the forward walk.
            for found_ms in islice(self._walk(start, reverse=True), most):
                start = max(first, min(start, found_ms))
                if start == first:
                    break
        times = [first] if first == start <= last else []
        for time_ms in self.after(start if start == first else start - 1):
            if time_ms > last:
                break
            times.append(time_ms)
        return times

    def _walk(self, time_ms: int, reverse: bool = False) -> Iterator[int]:
        moment = (_EPOCH + time_ms * _MS).astimezone(self._zone)
        try:
            moments = self._cronsim.CronSim(self._expression, moment, reverse)
        except self._cronsim.CronSimError as error:
            raise InvalidValue(
                f"cron: {self._expression!r}: {error}; use minute, hour, day of month, month and "
                'day of week, for example "0 6 * * mon-fri"'
            ) from error
        moments.advance_hour = partial(_advance_hour, moments)
        for found in moments:
            yield (found - _EPOCH) // _MS


@dataclass(frozen=True)
class Definition:
    """The message and the times of a schedule. `codec` is the number of the body's codec."""

    name: str
    every_ms: int | None
    cron: str | None
    tz: str
    jitter_ms: int
    catch_up: CatchUp
    catch_up_limit: int
    codec: int
    body: bytes
    priority: int | None
    headers: dict[str, str]
    expires_ms: int | None
    type: str | None = None
    keep_s: int | None = None  # seconds for which results are kept

    def pack(self) -> bytes:
        """Encode the definition. Equal definitions have equal bytes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["headers"] = dict(sorted(self.headers.items()))
        if self.keep_s is None:
            del values["keep_s"]  # unknown to older versions of RMQ
        packed: bytes = msgpack.packb({"version": VERSION, **values})
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> Definition:
        """Decode a stored definition.

        Raises:
            ConfigurationError: Another version of RMQ wrote the definition.
        """
        try:
            values: dict[str, Any] = msgpack.unpackb(packed)
            if values.pop("version") != VERSION:
                raise ValueError
            read = cls(**values)
            check_int(1 if read.every_ms is None else read.every_ms, "every_ms", 1, MOMENT_MAX_MS)
            for number in (read.jitter_ms, read.catch_up_limit, read.expires_ms, read.keep_s):
                check_int(number or 0, "number", 0, MOMENT_MAX_MS)
            if read.every_ms is None and not isinstance(read.cron, str):
                raise ValueError(read.cron)
            return read
        except (*UNREADABLE, msgpack.UnpackException) as error:
            raise ConfigurationError(
                "schedule: its definition is of another version of RMQ; use that version, or "
                "declare it again"
            ) from error

    @property
    def timing(self) -> str:
        """The part of the definition that determines the times of the schedule, as text."""
        return f"{self.every_ms or ''}|{self.cron or ''}|{self.tz}|{self.jitter_ms}"

    @cached_property
    def _times(self) -> _Interval | _Cron:
        if self.every_ms is not None:
            return _Interval(self.every_ms)
        assert self.cron is not None
        return _Cron(self.cron, self.tz)

    def after(self, time_ms: int) -> int | None:
        """Return the next time of the schedule after `time_ms`.

        Return None if there is none in the next 50 years.
        """
        return next(iter(self._times.after(time_ms)), None)

    def due_ms(self, time_ms: int) -> int:
        """Return the due time: `time_ms` plus its jitter."""
        if not self.jitter_ms:
            return time_ms
        text = f"{self.name}:{time_ms}".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"rmq-jitter").digest())
        return time_ms + number % (self.jitter_ms + 1)

    def plan(self, next_ms: int, now_ms: int) -> list[Step]:
        """Return the steps of a schedule whose next time is due.

        If a time has been due for at most ON_TIME_MS, its message is always sent. Earlier times
        count as missed, and the catch-up policy decides which of their messages are sent. If
        `next_ms` is in the future, the clock of Redis was ahead when `next_ms` was computed. Then
        the next time is computed again.
        """
        if next_ms > now_ms:
            return [Step(None, self.after(now_ms))]
        most = self.catch_up_limit if self.catch_up == "all" else int(self.catch_up == "last")
        times, later = self._due_times(next_ms, now_ms, most)
        missed = len(times)
        while missed and self.due_ms(times[missed - 1]) >= now_ms - ON_TIME_MS:
            missed -= 1
        made_up = min(missed, most)
        if self.catch_up == "last" and missed < len(times):
            made_up = 0
        chosen = times[missed - made_up :]
        if not chosen:
            return [Step(None, later)]
        follow = [*chosen[1 : STEPS_MAX + 1], later]
        return [Step(time, after) for time, after in zip(chosen[:STEPS_MAX], follow, strict=False)]

    def _due_times(self, first: int, now_ms: int, most: int) -> tuple[Sequence[int], int | None]:
        """Return the times at which the schedule is due, and the first time that is not due yet.

        The computation of years of missed times would take long. So the result may omit old missed
        times. It always has the newest missed times, as many as the argument `most` says.
        """
        # Times before `since` are missed even with the largest jitter.
        since = now_ms - self.jitter_ms - ON_TIME_MS
        times = self._times.between(first, now_ms, since, most)
        # Jitter may delay a time past the next time; messages are sent in the order of the times.
        at = len(times)
        while at and times[at - 1] > now_ms - self.jitter_ms:
            at -= 1
        while at < len(times) and self.due_ms(times[at]) <= now_ms:
            at += 1
        return times[:at], times[at] if at < len(times) else self.after(max(first, now_ms))


def _advance_hour(moments: Any) -> bool:
    """Advance to an hour that matches the expression, in steps of a quarter of an hour.

    This method replaces `CronSim.advance_hour`, which advances by a whole hour. If the clock
    changes by less than an hour, or in the middle of an hour, `CronSim.advance_hour` skips times.
    """
    if moments.dt.hour in moments.hours:
        return False
    while moments.dt.hour not in moments.hours:
        moments.tick(QUARTER_S - (moments.dt.minute * 60 + moments.dt.second) % QUARTER_S)
        if moments.dt.hour == 0:  # a new day: check its date
            break
    return True


def time_zone(name: str) -> zoneinfo.ZoneInfo:
    """Return the time zone with this name.

    Raises:
        InvalidValue: The name is unknown.
        ConfigurationError: This system has no time zone database.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        if not zoneinfo.available_timezones():
            raise ConfigurationError(
                "tz: this system has no time zone database; to install it: "
                f"{packages.install('schedule')}"
            ) from error
        raise InvalidValue(
            f"tz: {name!r} is not a time zone; use a name such as Europe/Berlin or UTC"
        ) from error


def check_cron(cron: object) -> str:
    """Check that a cron expression has 5 fields, and put single spaces between the fields.

    Another function checks the values of the fields later.
    """
    if not isinstance(cron, str):
        raise InvalidType(f"cron: {type(cron).__name__}; give a str")
    words = cron.split()
    if len(words) != FIELDS:
        raise InvalidValue(
            f"cron: {cron!r} has {len(words)} fields; use minute, hour, day of month, month and "
            'day of week, for example "0 6 * * mon-fri"; for seconds use every='
        )
    return " ".join(words)


def check_catch_up(catch_up: object) -> CatchUp:
    """Check a catch-up policy and return it."""
    if catch_up not in get_args(CatchUp):
        raise InvalidValue(f"catch_up: {catch_up!r}; use 'skip', 'last' or 'all'")
    return cast("CatchUp", catch_up)
