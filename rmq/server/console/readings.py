"""Readings that all viewers share: ten open windows cost Redis what one costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

KEPT_MAX = 500
SHARE = 10  # a reading is kept for ten times as long as it took: a tenth of the time at most


class _Kept(NamedTuple):
    task: asyncio.Task[Any]
    began: float


class Readings:
    """Keeps what was read, for a while."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._took: dict[str, float] = {}

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
