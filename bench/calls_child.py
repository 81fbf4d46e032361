"""A process that calls RMQ and plain streams in one way after the other, for `bench.calls`.

It imports no other module of the bench, so that it can measure any checkout: its parent puts the
checkout's directory into PYTHONPATH. Each input line names the side, the way and the duration; the
answer has the measured values. Messages that a way needs are sent before the measurement.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import redis
import redis.asyncio

import rmq

BODY = b"x" * 100
K = 100  # messages per call in the ways `bulk` and `drain`
ACKS, DRAINS = 1000, 100  # calls in the ways `acks` and `drain`, which end before the time is up
REPLY_S = 60.0
Call = Callable[[], object]
AsyncCall = Callable[[], Awaitable[object]]
Late = list[float]  # seconds of each call


async def by_tasks(calls: Iterator[AsyncCall], tasks: int, until: float) -> Late:
    """Make the calls from several tasks of one event loop, until a time."""
    late: Late = []

    async def one() -> None:
        for call in calls:
            if (began := perf_counter()) >= until:
                return
            await call()
            late.append(perf_counter() - began)

    await asyncio.gather(*(one() for _ in range(tasks)))
    return late


def by_threads(calls: Iterator[Call], threads: int, until: float) -> Late:
    """Make the calls from several threads, until a time."""
    late: Late = []

    def one() -> None:
        for call in calls:
            if (began := perf_counter()) >= until:
                return
            call()
            late.append(perf_counter() - began)

    if threads == 1:
        one()
        return late
    running = [threading.Thread(target=one) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return late


class Rmq:
    """A topic of one slot, with a client of each kind."""

    def __init__(self, url: str, name: str) -> None:
        topic = rmq.Client(url, timeout=REPLY_S).topic(name, codec="bytes")
        topic.open()
        aio_topic = rmq.AsyncClient(url, timeout=REPLY_S).topic(name, codec="bytes")
        self._topic, self._consumer = topic, topic.consumer()
        self._aio_consumer = aio_topic.consumer()
        self.send: Call = lambda: topic.send(BODY)
        self.aio_send: AsyncCall = lambda: aio_topic.send(BODY)

    def bulk(self, count: int = K) -> None:
        """Send `count` messages in one call."""
        self._topic.send_many([rmq.Outgoing(BODY) for _ in range(count)])

    def drain(self) -> None:
        """Take and settle K messages."""
        taken = self._consumer.receive(K)
        assert len(taken) == K
        self._consumer.ack(taken)

    async def leased(self, count: int) -> list[AsyncCall]:
        """Return the ack of each of `count` messages."""
        self.bulk(count)
        return [delivery.ack for delivery in await self._aio_consumer.receive(count)]


class Plain:
    """The same operations by redis-py with a stream and a group: XADD, XREADGROUP and XACK."""

    GROUP = "workers"

    def __init__(self, url: str, name: str) -> None:
        key = f"stream:{name}"
        client = redis.Redis.from_url(url, socket_timeout=REPLY_S, protocol=2)
        self._aio = aio = redis.asyncio.Redis.from_url(url, socket_timeout=REPLY_S, protocol=2)
        client.xgroup_create(key, self.GROUP, id="0", mkstream=True)
        self._key, self._client = key, client
        self.send: Call = lambda: client.xadd(key, {"body": BODY})
        self.aio_send: AsyncCall = lambda: aio.xadd(key, {"body": BODY})

    def bulk(self, count: int = K) -> None:
        """Send `count` messages in one pipeline."""
        pipe = self._client.pipeline(transaction=False)
        for _ in range(count):
            pipe.xadd(self._key, {"body": BODY})
        pipe.execute()

    def _read(self, count: int) -> list[Any]:
        reply: Any = self._client.xreadgroup(self.GROUP, "bench", {self._key: ">"}, count=count)
        entries = [entry for entry, _ in reply[0][1]]
        assert len(entries) == count
        return entries

    def drain(self) -> None:
        """Take and settle K messages."""
        self._client.xack(self._key, self.GROUP, *self._read(K))

    async def leased(self, count: int) -> list[AsyncCall]:
        """Return the XACK of each of `count` entries."""

        def ack(entry: Any) -> AsyncCall:
            return lambda: self._aio.xack(self._key, self.GROUP, entry)

        self.bulk(count)
        return [ack(entry) for entry in self._read(count)]


SIDES: dict[str, type[Rmq] | type[Plain]] = {"rmq": Rmq, "plain": Plain}


class Caller:
    """Calls both sides; each way has its own topic.

    Args:
        url: URL of the server.
        prefix: Prefix of the names of topics and keys.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._prefix = url, prefix
        self._loop = asyncio.new_event_loop()
        self._sides: dict[tuple[str, str], Rmq | Plain] = {}
        self._raw = redis.Redis.from_url(url, socket_timeout=REPLY_S)

    def _cpu_s(self) -> float:
        info: Any = self._raw.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def _late(self, side: Rmq | Plain, way: str, ready: list[AsyncCall], seconds: float) -> Late:
        until = perf_counter() + seconds
        kind, count, *_ = *way.split(), "1"
        if kind == "tasks":
            calls = by_tasks(itertools.repeat(side.aio_send), int(count), until)
            return self._loop.run_until_complete(calls)
        if kind == "acks":
            acks = by_tasks(iter(ready), int(count), until + REPLY_S)
            return self._loop.run_until_complete(acks)
        if kind == "drain":
            return by_threads(itertools.repeat(side.drain, DRAINS), 1, until + REPLY_S)
        return by_threads(
            itertools.repeat(side.bulk if kind == "bulk" else side.send), int(count), until
        )

    def measure(self, name: str, way: str, seconds: float) -> dict[str, float]:
        """Call a side in one way; return messages/s, us of CPU for a message, and ms of a call.

        Args:
            name: Name of the side.
            way: "tasks N", "threads N", "acks N" (by N tasks), "bulk" or "drain".
            seconds: Duration, s.
        """
        if (name, way) not in self._sides:
            key = f"{self._prefix}-{way.replace(' ', '-')}"
            self._sides[name, way] = SIDES[name](self._url, key)
        side, ready = self._sides[name, way], []
        if way.startswith("acks"):
            ready = self._loop.run_until_complete(side.leased(ACKS))
        elif way == "drain":
            for _ in range(DRAINS // 10):
                side.bulk(10 * K)
        redis_s, client_s, began = self._cpu_s(), process_time(), perf_counter()
        late = sorted(self._late(side, way, ready, seconds))
        took, client_s, redis_s = (
            perf_counter() - began,
            process_time() - client_s,
            self._cpu_s() - redis_s,
        )
        messages = len(late) * (K if way in ("bulk", "drain") else 1)
        return {
            "messages/s": messages / took,
            "client us": client_s / messages * 1e6,
            "Redis us": redis_s / messages * 1e6,
            "p50 ms": late[len(late) // 2] * 1e3,
            "p99 ms": late[len(late) * 99 // 100] * 1e3,
        }


def main() -> None:
    """Answer the parent's lines until the input ends."""
    asked = json.loads(sys.stdin.readline())
    caller = Caller(asked["url"], asked["prefix"])
    print(json.dumps({"rmq": str(Path(rmq.__file__).parent)}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(caller.measure(**question)), flush=True)
    os._exit(0)  # skip closing the connections of many clients


if __name__ == "__main__":
    main()
