"""Measure how long a handler runs, and limit how many deliveries wait for it."""

from __future__ import annotations

import time
from typing import Any

AHEAD_S = 0.2  # longer than a round trip to a distant Redis on a busy machine
STALLED_S = 1.0  # time without a begin or an end of a run, after which waiting deliveries go back
WEIGHT = 0.2  # weight of the newest run in the mean


class RunTimes:
    """The times of one handler's runs, and the limit of its deliveries in flight.

    A delivery that waits in a worker cannot go to another worker, which may be idle. So a worker
    prefetches only deliveries that its threads or tasks can begin within AHEAD_S. It prefetches
    nothing before the first run has ended, or while runs take longer than AHEAD_S.

    Args:
        concurrency: Largest number of runs at the same time.
        batch: Number of deliveries in one run.
        prefetch: Largest number of deliveries in flight.
        is_chosen: Whether the user chose `prefetch`; then the limit does not follow the run times.

    Attributes:
        running: Start of each run by the monotonic clock; a run is named by its first delivery.
        moved: Time of the last begin or end of a run.
        busy_s: Sum of all run times; if two threads end at the same time, one time may be missing.
    """

    def __init__(self, concurrency: int, batch: int, prefetch: int, is_chosen: bool) -> None:
        self.running: dict[Any, float] = {}
        self.moved = time.monotonic()
        self._concurrency = concurrency
        self._batch = batch
        self._prefetch = prefetch
        self._is_chosen = is_chosen
        self._mean = -1.0  # mean run time, seconds; negative: no run has ended
        self.busy_s = 0.0

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

    def in_flight_limit(self, hung: int = 0) -> int:
        """Return how many deliveries may be in flight now, running deliveries included.

        Args:
            hung: Number of runs beyond their limit. They use a thread or task, but their
                deliveries are settled.
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
        """Return how long all threads or tasks have been busy without a change, seconds."""
        if len(self.running) < self._concurrency:
            return 0.0
        return max(0.0, time.monotonic() - self.moved)

    def is_stalled(self) -> bool:
        """Return whether waiting deliveries should be released for other workers."""
        return not self._is_chosen and self.saturated_s() > STALLED_S
