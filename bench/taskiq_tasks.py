"""Tasks of taskiq on RMQ, against the list broker of taskiq-redis: publishing and consuming.

The list broker removes a task before it runs, and loses the tasks of a killed worker.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.child import ROOT
from bench.machine import settle, used_cpu_s
from bench.measurement import Measurement, ratios_of
from tests.servers import Server, die_with_parent

SIDES = ("rmq", "redis")
CHUNK = 250  # tasks that a side publishes before the other side's turn
TOGETHER = 50  # callers at a time
LIMIT_S = 120.0
BODY = "x" * 100

Figures = dict[str, list[float]]


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
    return _rows(found)


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
    """Measure a worker that drains the queue."""
    with tempfile.NamedTemporaryFile() as counter:
        path, used = Path(counter.name), used_cpu_s(raw)
        with _worker(url, side, path) as process:
            began, first = _runs(path, process, 1)
            ended, last = _runs(path, process, count)
        found["consume"].append((last - first) / (ended - began))
        found["consume us"].append((used_cpu_s(raw) - used) / count * 1e6)


def _runs(path: Path, process: subprocess.Popen[bytes], least: int) -> tuple[float, int]:
    """Wait for a number of runs. Return the time, and the number."""
    until = time.monotonic() + LIMIT_S
    while (size := path.stat().st_size) < least:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the worker ran {size} of {least} tasks")
        time.sleep(0.002)
    return time.perf_counter(), size


@contextmanager
def _worker(url: str, side: str, counter: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of one process. It ends with its last acks."""
    env = {**os.environ, "BENCH_SIDE": side, "BENCH_URL": url, "BENCH_NAME": f"bench-{side}"}
    env |= {"BENCH_COUNTER": str(counter), "PYTHONPATH": str(ROOT)}
    words = ["worker", "bench.taskiq_app:worker", "--workers", "1", "--log-level", "ERROR"]
    process = subprocess.Popen(
        [sys.executable, "-m", "taskiq", *words],
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


def _rows(sides: dict[str, Figures]) -> list[Measurement]:
    ours, plain = sides["rmq"], sides["redis"]
    measurements = []
    for figure, title in (
        ("one", "published tasks/s, one caller"),
        ("many", f"published tasks/s, {TOGETHER} callers"),
        ("consume", "consumed tasks/s"),
        ("one us", "CPU of Redis to publish a task, one caller"),
        ("many us", f"CPU of Redis to publish a task, {TOGETHER} callers"),
        ("consume us", "CPU of Redis to consume a task"),
    ):
        is_cost = figure.endswith("us")
        notes = {"rmq": ours[figure], "redis": plain[figure]}
        ratios = ratios_of(ours[figure], plain[figure])
        name = f"{title}, to the list broker of taskiq-redis"
        target = None if is_cost else 1.0
        measurements.append(
            Measurement("taskiq", name, ratios, target=target, at_most=is_cost, notes=notes)
        )
        unit = "us" if is_cost else "tasks/s"
        for side in SIDES:
            measurements.append(Measurement("taskiq", f"  {side}", sides[side][figure], unit))
    return measurements
