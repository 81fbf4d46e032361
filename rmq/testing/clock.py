"""The clock of a test: every script is given its time, and only the test moves it.

`commands.set_clock` holds for the whole process, so there is one such clock in it. A broker inside
another one shares the clock of the outer one; the last to leave gives time back to the server.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from rmq.core.validation import Duration, Moment, check_epoch_ms, duration_ms
from rmq.errors import InvalidValue
from rmq.protocol import commands
from rmq.transport import Transport

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """A time that stands still until a test moves it. It never goes back."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self._users = 0

    def __repr__(self) -> str:
        return f"<Clock at {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The time, an aware datetime in UTC."""
        return _EPOCH + timedelta(microseconds=self.now_us)

    def advance(self, by: Duration) -> datetime:
        """Move on by seconds or a timedelta, up to ten years; the new time.

        Raises:
            InvalidValue, InvalidType: it is no duration, or less than a millisecond.
        """
        return self._go(self.now_us + 1000 * duration_ms(by, "advance"))

    def move_to(self, moment: Moment) -> datetime:
        """Move on to an aware datetime or epoch ms; the new time.

        Raises:
            InvalidValue, InvalidType: it is no moment, or has passed.
        """
        aim = 1000 * check_epoch_ms(moment, "move_to")
        if aim < self.now_us:
            raise InvalidValue(f"move_to: {moment} has passed, it is {self.now.isoformat()}")
        return self._go(aim)

    def _go(self, now_us: int) -> datetime:
        if _running is not self:
            raise InvalidValue("clock: its broker is closed; time is the server's again")
        self.now_us = now_us
        commands.set_clock(now_us)
        return self.now


_running: Clock | None = None


def start(now: Moment | None) -> Clock:
    """Stop time at `now` (None: the real time), or join the clock that has stopped it."""
    global _running
    if _running is None:
        now_us = (
            time.time_ns() // 1_000_000 * 1000 if now is None else 1000 * check_epoch_ms(now, "now")
        )
        _running = Clock(now_us)
        commands.set_clock(now_us)
    elif now is not None:
        raise InvalidValue("now: another broker has stopped the clock of this process already")
    _running._users += 1
    return _running


def server_time(transport: Transport) -> datetime:
    """What a server's own clock says."""
    seconds, us = transport.raw_command("time", "TIME")
    return _EPOCH + timedelta(seconds=int(seconds), microseconds=int(us))


def leave(clock: Clock) -> None:
    """Let go; the last one sets time free."""
    global _running
    clock._users -= 1
    if not clock._users and _running is clock:
        _running = None
        commands.set_clock(None)
