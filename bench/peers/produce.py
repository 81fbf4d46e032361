"""The producer's process: `python -m bench.peers.produce APP`, in the environment of that peer.

An app is a module with `async def send(body)` and `async def fill(bodies)`. They may block, because
this process does no other work.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from typing import Protocol

import redis

from bench.peers.tally import MESSAGES, PART, READY, SENT, URL, body

PACE = 100  # messages/s of the part "paced"
DUE_S = 5.0  # time over which the due times of the part "due" are spread


class App(Protocol):
    """The functions that a peer's module has for a producer."""

    async def send(self, body: str) -> None:
        """Send a message."""

    async def fill(self, bodies: list[str]) -> None:
        """Send all messages in the peer's fastest way."""

    async def fill_due(self, bodies: list[str]) -> None:
        """Send all messages, each due at the time at the start of its body; RMQ only."""


def _wait_until(when: float) -> None:
    time.sleep(max(0.0, when - time.perf_counter()))


async def produce(app: App, client: redis.Redis) -> None:
    if PART == "drain":
        await app.fill([body(time.time_ns())] * MESSAGES)
        return
    await app.send(body(time.time_ns()))
    if not client.blpop([READY], timeout=60):
        raise SystemExit("the worker handles nothing")
    began = time.monotonic_ns()
    if PART == "one":
        for _ in range(MESSAGES):
            await app.send(body(time.time_ns()))
    elif PART == "paced":
        start = time.perf_counter()
        for tick in range(MESSAGES):
            _wait_until(start + tick / PACE)
            await app.send(body(time.time_ns()))
    else:
        first_ms = time.time_ns() // 1_000_000 + 3000
        times = [first_ms + int(i * DUE_S * 1000 / MESSAGES) for i in range(MESSAGES)]
        await app.fill_due([body(at * 1_000_000) for at in times])
    client.rpush(SENT, json.dumps({"began": began, "ended": time.monotonic_ns()}))


if __name__ == "__main__":
    with redis.Redis.from_url(URL, socket_timeout=None) as own:
        asyncio.run(produce(importlib.import_module(sys.argv[1]), own))
