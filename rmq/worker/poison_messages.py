"""Poison messages: messages that may kill their worker process, and how they are kept apart.

A suspect is a message whose last deliveries ended with an expired lease. If suspects ran side by
side, all would die each time, though one alone is to blame; if only one ran at a time, hundreds of
harmless ones (a machine failed twice) would take minutes. So trust grows: at first one runs at a
time, and each suspect that ends without harm allows more beside each other. The more often a
message came back, the more harmless ones it takes.

Promise: a message that kills its process within ALONE_S of its begin is dead after its deliveries,
and interrupts only messages that have begun. A harmless one loses two deliveries to it before it is
a suspect, and a further one only after 2, then 4, then 8 ... suspects have ended well in one
process: at most log2(n) more for n suspects.
"""

from __future__ import annotations

import threading
import time
from typing import Any

FROM_DELIVERY = 3  # from this delivery on, a message may be a suspect
ALONE_S = 60.0  # a suspect that has run for so long does not hold back others
WAIT_LEAST_S, WAIT_MOST_S = 0.05, 5.0  # until a suspect that had to wait is tried again


class PoisonSuspects:
    """Decides which suspects may run at the same time in this process."""

    def __init__(self) -> None:
        self.running: dict[Any, tuple[int, float]] = {}  # suspect -> its attempt, and when it began
        self._harmless = 0  # how many have ended without harm
        self._lock = threading.Lock()

    def begin(self, delivery: Any, attempt: int) -> bool:
        """Begin a suspect if it may run beside those that do; return whether it may."""
        now = time.monotonic()
        with self._lock:
            running_attempts = [n for n, began in self.running.values() if now - began < ALONE_S]
            grade = max([attempt, *running_attempts]) - FROM_DELIVERY + 1
            if len(running_attempts) > self._harmless >> grade:
                return False
            self.running[delivery] = attempt, now
        return True

    def end(self, delivery: Any, is_harmless: bool = True) -> None:
        """Note that a suspect has ended without harm. `is_harmless`: False if it never began."""
        with self._lock:
            if self.running.pop(delivery, None) is not None:
                self._harmless += is_harmless

    def wait_s(self) -> float:
        """Return when to try a suspect again: after the age of the oldest running one."""
        now = time.monotonic()
        ages = [now - began for _, began in list(self.running.values())]
        return min(max(max(ages, default=0.0), WAIT_LEAST_S), WAIT_MOST_S)
