"""Cache values from Redis, so that all viewers share them.

With this cache, ten open windows cost as much as one window. RMQ computes rates from the counters
of topics. It reads the counters only while a page shows them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from rmq.http_framework import problems
from rmq.http_framework.problems import ApiError

WINDOW_S = 30.0
INTERVAL_MIN_S = 1.5  # minimum seconds between the two readings of a rate
TOPICS_MAX = 2_000
COUNTERS = ("accepted", "settled")


class Meter:
    """Computes rates from counters. It keeps the values of the last half minute.

    Args:
        clock: Function that returns seconds. Tests replace it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._readings: dict[str, deque[tuple[float, Mapping[str, int]]]] = {}

    def note(self, topic: str, counts: Mapping[str, int]) -> None:
        """Record the current counters of a topic."""
        now = self._clock()
        readings = self._readings.pop(topic, None) or deque()
        if readings and any(counts[name] < readings[-1][1][name] for name in COUNTERS):
            readings.clear()  # the topic was deleted and created again
        readings.append((now, {name: counts[name] for name in COUNTERS}))
        while now - readings[0][0] > WINDOW_S:
            readings.popleft()
        self._readings[topic] = readings  # moves to the end: the first topic is forgotten first
        while len(self._readings) > TOPICS_MAX:
            del self._readings[next(iter(self._readings))]

    def rate(self, topic: str, name: str) -> float | None:
        """Return how often an event happens per second now, or None if this is not known yet."""
        readings = self._readings.get(topic)
        if not readings or self._clock() - readings[-1][0] > WINDOW_S:
            return None
        (begin, before), (end, after) = readings[0], readings[-1]
        return (
            (after[name] - before[name]) / (end - begin) if end - begin >= INTERVAL_MIN_S else None
        )


T = TypeVar("T")

KEPT_MAX = 10_000  # an overview needs two readings for each topic
TIDIED_MIN = 500  # with fewer readings, searching for old readings is not worth the time
# Maximum number of long readings that run at the same time, and of finished long readings that are
# kept.
LONG_MAX, LONG_KEPT = 4, 50
LONG_S = 300.0  # longest duration of a long reading
SHARE = 10  # a result is kept for ten times its duration, so at most a tenth of the time is reading


@dataclass(slots=True)
class _Kept:
    began: float
    task: asyncio.Task[Any]
    took_s: float = 0.0
    keep_s: float = 0.0

    def is_usable(self, now: float, keep_s: float) -> bool:
        """Return whether the read is running, or its result is recent enough."""
        if not self.task.done():
            return True
        failed = self.task.cancelled() or self.task.exception() is not None
        return not failed and now - self.began < max(keep_s, SHARE * self.took_s)


@dataclass(slots=True)
class LongReading:
    """A read from Redis that may take longer than an HTTP request.

    Attributes:
        done: Number of items that were read.
        all: Number of items to read, or 0 if the number is not known yet.
        ended: Time at which the read ended, or None while it is running.
        found: Result of the read.
        error: Reason why the read failed, or an empty string.
        kept: The task of this read, and how long its result is kept.
    """

    done: int = 0
    all: int = 0
    ended: datetime | None = None
    found: Any = None
    error: str = ""
    kept: _Kept = field(init=False, repr=False)

    async def wait(self, wait_s: float) -> None:
        """Wait until the read has ended. Wait at most `wait_s` seconds."""
        await asyncio.wait((self.kept.task,), timeout=wait_s)

    def progress(self, done: int, all: int) -> None:
        """Record how many items were read, and how many there are."""
        self.done, self.all = done, all


class Readings:
    """Keeps values from Redis for a short time.

    Attributes:
        meter: Rates of topics, from the counts that were read.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        self._kept: dict[str, _Kept] = {}
        self._tidied_at = TIDIED_MIN  # number of readings at which cleaning starts
        self._long: dict[str, LongReading] = {}

    def known(self, key: str) -> LongReading | None:
        """Return a read that is running or has ended, or None. Do not start a read."""
        return self._long.get(key)

    def start(
        self, key: str, read: Callable[[LongReading], Awaitable[Any]], keep_s: float
    ) -> LongReading:
        """Return a running or recent read, or start a new read. Do not wait for the result.

        Args:
            key: Name of the read.
            read: Function that reads and reports its progress.
            keep_s: Minimum number of seconds for which the result is kept.

        Raises:
            ApiError: Too many long reads are running.
        """
        known = self._long.get(key)
        if known is not None and known.kept.is_usable(time.monotonic(), keep_s):
            return known
        ended = [other for other, reading in self._long.items() if reading.ended]
        for other in ended[: max(0, len(self._long) - LONG_KEPT)]:
            del self._long[other]
        if len(self._long) - len(ended) >= LONG_MAX:
            raise ApiError("busy", "too many long lists are being counted; reload in a moment")
        reading = LongReading()

        async def run() -> None:
            try:
                async with asyncio.timeout(LONG_S):
                    reading.found = await read(reading)
            except Exception as error:
                problem = problems.of_exception(error, key, is_read=True)
                reading.error = str(problem)
            finally:
                reading.ended = datetime.now(UTC)

        reading.kept = self._begin(run)
        self._long[key] = reading
        return reading

    async def close(self) -> None:
        """Cancel running reads. Call this before you close the client of Redis."""
        every = [*self._kept.values(), *(reading.kept for reading in self._long.values())]
        running = [kept.task for kept in every if kept.task.cancel()]
        if running:
            await asyncio.wait(running)

    async def get(self, key: str, read: Callable[[], Awaitable[T]], keep_s: float = 1.0) -> T:
        """Return a recent result, or read now.

        If several callers use the same key at the same time, they share one read.

        Args:
            key: Name of the read.
            read: Function that reads.
            keep_s: Minimum number of seconds for which the result is kept.
        """
        kept = self._kept.get(key)
        if kept is None or not kept.is_usable(time.monotonic(), keep_s):
            self._kept.pop(key, None)
            self._tidy()
            kept = self._kept[key] = self._begin(read)
            kept.keep_s = keep_s
        found: T = await asyncio.shield(kept.task)
        return found

    def _tidy(self) -> None:
        """Delete old results if the number of results has doubled since the last call.

        If too many results remain, delete the oldest.
        """
        if len(self._kept) < self._tidied_at:
            return
        now = time.monotonic()
        self._kept = {
            key: kept for key, kept in self._kept.items() if kept.is_usable(now, kept.keep_s)
        }
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._tidied_at = min(KEPT_MAX, max(TIDIED_MIN, 2 * len(self._kept)))

    @staticmethod
    def _begin(read: Callable[[], Awaitable[Any]]) -> _Kept:
        """Start the read in its own task, because the first caller may be cancelled."""

        async def timed() -> Any:
            try:
                return await read()
            finally:
                kept.took_s = time.monotonic() - kept.began

        kept = _Kept(time.monotonic(), asyncio.ensure_future(timed()))
        # Retrieve the error, so that asyncio logs no warning if no caller waits for the reading.
        kept.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return kept
