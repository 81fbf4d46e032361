"""Suspects: messages whose last deliveries ended with their consumer's silence.

One of them may kill its process. Running beside each other they would die together each time,
though one alone is to blame; running one at a time, hundreds of harmless ones (a machine went down
twice) would take minutes. So trust grows: at first one runs at a time, and each that has ended
without harm lets others run beside it; the more often a message came back, the more of them it
takes.

Promise: a message that kills its process within ALONE_S of its beginning is dead after its
deliveries, and takes with it only what has begun. A harmless one loses two deliveries to it
unsuspected, and another one only after 2, then 4, then 8 ... suspects have ended well in one
process: at most log2(n) more for n suspects.
"""

from __future__ import annotations

import threading
import time
from typing import Any

FROM_DELIVERY = 3  # from this delivery on, a message may be a suspect
ALONE_S = 60.0  # one that has run for so long keeps no other from its turn
WAIT_LEAST_S, WAIT_MOST_S = 0.05, 5.0  # until one is tried again that did not get its turn


class PoisonSuspects:
    """Which suspects may run at the same time in this process."""

    def __init__(self) -> None:
        self.running: dict[Any, tuple[int, float]] = {}  # attempt, and when it began
        self._harmless = 0  # that have ended
        self._lock = threading.Lock()

    def begin(self, one: Any, attempt: int) -> bool:
        """Begin one, where it may run beside those that do; whether it may."""
        now = time.monotonic()
        with self._lock:
            beside = [n for n, began in self.running.values() if now - began < ALONE_S]
            grade = max([attempt, *beside]) - FROM_DELIVERY + 1
            if len(beside) > self._harmless >> grade:
                return False
            self.running[one] = attempt, now
        return True

    def end(self, one: Any, counts: bool = True) -> None:
        """One has ended, and this process lives. `counts`: False where it never began."""
        with self._lock:
            if self.running.pop(one, None) is not None:
                self._harmless += counts

    def wait_s(self) -> float:
        """When to try one again: as long again as the first of those that run has been at it."""
        now = time.monotonic()
        ages = [now - began for _, began in list(self.running.values())]
        return min(max(max(ages, default=0.0), WAIT_LEAST_S), WAIT_MOST_S)
