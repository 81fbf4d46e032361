"""Isolate poison messages: messages that kill their worker process."""

from __future__ import annotations

import threading
import time
from typing import Any

FROM_DELIVERY = 3  # a message can be a suspect from this delivery on, or on its last delivery
ALONE_S = 60.0  # after this time a running suspect does not delay other deliveries
WAIT_MIN_S, WAIT_MAX_S = 0.05, 5.0  # wait before a delayed suspect is tried again


class PoisonSuspects:
    """Decides which possible poison messages may run at the same time in one process.

    A possible poison message, or "suspect", is a message whose last deliveries ended with an
    expired lease. Such a message may have killed its worker process. If all suspects ran at the
    same time, one poison message would cost each suspect a delivery. If only one suspect ran at a
    time, hundreds of harmless suspects would take minutes. A machine that fails twice can leave
    hundreds of suspects.

    So RMQ begins with one suspect. Each suspect that ends without killing the process allows more
    suspects at the same time. The more deliveries a suspect has had, the more of the other suspects
    must end first. A suspect without a remaining retry runs alone in the process. Otherwise it
    would become a dead letter if another message killed the process.

    Guarantee:
        A message that kills its process within ALONE_S seconds becomes a dead letter when its
        retries are used up. No other message becomes a dead letter because of this poison message.

        A poison message can cost a harmless message two deliveries before the harmless message
        becomes a suspect. The harmless message loses a third delivery only if 2 suspects have ended
        in the same process without killing the process. It loses a fourth delivery only after 4
        such suspects, and a fifth delivery only after 8. With n suspects, a message loses at most
        log2(n) more deliveries.

    Attributes:
        running: Suspects that run or will run soon. For each suspect, it has the number of the
            delivery and the start time.
    """

    def __init__(self) -> None:
        self.running: dict[Any, tuple[int, float]] = {}
        self._alone: Any = None  # running suspect without a retry left
        self._harmless = 0  # number of suspects that did not kill the process
        self._lock = threading.Lock()
        self._all_running: list[dict[Any, float]] = []  # start of each run, for each handler

    def watch(self, running: dict[Any, float]) -> None:
        """Let `may_begin_alone` wait for the runs of one handler.

        `running` is a dict with the start time of each run.
        """
        self._all_running.append(running)

    def begin(self, delivery: Any, attempt: int, *, is_last: bool = False) -> bool:
        """Return whether a possible poison message may run now.

        If the result is false, the message must wait for other possible poison messages. `is_last`
        says whether the message has no remaining retry. If such a message may run, no other
        delivery may begin. The caller then waits until `may_begin_alone` returns True, and calls
        `begin_alone`.
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
        """Record that a possible poison message begins to run alone."""
        with self._lock:
            self.running[delivery] = self.running[delivery][0], time.monotonic()

    def _is_alone(self, now: float) -> bool:
        return self._alone is not None and now - self.running[self._alone][1] < ALONE_S

    def must_wait(self, delivery: Any = None) -> bool:
        """Return whether a delivery must wait because a possible poison message runs alone.

        A possible poison message runs alone if it has no remaining retry.
        """
        if self._alone is None:
            return False
        with self._lock:
            return delivery is not self._alone and self._is_alone(time.monotonic())

    def may_begin_alone(self) -> bool:
        """Return whether a possible poison message may now begin to run alone.

        The message may begin when all other runs have ended. Runs that have lasted for ALONE_S
        seconds do not count, because they have not killed the process in this time. A message that
        has waited for ALONE_S seconds may begin in any case. Otherwise a long ordered batch, or a
        handler that ignores its cancellation, could delay the message forever.
        """
        now = time.monotonic()
        if self._alone is not None and not self.must_wait():
            return True
        return all(
            now - began >= ALONE_S
            for running in self._all_running
            for began in list(running.values())
        )

    def end(self, delivery: Any, is_harmless: bool = True) -> None:
        """Record that a possible poison message has ended.

        If `is_harmless` is true, the message has run without killing the process. More such
        messages may then run at the same time.
        """
        with self._lock:
            if self.running.pop(delivery, None) is not None:
                self._harmless += is_harmless
                if delivery is self._alone:
                    self._alone = None

    def wait_s(self) -> float:
        """Return how many seconds a possible poison message waits before its retry.

        The wait is as long as the run time of the possible poison message that started first.
        """
        now = time.monotonic()
        ages = [now - began for _, began in list(self.running.values())]
        return min(max(max(ages, default=0.0), WAIT_MIN_S), WAIT_MAX_S)
