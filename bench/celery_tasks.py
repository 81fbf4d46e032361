"""Celery's tasks on RMQ, against kombu's own transport for Redis: publishing and consuming."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.celery_app import make
from bench.child import ROOT
from bench.machine import settle, used_cpu_s
from bench.measurement import Measurement, ratios_of
from tests.servers import Server, die_with_parent

POOLS = {"prefork 2": ("prefork", "2"), "threads 8": ("threads", "8")}
SIDES = ("rmq", "redis")
CHUNK = 250  # tasks that a side publishes before the other side's turn
LIMIT_S = 120.0
BODY = "x" * 100

Figures = dict[str, list[float]]


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
    return [row for pool, sides in found.items() for row in _rows(pool, sides)]


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
        rate, consumed = _consumed(raw, brokers[side], f"bench-{side}", pool, count + 1)
        found[side]["consume"].append(rate)
        found[side]["consume us"].append(consumed)
        found[side]["us"].append(published + consumed)
        apps[side].close()


def _consumed(
    raw: Any, broker: str, name: str, pool: tuple[str, str], count: int
) -> tuple[float, float]:
    """Return the tasks a second of a worker that drains the queue, and us of Redis for a task."""
    with tempfile.NamedTemporaryFile() as counter:
        path = Path(counter.name)
        used = used_cpu_s(raw)
        with _worker(broker, name, pool, path) as process:
            began, first = _runs(path, process, 1)
            ended, last = _runs(path, process, count)
        return (last - first) / (ended - began), (used_cpu_s(raw) - used) / count * 1e6


def _runs(path: Path, process: subprocess.Popen[bytes], least: int) -> tuple[float, int]:
    """Wait for a number of runs. Return the time, and the number."""
    until = time.monotonic() + LIMIT_S
    while (size := path.stat().st_size) < least:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the worker ran {size} of {least} tasks")
        time.sleep(0.002)
    return time.perf_counter(), size


@contextmanager
def _worker(
    broker: str, name: str, pool: tuple[str, str], counter: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker. It ends with its last acks."""
    env = {**os.environ, "BENCH_BROKER": broker, "BENCH_NAME": name, "C_FORCE_ROOT": "1"}
    env |= {"BENCH_COUNTER": str(counter), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [
            sys.executable, "-m", "celery", "-A", "bench.celery_app", "worker", "-l", "ERROR",
            "-P", pool[0], "-c", pool[1], "-n", f"{name}@bench",
        ],
        cwd=ROOT, env=env, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _rows(what: str, sides: dict[str, Figures]) -> list[Measurement]:
    ours, plain = sides["rmq"], sides["redis"]
    measurements = []
    for figure, title, is_cost in (
        ("publish", "published tasks/s", False),
        ("consume", "consumed tasks/s", False),
        ("client us", "CPU of the client to publish a task", True),
        ("publish us", "CPU of Redis to publish a task", True),
        ("consume us", "CPU of Redis to consume a task", True),
        ("us", "CPU of Redis for a task", True),
    ):
        notes = {"rmq": ours[figure], "redis": plain[figure]}
        ratios = ratios_of(ours[figure], plain[figure])
        target = 1.0 if figure in ("publish", "consume", "us") else None
        name = f"{what}: {title}, to kombu's Redis transport"
        measurements.append(
            Measurement("celery", name, ratios, target=target, at_most=is_cost, notes=notes)
        )
        unit = "us" if is_cost else "tasks/s"
        for side in SIDES:
            measurements.append(Measurement("celery", f"  {side}", sides[side][figure], unit))
    return measurements
