"""Readings that all viewers share: ten open windows cost Redis what one costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from rmq.server.console.meter import Meter
from rmq.server.http.api import problems
from rmq.server.http.api.problems import ApiError

T = TypeVar("T")

KEPT_MAX = 500
LONG_MAX, LONG_KEPT = 4, 50  # long readings that go on at a time, and that are kept
LONG_S = 300.0  # a long reading takes no longer
SHARE = 10  # a reading is kept for ten times as long as it took: a tenth of the time at most


class _Kept(NamedTuple):
    task: asyncio.Task[Any]
    began: float


@dataclass(slots=True)
class LongReading:
    """A reading that may take longer than a page: how far it is, and what it found.

    Attributes:
        done: how much was looked at.
        all: how much there is; 0: not known yet.
        at: when it ended, epoch s; None: it goes on.
        found: what it found.
        error: why it failed; empty: it did not.
    """

    done: int = 0
    all: int = 0
    at: float | None = None
    found: Any = None
    error: str = ""
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def ended(self, wait_s: float) -> None:
        """Wait for its end, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ended.wait()

    def end(self) -> None:
        """Note that it has ended."""
        self.at = time.time()
        self._ended.set()

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
        self._took: dict[str, float] = {}
        self._long: dict[str, tuple[LongReading, asyncio.Task[None], float]] = {}

    def known(self, key: str) -> LongReading | None:
        """Return a reading that goes on or has ended; None: it was not begun, or is not kept."""
        held = self._long.get(key)
        return held[0] if held else None

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
        now = time.monotonic()
        held = self._long.get(key)
        if held is not None:
            reading, _, began = held
            took = (reading.at or time.time()) - (time.time() - (now - began))
            if reading.at is None or now - began < max(keep_s, SHARE * took):
                return reading
        for other in [
            other for other, (reading, _, _) in self._long.items() if reading.at is not None
        ][: max(0, len(self._long) - LONG_KEPT)]:
            del self._long[other]
        if sum(reading.at is None for reading, _, _ in self._long.values()) >= LONG_MAX:
            raise ApiError("busy", "many long lists are being counted; reload in a moment")
        reading = LongReading()

        async def run() -> None:
            try:
                async with asyncio.timeout(LONG_S):
                    reading.found = await read(reading)
            except Exception as error:
                told = problems.of_exception(error, key, is_read=True)
                reading.error = str(told)
            finally:
                reading.end()

        self._long[key] = reading, asyncio.ensure_future(run()), now
        return reading

    async def close(self) -> None:
        """End what goes on, before the client of Redis is closed."""
        tasks = [kept.task for kept in self._kept.values()]
        tasks += [task for _, task, _ in self._long.values()]
        running = [task for task in tasks if task.cancel()]
        if running:
            await asyncio.wait(running)

    async def get(self, key: str, read: Callable[[], Awaitable[T]], keep_s: float = 1.0) -> T:
        """Return what was read under a key a while ago, or read it now.

        Args:
            key: names what is read.
            read: reads it; called by one of those who ask at the same time.
            keep_s: for how long it is kept, at least.
        """
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is not None:
            holds_s = max(keep_s, SHARE * self._took.get(key, 0.0))
            running = not kept.task.done()
            failed = kept.task.done() and (
                kept.task.cancelled() or kept.task.exception() is not None
            )
            if running or (not failed and now - kept.began < holds_s):
                found: T = await asyncio.shield(kept.task)
                return found
        while len(self._kept) >= KEPT_MAX:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._took.pop(oldest, None)

        async def timed() -> T:
            result = await read()
            self._took[key] = time.monotonic() - now
            return result

        task = asyncio.ensure_future(timed())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._kept.pop(key, None)
        self._kept[key] = _Kept(task, now)
        result: T = await asyncio.shield(task)
        return result
