"""Rates: how many requests somebody may make, each by a bucket of tokens that fills with time.

And places: how many of them are answered at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

BUCKETS_MAX = 10_000  # of one table; the one that was used longest ago gives way


class Rates:
    """A table of buckets, by the key of who is limited.

    A bucket that is not in the table is full. An attacker with many addresses can make it forget
    some, which lets each of these begin anew.

    Args:
        rate: requests a second.
        burst: how many at once, after a while without any.
        clock: returns seconds.
    """

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def take(self, key: str) -> float:
        """Take a token; return after how many seconds there is one, 0.0: it was taken."""
        tokens = self._tokens(key)
        if tokens < 1:
            self._put(key, tokens)
            return (1 - tokens) / self.rate
        self._put(key, tokens - 1)
        return 0.0

    def _tokens(self, key: str) -> float:
        tokens, at = self._buckets.get(key, (float(self.burst), self._clock()))
        return min(self.burst, tokens + (self._clock() - at) * self.rate)

    def _put(self, key: str, tokens: float) -> None:
        self._buckets[key] = tokens, self._clock()
        self._buckets.move_to_end(key)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)

    def __len__(self) -> int:
        return len(self._buckets)


class Places:
    """Places in which requests are answered, so many for each key; the others wait for one.

    All answers are made in one event loop: without places, whoever asks for much at a time would
    have nearly all of it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_key: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}  # and who uses it

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Have a place of a key for the block."""
        places, users = self._by_key.setdefault(key, (asyncio.Semaphore(self._most), []))
        users.append(None)
        try:
            async with places:
                yield
        finally:
            users.pop()
            if not users:
                del self._by_key[key]
