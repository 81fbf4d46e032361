"""Poison messages: those that kill their worker process, kept apart from harmless ones."""

from __future__ import annotations

import threading
import time
from typing import Any

from rmq.worker.running.run_times import RunTimes

FROM_DELIVERY = 3  # from this delivery on, a message may be a suspect, or on its last one
ALONE_S = 60.0  # a suspect that has run for so long does not hold back others
WAIT_LEAST_S, WAIT_MOST_S = 0.05, 5.0  # until a suspect that had to wait is tried again


class PoisonSuspects:
    """Decides which suspects may run at the same time; one for all handlers of a process.

    A suspect is a message whose last deliveries ended with an expired lease: it may kill its worker
    process. If suspects ran side by side, all would die each time, though one alone is to blame; if
    only one ran at a time, hundreds of harmless ones (a machine failed twice) would take minutes.
    So trust grows: at first one runs at a time, and each suspect that ends without harm allows more
    beside each other. The more often a message came back, the more harmless ones it takes.

    A suspect without a retry left would be a dead letter if it died with another. So it runs beside
    nothing else in the process, whatever has ended well: no suspect and no fresh message.

    Guarantee:
        A message that kills its process within ALONE_S of its begin is dead after its deliveries,
        and interrupts only messages that have begun; no other message is dead by it. A harmless one
        loses two deliveries to it before it is a suspect, and a further one only after 2, then 4,
        then 8 ... suspects have ended well in one process: at most log2(n) more for n suspects.
    """

    def __init__(self) -> None:
        self.running: dict[Any, tuple[int, float]] = {}  # suspect -> its attempt, and when it began
        self._alone: Any = None  # the suspect without a retry left that runs, or is about to
        self._harmless = 0  # how many have ended without harm
        self._lock = threading.Lock()
        self._run_times: list[RunTimes] = []  # of all handlers

    def watch(self, times: RunTimes) -> None:
        """Know the runs of a handler of this process."""
        self._run_times.append(times)

    def begin(self, delivery: Any, attempt: int, *, is_last: bool = False) -> bool:
        """Begin a suspect if it may run beside the others; return whether it may.

        `is_last`: it has no retry left. From now on nothing else may begin; it begins itself when
        `is_quiet`, and then calls `begin_alone`.
        """
        now = time.monotonic()
        with self._lock:
            running_attempts = [n for n, began in self.running.values() if now - began < ALONE_S]
            if self._is_alone(now) or (is_last and running_attempts):
                return False
            grade = max([attempt, *running_attempts]) - FROM_DELIVERY + 1
            if len(running_attempts) > self._harmless >> max(0, grade):
                return False
            self.running[delivery] = attempt, now
            if is_last:
                self._alone = delivery
        return True

    def begin_alone(self, delivery: Any) -> None:
        """Note that the suspect without a retry left begins now."""
        with self._lock:
            self.running[delivery] = self.running[delivery][0], time.monotonic()

    def _is_alone(self, now: float) -> bool:
        return self._alone is not None and now - self.running[self._alone][1] < ALONE_S

    def is_held_back(self, delivery: Any = None) -> bool:
        """Return whether nothing may begin, but the suspect without a retry left that has begun."""
        if self._alone is None:
            return False
        with self._lock:
            return delivery is not self._alone and self._is_alone(time.monotonic())

    def is_quiet(self) -> bool:
        """Return whether nothing runs that may kill: what has run for a minute does not.

        A suspect that has waited for a minute begins in any case. Else runs in order that follow
        each other, or handlers that swallow their cancellation, would keep it waiting for ever.
        """
        now = time.monotonic()
        if self._alone is not None and not self.is_held_back():
            return True
        return all(
            now - began >= ALONE_S
            for times in self._run_times
            for began in list(times.running.values())
        )

    def end(self, delivery: Any, is_harmless: bool = True) -> None:
        """Note that a suspect has ended without harm.

        `is_harmless`: False for one that never began, which allows no further one beside others.
        """
        with self._lock:
            if self.running.pop(delivery, None) is not None:
                self._harmless += is_harmless
                if delivery is self._alone:
                    self._alone = None

    def wait_s(self) -> float:
        """Return when to try a suspect again: after the age of the oldest running one."""
        now = time.monotonic()
        ages = [now - began for _, began in list(self.running.values())]
        return min(max(max(ages, default=0.0), WAIT_LEAST_S), WAIT_MOST_S)
