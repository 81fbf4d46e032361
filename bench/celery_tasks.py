"""Celery's tasks on RMQ, against kombu's own transport for Redis: publishing and consuming."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

from bench.adapters import BODY, CHUNK, SIDES, Figures, consumed, rows
from bench.celery_app import make
from bench.machine import settle, used_cpu_s
from bench.measurement import Measurement
from tests.servers import Server

POOLS = {"prefork 2": ("prefork", "2"), "threads 8": ("threads", "8")}
TITLES = {
    "publish": "published tasks/s",
    "consume": "consumed tasks/s",
    "client us": "CPU of the client to publish a task",
    "publish us": "CPU of Redis to publish a task",
    "consume us": "CPU of Redis to consume a task",
    "us": "CPU of Redis for a task",
}


def celery_tasks(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Publish and consume tasks that do nothing, by turns on both transports.

    The target of each ratio: at least as fast, and not more CPU time of Redis for a task.
    """
    count = 500 if quick else 4_000
    found: dict[str, dict[str, Figures]] = {
        pool: {side: defaultdict(list) for side in SIDES} for pool in POOLS
    }
    for number in range(rounds):
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        for pool, words in POOLS.items():
            with server.raw() as raw:
                settle(raw)
                _round(raw, server, order, words, count, found[pool])
    measurements = []
    for pool, sides in found.items():
        titles = {
            figure: f"{pool}: {title}, to kombu's Redis transport"
            for figure, title in TITLES.items()
        }
        measurements += rows("celery", titles, ("publish", "consume", "us"), sides)
    return measurements


def _round(
    raw: Any, server: Server, order: tuple[str, ...], pool: tuple[str, str], count: int,
    found: dict[str, Figures],
) -> None:  # fmt: skip
    brokers = {"rmq": server.url.replace("redis", "rmq", 1), "redis": server.url}
    apps = {side: make(brokers[side], f"bench-{side}") for side in order}
    took: dict[str, list[float]] = {side: [] for side in order}
    cpu, client = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0.0)
    delays = {side: app.tasks["noop"].delay for side, app in apps.items()}
    for delay in delays.values():  # connections, and the topic
        delay(BODY)
    for turn in range(count // CHUNK):
        for side in order if turn % 2 == 0 else order[::-1]:
            delay, used = delays[side], used_cpu_s(raw)
            own, began = time.process_time(), time.perf_counter()
            for _ in range(CHUNK):
                delay(BODY)
            took[side].append(time.perf_counter() - began)
            client[side] += time.process_time() - own
            cpu[side] += used_cpu_s(raw) - used
    for side in order:
        published = cpu[side] / count * 1e6
        found[side]["publish"].append(CHUNK / statistics.median(took[side]))
        found[side]["client us"].append(client[side] / count * 1e6)
        found[side]["publish us"].append(published)
        name = f"bench-{side}"
        words = ["celery", "-A", "bench.celery_app", "worker", "-l", "ERROR", "-P", pool[0]]
        words += ["-c", pool[1], "-n", f"{name}@bench"]
        env = {"BENCH_BROKER": brokers[side], "BENCH_NAME": name, "C_FORCE_ROOT": "1"}
        rate, us = consumed(raw, words, env, count + 1)
        found[side]["consume"].append(rate)
        found[side]["consume us"].append(us)
        found[side]["us"].append(published + us)
        apps[side].close()
