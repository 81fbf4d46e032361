"""Readings that all viewers share: ten open windows cost Redis what one costs.

Rates are what the counters of topics grew by while somebody looked.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from rmq.web import problems
from rmq.web.problems import ApiError

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


T = TypeVar("T")

KEPT_MAX = 10_000  # an overview makes two readings for each topic
TIDIED_LEAST = 500  # fewer are not worth looking for old ones
LONG_MAX, LONG_KEPT = 4, 50  # long readings that go on at a time, and that are kept
LONG_S = 300.0  # a long reading takes no longer
SHARE = 10  # a reading is kept for ten times as long as it took: a tenth of the time at most


@dataclass(slots=True)
class _Kept:
    began: float
    task: asyncio.Task[Any]
    took_s: float = 0.0
    keep_s: float = 0.0

    def holds(self, now: float, keep_s: float) -> bool:
        """Whether what was read may be shown: it goes on, or ended well and not long ago."""
        if not self.task.done():
            return True
        failed = self.task.cancelled() or self.task.exception() is not None
        return not failed and now - self.began < max(keep_s, SHARE * self.took_s)


@dataclass(slots=True)
class LongReading:
    """A reading that may take longer than a page: how far it is, and what it found.

    Attributes:
        done: how much was looked at.
        all: how much there is; 0: not known yet.
        ended: when it ended; None: it goes on.
        found: what it found.
        error: why it failed; empty: it did not.
        kept: its task, and how long that took.
    """

    done: int = 0
    all: int = 0
    ended: datetime | None = None
    found: Any = None
    error: str = ""
    kept: _Kept = field(init=False, repr=False)

    async def wait(self, wait_s: float) -> None:
        """Wait for its end, for so long at most."""
        await asyncio.wait((self.kept.task,), timeout=wait_s)

    def progress(self, done: int, all: int) -> None:
        """Note how far it is."""
        self.done, self.all = done, all


class Readings:
    """Keeps what was read, for a while.

    Attributes:
        meter: rates of topics, of the counts that were read.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        self._kept: dict[str, _Kept] = {}
        self._tidied_at = TIDIED_LEAST  # how many are kept when the old ones are forgotten
        self._long: dict[str, LongReading] = {}

    def known(self, key: str) -> LongReading | None:
        """Return a reading that goes on or has ended; None: it was not begun, or is not kept."""
        return self._long.get(key)

    def start(
        self, key: str, read: Callable[[LongReading], Awaitable[Any]], keep_s: float
    ) -> LongReading:
        """Return a reading that goes on or has ended a while ago, or begin it; at once.

        Args:
            key: names what is read.
            read: reads it, and notes how far it is.
            keep_s: for how long it is kept, at least.

        Raises:
            ApiError: too many go on.
        """
        known = self._long.get(key)
        if known is not None and known.kept.holds(time.monotonic(), keep_s):
            return known
        ended = [other for other, reading in self._long.items() if reading.ended]
        for other in ended[: max(0, len(self._long) - LONG_KEPT)]:
            del self._long[other]
        if len(self._long) - len(ended) >= LONG_MAX:
            raise ApiError("busy", "many long lists are being counted; reload in a moment")
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
        """End what goes on, before the client of Redis is closed."""
        every = [*self._kept.values(), *(reading.kept for reading in self._long.values())]
        running = [kept.task for kept in every if kept.task.cancel()]
        if running:
            await asyncio.wait(running)

    async def get(self, key: str, read: Callable[[], Awaitable[T]], keep_s: float = 1.0) -> T:
        """Return what was read under a key a while ago, or read it now.

        Args:
            key: names what is read.
            read: reads it; called by one of those who ask at the same time.
            keep_s: for how long it is kept, at least.
        """
        kept = self._kept.get(key)
        if kept is None or not kept.holds(time.monotonic(), keep_s):
            self._kept.pop(key, None)
            self._tidy()
            kept = self._kept[key] = self._begin(read)
            kept.keep_s = keep_s
        found: T = await asyncio.shield(kept.task)
        return found

    def _tidy(self) -> None:
        """Forget old readings when their number has doubled, and the oldest of too many."""
        if len(self._kept) < self._tidied_at:
            return
        now = time.monotonic()
        self._kept = {key: kept for key, kept in self._kept.items() if kept.holds(now, kept.keep_s)}
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._tidied_at = min(KEPT_MAX, max(TIDIED_LEAST, 2 * len(self._kept)))

    @staticmethod
    def _begin(read: Callable[[], Awaitable[Any]]) -> _Kept:
        """Read in a task of its own: whoever asked first may go away."""

        async def timed() -> Any:
            try:
                return await read()
            finally:
                kept.took_s = time.monotonic() - kept.began

        kept = _Kept(time.monotonic(), asyncio.ensure_future(timed()))
        # A failure is raised where it is awaited, if anywhere.
        kept.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return kept
