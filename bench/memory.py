"""What a waiting message costs in Redis's memory."""

from __future__ import annotations

import time

import redis

import rmq
from bench.core import BODY
from bench.figures import Figure
from bench.machine import settle
from tests.servers import Server


def _used(raw: redis.Redis) -> int:
    time.sleep(1.0)  # until buffers are given back and tables have their size
    return int(raw.info("memory")["used_memory"])


def _fill(server: Server, count: int) -> None:
    with rmq.Client(server.url) as client:
        topic = client.topic("memory", codec="bytes")
        for first in range(0, count, 1000):
            topic.send_many(
                [rmq.Outgoing(BODY, priority=17 + n % 1000) for n in range(first, first + 1000)]
            )


def memory(server: Server, rounds: int, quick: bool) -> list[Figure]:
    """Bytes for one 100-byte message with a priority, by how many wait."""
    figures = []
    with server.raw() as raw:
        _fill(server, 1000)  # loads scripts, and makes the server's histogram of each command
        for count in (1_000, 10_000) if quick else (10_000, 100_000, 1_000_000):
            raw.flushall()  # and not its statistics: the histograms would be made again
            before = _used(raw)
            _fill(server, count)
            each = (_used(raw) - before) / count
            figures.append(
                Figure("memory", f"{count:,} messages waiting, each", [each], "B", 340, True)
            )
        settle(raw)
    each_of = [figure.value for figure in figures]
    growth = max(each_of) / min(each_of)
    figures.append(Figure("memory", "dearest / cheapest of these", [growth], "x", 1.1, True))
    return figures
