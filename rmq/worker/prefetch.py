"""Pace: how long handlers take, and so how many deliveries a worker holds for them.

What is held waits while others may have nothing to do. So a worker takes no more than its hands
(threads or tasks) can begin in AHEAD_S, as far as it knows: none ahead before a run has ended, or
while runs take longer than that. A `prefetch` that somebody has chosen stays as it is.
"""

from __future__ import annotations

import time
from typing import Any

AHEAD_S = 0.2  # a round trip to a Redis far away, and a busy machine, take less
STALLED_S = 1.0  # what waits is handed back when nothing has begun or ended for so long
WEIGHT = 0.2  # of the newest run in the mean
GATHER_RATE = 2500  # messages trickle where more than this come in a second, ...
FEW = 20  # ... each take finding less than this


class Pace:
    """The runs of one handler, by the monotonic clock.

    Args:
        hands: how many run at a time.
        batch: deliveries that a run takes.
        most: deliveries to hold at most.
        is_chosen: whether `most` was chosen for this handler; then it does not follow the runs.
    """

    def __init__(self, hands: int, batch: int, most: int, is_chosen: bool) -> None:
        self.running: dict[Any, float] = {}  # when each began
        self.moved = time.monotonic()  # when a run began or ended last
        self._hands = hands
        self._batch = batch
        self._most = most
        self._is_chosen = is_chosen
        self._mean = -1.0  # of the time that runs took; negative: none has ended

    def begin(self, run: Any) -> None:
        """A run begins."""
        self.moved = self.running[run] = time.monotonic()

    def end(self, run: Any) -> bool:
        """It has ended; False where it had never begun."""
        began = self.running.pop(run, None)
        if began is None:
            return False
        self.moved = now = time.monotonic()
        mean, took = self._mean, now - began
        self._mean = took if mean < 0 else mean + (took - mean) * WEIGHT
        return True

    def most(self, hung: int = 0) -> int:
        """How many deliveries to hold now, running ones among them.

        Args:
            hung: runs beyond their limit, which have a hand and no delivery any more.
        """
        hands = self._hands - hung
        if hands <= 0:
            return 0
        if self._is_chosen:
            return max(1, self._most - hung * self._batch)
        ahead = 0
        if self._mean >= 0:
            between = max(self._mean / hands, self.idle())
            ahead = int(min(AHEAD_S / between, self._most)) if between > 0 else self._most
        return min(self._most, self._batch * (hands + ahead))

    def idle(self) -> float:
        """For how long no hand has become free, seconds; 0 while one is."""
        if len(self.running) < self._hands:
            return 0.0
        return max(0.0, time.monotonic() - self.moved)

    def is_stalled(self) -> bool:
        """Whether what waits would better wait in Redis, where others can take it."""
        return not self._is_chosen and self.idle() > STALLED_S


class Trickle:
    """Tells whether many messages come a few at a time: then some time lets them gather.

    Each take and each ack is then for several, and what that saves of a machine's time its
    producers have. A message that comes alone is never kept waiting.
    """

    def __init__(self) -> None:
        self._took = 0.0  # when the last messages were taken

    def goes_on(self, count: int) -> bool:
        """So many messages were taken just now."""
        now = time.monotonic()
        gap, self._took = now - self._took, now if count else self._took
        return 0 < count < FEW and count > gap * GATHER_RATE
