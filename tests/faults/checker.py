"""Did we lose anything? An independent account of a run, after Jepsen's total-queue.

With the multisets A = attempted sends, E = sends that were answered, D = deliveries, S = settled:

    lost        = E - D                    invalid if any
    stuck       = E - S - dead             invalid if any, after a complete drain
    unexpected  = D - A                    invalid if any
    returned    = D after an answered ack  invalid if any
    duplicated  = D beyond the first one   each needs a cause that was noted: a crash, a nack
    recovered   = D - E                    reported: a send whose answer was unknown

It counts the numbers in the bodies and knows nothing of RMQ's ids. A run in which no fault fired
proves nothing: its verdict is `unknown`, which is a failure too.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass
class Verdict:
    """The outcome of a run."""

    state: str
    attempted: int
    answered: int
    delivered: int
    settled: int
    lost: list[int]
    stuck: list[int]
    unexpected: list[int]
    returned: list[int]
    duplicates: int
    unexplained: int
    recovered: int

    def __str__(self) -> str:
        return (
            f"{self.state}: {self.attempted} attempted, {self.answered} answered, "
            f"{self.delivered} delivered, {self.settled} settled, lost {len(self.lost)}, "
            f"stuck {len(self.stuck)}, unexpected {len(self.unexpected)}, "
            f"returned {len(self.returned)}, duplicates {self.duplicates} "
            f"(unexplained {self.unexplained}), recovered {self.recovered}"
        )


class History:
    """The sends and deliveries that producers and consumers saw; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.attempted: Counter[int] = Counter()
        self.answered: set[int] = set()
        self.delivered: Counter[int] = Counter()
        self.settled: set[int] = set()
        self.dead: set[int] = set()
        self.returned: list[int] = []
        self.causes: Counter[int] = Counter()

    def attempt(self, number: int) -> None:
        with self._lock:
            self.attempted[number] += 1

    def answer(self, number: int) -> None:
        with self._lock:
            self.answered.add(number)

    def deliver(self, number: int) -> None:
        with self._lock:
            self.delivered[number] += 1
            if number in self.settled:
                self.returned.append(number)

    def settle(self, number: int) -> None:
        with self._lock:
            self.settled.add(number)

    def bury(self, number: int) -> None:
        with self._lock:
            self.dead.add(number)

    def explain(self, number: int) -> None:
        """Something happened that may have this one delivered once more."""
        with self._lock:
            self.causes[number] += 1

    def verdict(self, *, fired: int) -> Verdict:
        lost = sorted(self.answered - set(self.delivered) - self.dead)
        stuck = sorted(self.answered - self.settled - self.dead)
        unexpected = sorted(set(self.delivered) - set(self.attempted))
        extra = {n: count - 1 for n, count in self.delivered.items() if count > 1}
        unexplained = sum(max(0, count - self.causes[n]) for n, count in extra.items())
        bad = lost or stuck or unexpected or self.returned or unexplained
        state = "invalid" if bad else "valid"
        if not fired or not self.answered or not self.delivered:
            state = "invalid" if bad else "unknown"
        return Verdict(
            state, sum(self.attempted.values()), len(self.answered), self.delivered.total(),
            len(self.settled), lost, stuck, unexpected, self.returned, sum(extra.values()),
            unexplained, len(set(self.delivered) - self.answered),
        )  # fmt: skip
