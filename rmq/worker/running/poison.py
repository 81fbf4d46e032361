"""Isolate poison messages: messages that kill their worker process."""

from __future__ import annotations

import threading
import time
from typing import Any

FROM_DELIVERY = 3  # a message can be a suspect from this delivery on, or on its last delivery
ALONE_S = 60.0  # after this time a running suspect does not delay other deliveries
WAIT_LEAST_S, WAIT_MOST_S = 0.05, 5.0  # wait before a delayed suspect is tried again


class PoisonSuspects:
    """Decides which suspects may run at the same time in one process.

    A suspect is a message whose last deliveries ended with an expired lease. Such a message may
    have killed its worker process. If all suspects ran at the same time, a single poison message
    would cost each of them a delivery. If all suspects ran one by one, hundreds of harmless
    suspects would take minutes. There can be hundreds after a machine has failed twice. So one
    suspect runs at first. Each suspect that ends without killing the process allows more suspects
    at the same time. A suspect that was delivered more often must wait for more of the other
    suspects. If a suspect has no remaining retry, it runs alone in the process, because it would
    become a dead letter if another message killed the process.

    Guarantee:
        A message that kills its process within ALONE_S becomes a dead letter when its retries are
        used up. No other message becomes a dead letter because of this poison message.

        Because of a poison message, a harmless message can lose two deliveries before it becomes a
        suspect. It loses a third delivery only if 2 suspects have ended in the same process without
        killing the process. It loses a fourth delivery only after 4 suspects, and a fifth only
        after 8. So among n suspects, a message loses at most log2(n) further deliveries.

    Attributes:
        running: Suspects that run or are about to run, each with the number of its delivery and the
            time of its start.
    """

    def __init__(self) -> None:
        self.running: dict[Any, tuple[int, float]] = {}
        self._alone: Any = None  # running suspect without a retry left
        self._harmless = 0  # number of suspects that did not kill the process
        self._lock = threading.Lock()
        self._all_running: list[dict[Any, float]] = []  # start of each run, for each handler

    def watch(self, running: dict[Any, float]) -> None:
        """Let `is_quiet` wait for the runs of one handler.

        `running` has the start time of each run.
        """
        self._all_running.append(running)

    def begin(self, delivery: Any, attempt: int, *, is_last: bool = False) -> bool:
        """Admit a suspect (a message that may kill this process) if it may run now.

        Return False if the suspect must wait for other suspects. `is_last` says whether the suspect
        has no remaining retry. After the admission of such a suspect, no other delivery may begin.
        The caller then waits until `is_quiet` returns True, and calls `begin_alone`.
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
        """Record that a suspect (a message that may kill this process) begins to run alone."""
        with self._lock:
            self.running[delivery] = self.running[delivery][0], time.monotonic()

    def _is_alone(self, now: float) -> bool:
        return self._alone is not None and now - self.running[self._alone][1] < ALONE_S

    def must_wait(self, delivery: Any = None) -> bool:
        """Return whether a delivery must wait for a suspect that runs alone.

        A suspect is a message that may kill this process. It runs alone if it has no remaining
        retry.
        """
        if self._alone is None:
            return False
        with self._lock:
            return delivery is not self._alone and self._is_alone(time.monotonic())

    def is_quiet(self) -> bool:
        """Return whether a suspect (a message that may kill this process) may begin to run alone.

        A suspect without a remaining retry must run alone. It may begin when all other runs have
        ended, or have lasted for ALONE_S without killing the process. A suspect that has waited for
        ALONE_S begins in any case, because a long ordered batch, or a handler that ignores its
        cancellation, could delay it forever.
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
        """Record that a suspect, a message that could have killed this process, has ended.

        If `is_harmless` is true, the suspect has run without killing the process, so more suspects
        may run at the same time.
        """
        with self._lock:
            if self.running.pop(delivery, None) is not None:
                self._harmless += is_harmless
                if delivery is self._alone:
                    self._alone = None

    def wait_s(self) -> float:
        """Return how long a suspect (a message that may kill this process) waits before its retry.

        The wait equals the run time of the oldest suspect.
        """
        now = time.monotonic()
        ages = [now - began for _, began in list(self.running.values())]
        return min(max(max(ages, default=0.0), WAIT_LEAST_S), WAIT_MOST_S)
