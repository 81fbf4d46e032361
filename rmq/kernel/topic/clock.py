"""Define the time that commands use: the server's clock, unless a test sets the time."""

from __future__ import annotations

import time

now_us = b""  # argument of scripts: a test's time in epoch microseconds; empty: the server's clock


def set_clock(test_us: int | None) -> None:
    """Set the time of all later commands. None restores the server's clock. For tests only."""
    global now_us
    now_us = b"" if test_us is None else b"%d" % test_us


def now_ms() -> int:
    """Return the time that a test has set, or the time of this machine's clock, in epoch ms.

    Use this function only if an error of some seconds is harmless. Scripts use the server's clock
    to decide whether a message is due.
    """
    return int(now_us) // 1000 if now_us else time.time_ns() // 1_000_000
