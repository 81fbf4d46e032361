"""The time that commands carry: none, so that scripts ask the server's clock, or a test's time."""

from __future__ import annotations

import time

now_us = b""  # ARGV of scripts: epoch microseconds of a test, or nothing for the server's clock


def set_clock(test_us: int | None) -> None:
    """Give every later command this time instead of the server's clock; for tests only."""
    global now_us
    now_us = b"" if test_us is None else b"%d" % test_us


def now_ms() -> int:
    """Return the time in epoch ms as this process knows it: a test's, or the local clock's.

    It is good enough to tell years apart. Whether a message is due is decided by the server's
    clock.
    """
    return int(now_us) // 1000 if now_us else time.time_ns() // 1_000_000
