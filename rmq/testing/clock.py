"""Provide the clock of a test. All scripts use this clock, and only the test moves it.

`commands.set_clock` applies to the whole process, so a process has a single clock. Nested brokers
share the clock. When the last broker closes, scripts use the server's clock again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from rmq.errors import InvalidValue
from rmq.kernel.core.validation import Duration, Moment, check_epoch_ms, duration_ms
from rmq.kernel.topic import clock
from rmq.kernel.transport.single.blocking import Transport

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """A clock that moves only when a test calls its methods, and only forward."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.services: list[Callable[[], object]] = []  # called before and after the clock moves

    def __repr__(self) -> str:
        return f"<Clock at {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The time of this clock, an aware datetime in UTC."""
        return _EPOCH + timedelta(microseconds=self.now_us)

    def advance(self, by: Duration) -> datetime:
        """Move the clock forward by seconds or a timedelta, up to ten years. Return the new time.

        Raises:
            InvalidValue, InvalidType: The value is not a duration, or is less than a millisecond.
        """
        return self._go(self.now_us + 1000 * duration_ms(by, "advance"))

    def move_to(self, moment: Moment) -> datetime:
        """Move the clock forward to an aware datetime or epoch ms. Return the new time.

        Raises:
            InvalidValue, InvalidType: The value is not a time, or is before the clock's time.
        """
        aim = 1000 * check_epoch_ms(moment, "move_to")
        if aim < self.now_us:
            raise InvalidValue(f"move_to: {moment} has passed, it is {self.now.isoformat()}")
        return self._go(aim)

    def _go(self, now_us: int) -> datetime:
        if _active is not self:
            raise InvalidValue("clock: its broker is closed; time is the server's again")
        for serve in self.services:
            serve()
        self.now_us = now_us
        clock.set_clock(now_us)
        for serve in self.services:
            serve()
        return self.now


_active: Clock | None = None
_users = 0  # number of open brokers with a manual clock


def start(now: Moment | None) -> Clock:
    """Return a clock that stands still at the time in `now`, by default at the real time.

    If this process already has such a clock, return that clock.
    """
    global _active, _users
    if _active is None:
        now_us = (
            time.time_ns() // 1_000_000 * 1000 if now is None else 1000 * check_epoch_ms(now, "now")
        )
        _active = Clock(now_us)
        clock.set_clock(now_us)
    elif now is not None:
        raise InvalidValue("now: another broker has stopped the clock of this process already")
    _users += 1
    return _active


def server_time(transport: Transport) -> datetime:
    """Return the time by the server's own clock."""
    seconds, us = transport.raw_command("time", "TIME")
    return _EPOCH + timedelta(seconds=int(seconds), microseconds=int(us))


def release() -> None:
    """Release the clock. After the last release, scripts use the server's clock again."""
    global _active, _users
    _users -= 1
    if not _users:
        _active = None
        clock.set_clock(None)
