"""Tasks of taskiq on RMQ, against the list broker of taskiq-redis: publishing and consuming.

The list broker removes a task before it runs, and loses the tasks of a killed worker.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from importlib.util import find_spec
from typing import Any

from bench.adapters import BODY, CHUNK, SIDES, Figures, consumed, rows
from bench.machine import settle, used_cpu_s
from bench.measurement import Measurement
from tests.servers import Server

TOGETHER = 50  # callers at a time
TITLES = {
    "one": "published tasks/s, one caller",
    "many": f"published tasks/s, {TOGETHER} callers",
    "consume": "consumed tasks/s",
    "one us": "CPU of Redis to publish a task, one caller",
    "many us": f"CPU of Redis to publish a task, {TOGETHER} callers",
    "consume us": "CPU of Redis to consume a task",
}


def taskiq_tasks(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Publish and consume tasks that do nothing, by turns on both brokers.

    The target of each ratio: at least as fast. It needs taskiq-redis 1.2.4, which no extra brings.
    """
    if find_spec("taskiq_redis") is None:
        print("taskiq: skipped; pip install taskiq-redis==1.2.4")
        return []
    count = 500 if quick else 5_000
    found: dict[str, Figures] = {side: defaultdict(list) for side in SIDES}
    for number in range(rounds):
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        with server.raw() as raw:
            settle(raw)
            asyncio.run(_publish(raw, server.url, order, count, found))
            for side in order:
                _consume(raw, server.url, side, 2 * count + 2, found[side])
    titles = {
        figure: f"{title}, to the list broker of taskiq-redis" for figure, title in TITLES.items()
    }
    return rows("taskiq", titles, ("one", "many", "consume"), found)


async def _publish(
    raw: Any, url: str, order: tuple[str, ...], count: int, found: dict[str, Figures]
) -> None:
    """Publish tasks one by one, and with many callers."""
    from bench.taskiq_app import make

    brokers = {side: make(side, url, f"bench-{side}") for side in order}
    tasks: dict[str, Any] = {side: broker.find_task("noop") for side, broker in brokers.items()}
    for callers, figure in ((1, "one"), (TOGETHER, "many")):
        took, cpu = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0.0)
        for task in tasks.values():  # connections, and the topic
            await task.kiq(BODY)
        for turn in range(count // CHUNK):
            for side in order if turn % 2 == 0 else order[::-1]:
                kiq, used, began = tasks[side].kiq, used_cpu_s(raw), time.perf_counter()
                for _ in range(CHUNK // callers):
                    if callers == 1:
                        await kiq(BODY)
                    else:
                        await asyncio.gather(*(kiq(BODY) for _ in range(callers)))
                took[side] += time.perf_counter() - began
                cpu[side] += used_cpu_s(raw) - used
        for side in order:
            found[side][figure].append(count / took[side])
            found[side][f"{figure} us"].append(cpu[side] / count * 1e6)
    for broker in brokers.values():
        await broker.shutdown()


def _consume(raw: Any, url: str, side: str, count: int, found: Figures) -> None:
    """Measure a worker of one process that drains the queue."""
    words = ["taskiq", "worker", "bench.taskiq_app:worker", "--workers=1", "--log-level=ERROR"]
    env = {"BENCH_SIDE": side, "BENCH_URL": url, "BENCH_NAME": f"bench-{side}"}
    rate, us = consumed(raw, words, env, count)
    found["consume"].append(rate)
    found["consume us"].append(us)
