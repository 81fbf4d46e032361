"""Rates just now: what the counters of topics grew by while somebody looked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

WINDOW_S = 30.0
LEAST_S = 1.5  # between two readings that a rate is made of
TOPICS_MAX = 2_000
COUNTERS = ("accepted", "settled")


class Meter:
    """Keeps readings of counters for half a minute.

    Args:
        clock: seconds; a test has its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._readings: dict[str, deque[tuple[float, Mapping[str, int]]]] = {}

    def note(self, topic: str, counts: Mapping[str, int]) -> None:
        """Take a reading of a topic."""
        now = self._clock()
        readings = self._readings.pop(topic, None) or deque()
        if readings and any(counts[name] < readings[-1][1][name] for name in COUNTERS):
            readings.clear()  # the topic was deleted and made anew
        readings.append((now, {name: counts[name] for name in COUNTERS}))
        while now - readings[0][0] > WINDOW_S:
            readings.popleft()
        self._readings[topic] = readings  # the last one noted is the last one to go
        while len(self._readings) > TOPICS_MAX:
            del self._readings[next(iter(self._readings))]

    def rate(self, topic: str, name: str) -> float | None:
        """Return how many events a second a topic has just now; None: not known yet."""
        readings = self._readings.get(topic)
        if not readings or self._clock() - readings[-1][0] > WINDOW_S:
            return None
        (begin, before), (end, after) = readings[0], readings[-1]
        return (after[name] - before[name]) / (end - begin) if end - begin >= LEAST_S else None
