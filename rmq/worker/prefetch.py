"""Prefetch: how many deliveries a worker holds for a handler, computed from its run times.

A held delivery waits although another worker may be idle. So a worker holds no more than its
threads or tasks can begin within AHEAD_S: none in advance before the first run has ended, or while
runs take longer than that. A `prefetch` that the user chose is used as it is.
"""

from __future__ import annotations

import time
from typing import Any

from rmq.client.handler import Handler

IN_ORDER = 50  # messages in one ordered run; no other worker has the slot meanwhile
AHEAD_S = 0.2  # longer than a round trip to a distant Redis on a busy machine
STALLED_S = 1.0  # waiting deliveries are released when no run began or ended for so long
WEIGHT = 0.2  # of the newest run in the mean
GATHER_RATE = 2500  # messages trickle in if more than this arrive in a second ...
FEW = 20  # ... and each receive finds fewer than this


def most_held(handler: Handler) -> int:
    """Return how many deliveries a worker may hold for a handler at most."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


def most_begun(handler: Handler) -> int:
    """Return how many deliveries may have begun and not be settled yet: all that are held.

    Runs that have ended wait for the settler, which may be slower than they are. One more is in the
    hands of the fetcher, while a claim is prepared.
    """
    return max(handler.concurrency * max(1, handler.batch), most_held(handler)) + 1


class RunTimes:
    """The running and past runs of one handler, by the monotonic clock.

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


class TrickleDetector:
    """Detects many messages that arrive a few at a time, so that a short pause lets them gather.

    Each receive and each ack is then for several messages, which saves CPU time. A message that
    arrives alone never waits.
    """

    def __init__(self) -> None:
        self._received_at = 0.0  # when the last messages were received

    def is_trickling(self, count: int) -> bool:
        """Return whether `count` messages, received just now, are part of a trickle."""
        now = time.monotonic()
        gap = now - self._received_at
        if count:
            self._received_at = now
        return 0 < count < FEW and count > gap * GATHER_RATE
