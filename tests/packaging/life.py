"""A message's life on the redis-py that PYTHONPATH gives, sync and async; prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import redis

import rmq


def sync_life(url: str) -> list[Any]:
    with rmq.Client(url, retry_for=2) as client:
        topic = client.topic("sync", slots=2)
        results = topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(20)])
        merging = rmq.Outgoing("merged", merge_key="k", time_range=0.2)
        topic.send_many([merging, merging])  # in one call: the second is in time
        seen: list[Any] = []
        with topic.consumer() as consumer:
            until = time.monotonic() + 120
            while len(seen) < 21 and time.monotonic() < until:
                batch = consumer.receive(5, wait=2)
                seen += [d.body for d in batch]
                consumer.extend(batch)
                assert consumer.ack(batch) == []
            topic.send("x", priority=900)
            (d,) = consumer.receive()
            d.nack(delay=0, error="once")
            (d,) = consumer.receive()
            assert d.attempt == 2
            d.ack()
        assert len({r.id for r in results}) == 20
        assert client.admin.stats("sync")["settled"] == 22
        return sorted(map(str, seen))


async def async_life(url: str) -> list[Any]:
    async with rmq.AsyncClient(url, retry_for=2) as client:
        topic = client.topic("async", slots=2)
        await topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(20)])
        await topic.send("late", delay=0.2)
        seen: list[Any] = []
        async with topic.consumer() as consumer:
            until = time.monotonic() + 120
            while len(seen) < 21 and time.monotonic() < until:
                batch = await consumer.receive(5, wait=2)
                seen += [d.body for d in batch]
                assert await consumer.ack(batch) == []
        assert (await client.admin.stats("async"))["settled"] == 21
        return sorted(map(str, seen))


if __name__ == "__main__":
    print(
        json.dumps(
            [redis.__version__, sync_life(sys.argv[1]), asyncio.run(async_life(sys.argv[1]))]
        )
    )
