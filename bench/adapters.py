"""Shared by the benches of Celery and of taskiq: a worker that drains its queue, and the rows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.child import ROOT
from bench.machine import used_cpu_s
from bench.measurement import Measurement, ratios_of
from tests.servers import die_with_parent

SIDES = ("rmq", "redis")
CHUNK = 250  # tasks that a side publishes before the other side's turn
LIMIT_S = 120.0
BODY = "x" * 100

Figures = dict[str, list[float]]


def consumed(
    raw: Any, words: Sequence[str], env: Mapping[str, str], count: int
) -> tuple[float, float]:
    """Run a worker until it has drained its queue.

    Args:
        raw: Client of redis-py, which reads the CPU time of Redis.
        words: Module of the worker, and the words after it.
        env: Variables of the worker. BENCH_COUNTER is added: the file to which each run of a task
            appends a byte.
        count: Number of tasks in the queue.

    Returns:
        Tasks a second, from the first run to the last, and microseconds of Redis for a task.
    """
    with tempfile.NamedTemporaryFile() as counter:
        path, used = Path(counter.name), used_cpu_s(raw)
        with _worker(words, {**env, "BENCH_COUNTER": counter.name}) as process:
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
def _worker(words: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker. It ends with its last acks."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=ROOT,
        env={**os.environ, **env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, preexec_fn=die_with_parent,
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


def rows(
    part: str, titles: Mapping[str, str], targets: Collection[str], sides: Mapping[str, Figures]
) -> list[Measurement]:
    """Return the ratio of each figure, RMQ's to the other side's, and both figures.

    Args:
        part: Name of the part of the bench.
        titles: Title of each figure. A figure whose name ends in "us" is a cost.
        targets: Figures whose ratio has the target 1: at least for a rate, at most for a cost.
        sides: Figures of each side.
    """
    measurements = []
    for figure, title in titles.items():
        is_cost = figure.endswith("us")
        ours, plain = sides["rmq"][figure], sides["redis"][figure]
        target = 1.0 if figure in targets else None
        notes = {"rmq": ours, "redis": plain}
        measurements.append(
            Measurement(
                part, title, ratios_of(ours, plain), target=target, at_most=is_cost, notes=notes
            )
        )
        unit = "us" if is_cost else "tasks/s"
        for side in SIDES:
            measurements.append(Measurement(part, f"  {side}", sides[side][figure], unit))
    return measurements
