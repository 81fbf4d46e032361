"""Consumers in separate processes: each reports when it is ready, and at the end its samples.

A body begins with its round and a time in ns: the time of its send, or its due time. A body that
begins with "end" ends the consumer.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import redis

import rmq
from bench.machine import REPLY_S

END = b"end".ljust(100)
GROUP = "bench"
Sample = tuple[int, int]  # round, ns late

_process = multiprocessing.get_context("spawn")


def body_of(number: int, when_ns: int) -> bytes:
    return (b"%d %d " % (number, when_ns)).ljust(100)


def _note(samples: list[Sample], bodies: list[bytes], now_ns: int) -> bool:
    """Record the lateness of each body; return whether the end was reached."""
    for body in bodies:
        if body[:3] == b"end":
            return True
        number, when = body.split()
        samples.append((int(number), now_ns - int(when)))
    return False


def sync_consumer(url: str, key: str, pipe: Connection) -> None:
    samples: list[Sample] = []
    with rmq.Client(url) as client, client.topic(key, codec="bytes").consumer() as consumer:
        consumer.receive(wait=0.05)
        pipe.send("ready")
        over = False
        while not over:
            taken = consumer.receive(max_messages=100, wait=5)
            over = _note(samples, [d.body for d in taken], time.time_ns())
            consumer.ack(taken)
    pipe.send(samples)


def async_consumer(url: str, key: str, pipe: Connection) -> None:
    async def main() -> list[Sample]:
        samples: list[Sample] = []
        async with (
            rmq.AsyncClient(url) as client,
            client.topic(key, codec="bytes").consumer() as consumer,
        ):
            await consumer.receive(wait=0.05)
            pipe.send("ready")
            over = False
            while not over:
                taken = await consumer.receive(max_messages=100, wait=5)
                over = _note(samples, [d.body for d in taken], time.time_ns())
                await consumer.ack(taken)
        return samples

    pipe.send(asyncio.run(main()))


def stream_consumer(url: str, key: str, pipe: Connection) -> None:
    samples: list[Sample] = []
    with redis.Redis.from_url(url, socket_timeout=REPLY_S) as client:
        client.xgroup_create(key, GROUP, mkstream=True)
        pipe.send("ready")
        over = False
        while not over:
            # Shorter than redis-py's own socket timeout of 5 s.
            reply: Any = client.xreadgroup(GROUP, "one", {key: ">"}, count=100, block=1000)
            now_ns = time.time_ns()
            # redis-py answers RESP2 with a list and RESP3 with a dict of lists.
            taken = reply[0][1] if isinstance(reply, list) and reply else []
            if isinstance(reply, dict) and reply:
                taken = next(iter(reply.values()))[0]
            if taken:
                over = _note(samples, [fields[b"body"] for _, fields in taken], now_ns)
                client.xack(key, GROUP, *[entry for entry, _ in taken])
    pipe.send(samples)


def idle_consumers(url: str, key: str, pipe: Connection) -> None:
    """Wait for messages that never come; `key` has the topic and the number of consumers."""
    name, count = key.split()
    topic = rmq.Client(url).topic(name)
    consumers = [topic.consumer() for _ in range(int(count))]
    for consumer in consumers:
        consumer.receive(wait=0.05)
    pipe.send("ready")
    for consumer in consumers:
        threading.Thread(target=consumer.receive, kwargs={"wait": None}).start()


class Running:
    """A running consumer process that is ready."""

    def __init__(self, main: Callable[[str, str, Connection], None], url: str, key: str) -> None:
        self.pipe, theirs = _process.Pipe()
        self.process = _process.Process(target=main, args=(url, key, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.hear(30)

    def hear(self, patience_s: float) -> Any:
        """Return the consumer's next report.

        Raises:
            EOFError: The process died.
        """
        if not self.pipe.poll(patience_s):
            self.stop()
            raise TimeoutError(f"bench: {self.process.name} says nothing")
        return self.pipe.recv()

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()


CONSUMERS = {"sync": sync_consumer, "async": async_consumer, "stream": stream_consumer}


def start_consumer(
    kind: str, url: str, raw: redis.Redis, client: rmq.Client
) -> tuple[Running, Callable[[bytes], object]]:
    """Start a consumer of a topic or stream; return it and a function that sends to it."""
    if kind == "stream":

        def xadd(body: bytes) -> None:
            raw.xadd(kind, {"body": body})

        return Running(stream_consumer, url, kind), xadd
    topic = client.topic(kind, codec="bytes")
    topic.open()
    return Running(CONSUMERS[kind], url, kind), topic.send


def trickle(send: Callable[[bytes], object], number: int, ticks: int) -> None:
    """Send 100 messages a second, one per tick, with the number of a round."""
    begin = time.perf_counter()
    for tick in range(ticks):
        time.sleep(max(0.0, begin + tick / 100 - time.perf_counter()))
        send(body_of(number, time.time_ns()))
