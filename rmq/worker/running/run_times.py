"""How long the runs of a handler take, and how many deliveries to hold by that."""

from __future__ import annotations

import time
from typing import Any

AHEAD_S = 0.2  # longer than a round trip to a distant Redis on a busy machine
STALLED_S = 1.0  # waiting deliveries are released when no run began or ended for so long
WEIGHT = 0.2  # of the newest run in the mean


class RunTimes:
    """The running and past runs of one handler, by the monotonic clock; how many to hold by them.

    A held delivery waits although another worker may be idle. So a worker holds no more than its
    threads or tasks can begin within AHEAD_S: none in advance before the first run has ended, or
    while runs take longer than that. A `prefetch` that the user chose is used as it is.

    Args:
        concurrency: how many run at a time.
        batch: deliveries of one run.
        prefetch: deliveries to hold at most.
        is_chosen: whether the user chose `prefetch`; then the limit does not follow the run times.
    """

    def __init__(self, concurrency: int, batch: int, prefetch: int, is_chosen: bool) -> None:
        self.running: dict[Any, float] = {}  # run -> when it began
        self.moved = time.monotonic()  # when the last run began or ended
        self._concurrency = concurrency
        self._batch = batch
        self._prefetch = prefetch
        self._is_chosen = is_chosen
        self._mean = -1.0  # run time, seconds; negative: no run has ended
        self.busy_s = 0.0  # all run times; two threads that end at once may lose one

    def begin(self, run: Any) -> None:
        """Note that a run begins."""
        self.moved = self.running[run] = time.monotonic()

    def end(self, run: Any) -> bool:
        """Note that a run has ended; return False if it had never begun."""
        began = self.running.pop(run, None)
        if began is None:
            return False
        self.moved = now = time.monotonic()
        mean, took = self._mean, now - began
        self.busy_s += took
        self._mean = took if mean < 0 else mean + (took - mean) * WEIGHT
        return True

    def held_limit(self, hung: int = 0) -> int:
        """Return how many deliveries to hold now, including running ones.

        Args:
            hung: runs beyond their limit; each occupies a thread or task, and has no delivery.
        """
        concurrency = self._concurrency - hung
        if concurrency <= 0:
            return 0
        if self._is_chosen:
            return max(1, self._prefetch - hung * self._batch)
        ahead = 0
        if self._mean >= 0:
            between = max(self._mean / concurrency, self.saturated_s())
            ahead = int(min(AHEAD_S / between, self._prefetch)) if between > 0 else self._prefetch
        return min(self._prefetch, self._batch * (concurrency + ahead))

    def saturated_s(self) -> float:
        """Return for how many seconds no thread or task has become free; 0 while one is free."""
        if len(self.running) < self._concurrency:
            return 0.0
        return max(0.0, time.monotonic() - self.moved)

    def is_stalled(self) -> bool:
        """Return whether waiting deliveries should be released, so that other workers get them."""
        return not self._is_chosen and self.saturated_s() > STALLED_S
