"""Limit the requests of each client: the rate, and how many run at the same time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

BUCKETS_MAX = 10_000  # size of a table; the bucket that was used longest ago is dropped


class Rates:
    """Limits the rate of requests with one token bucket for each key.

    A new key has a full bucket. The table of buckets has a limited size. So an attacker with many
    addresses can remove buckets from the table. The clients of these buckets then have full buckets
    again.

    Args:
        rate: Requests per second.
        burst: Maximum number of requests after a pause.
        clock: Function that returns seconds.
    """

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        # By key: the number of tokens, and the time at which it was computed.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take a token from the bucket of a key, and return 0.0.

        If the bucket is empty, return how many seconds the next token takes.
        """
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


class LongPolls:
    """Limits how many long polls and streams of a token are open at the same time.

    Args:
        most: Maximum number for one token.
        all_most: Maximum number for all tokens together.
    """

    def __init__(self, most: int, all_most: int) -> None:
        self._most, self._all_most = most, max(most, all_most)
        self._open: Counter[str] = Counter()  # by token

    def begin(self, token: str) -> None:
        """Count a long poll or a stream. Call `end` when it ends.

        Raises:
            ApiError: There are too many long polls and streams for this token, or for all tokens
                together.
        """
        from rmq.http_framework.problems import ApiError  # it imports packages of the extra

        if self._open[token] >= self._most:
            raise ApiError(
                "too-many-polls",
                f"this token has {self._most} long polls and streams at this server, the limit of "
                "server.polls; receive more messages in each of them, or use another server",
            )
        if self._open.total() >= self._all_most:
            raise ApiError(
                "too-many-polls",
                f"this server has {self._all_most} long polls and streams; use another server",
            )
        self._open[token] += 1

    def end(self, token: str) -> None:
        """Stop counting a long poll or a stream."""
        self._open[token] -= 1
        if not self._open[token]:
            del self._open[token]


class Simultaneous:
    """Limits how many requests with the same key run at the same time. More requests wait.

    One event loop makes all answers. Without this limit, a client with many simultaneous requests
    would use almost all of the loop's time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # By key: a semaphore, and a list whose length is the number of its users.
        self._by_key: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Wait until a request with the key may run, and count the request while it runs."""
        answering, users = self._by_key.setdefault(key, (asyncio.Semaphore(self._most), []))
        users.append(None)
        try:
            async with answering:
                yield
        finally:
            users.pop()
            if not users:
                del self._by_key[key]
