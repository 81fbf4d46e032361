"""Measure many tasks with an ETA: how late they run, and the memory of the worker meanwhile.

    python -m tests.celery.etas rmq://localhost:6379/9 --count 20000 --over 20
    python -m tests.celery.etas rmq://localhost:6379/9 --count 300 --over 3 --kill
    python -m tests.celery.etas redis://localhost:6379/9 --count 300 --over 20 --kill --visibility 5

The exit code is 1 if a task ran early, ran twice or never.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import kombu.pools
import psutil
from celery import Celery

import rmq.celery

assert rmq.celery.Transport.driver_name == "rmq"

NAME = "etas"
LOOK_S = 0.5
EXTRA_S = 2.0  # for runs that are too many, after the last task


class Run(NamedTuple):
    """A run of a task: its number, the ETA and the start, s, and the process."""

    number: int
    due: float
    at: float
    pid: int


class Verdict(NamedTuple):
    """The faults that the runs of tasks with an ETA show."""

    lost: list[int]
    early: list[Run]
    doubled: list[int]

    @property
    def is_well(self) -> bool:
        """Whether each task ran once, and none was early."""
        return not any(self)


def judge(runs: list[Run], count: int) -> Verdict:
    """Compare the runs with tasks that have the numbers from 0."""
    times = Counter(run.number for run in runs)
    return Verdict(
        [number for number in range(count) if not times[number]],
        [run for run in runs if run.at < run.due],
        [number for number in times if times[number] > 1],
    )


def make(broker: str, file: str, visibility: float | None = None) -> Celery:
    """Make the app. Its task writes a line for each run into a file."""
    options = {"visibility_timeout": visibility} if visibility else {}
    app = Celery(NAME, broker=broker, broker_transport_options=options, set_as_current=False)
    app.conf.update(task_ignore_result=True, task_default_queue=NAME, task_acks_late=True)

    def run(number: int, due: float) -> None:
        line = f"{number} {due!r} {time.time()!r} {os.getpid()}\n"
        with Path(file).open("ab", buffering=0) as out:
            out.write(line.encode())

    app.task(name="etas.run", shared=False)(run)
    return app


def read(file: str) -> list[Run]:
    """Read the runs."""
    lines = [line.split() for line in Path(file).read_text().splitlines()]
    return [Run(int(n), float(due), float(at), int(pid)) for n, due, at, pid in lines]


class Worker:
    """A worker of Celery in a process group of its own."""

    def __init__(self, number: int, environ: dict[str, str], *options: str) -> None:
        words = ["celery", "-A", "tests.celery.etas", "worker", "-n", f"w{number}@{NAME}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words, "-l", "ERROR", *options],
            env={**os.environ, **environ, "C_FORCE_ROOT": "1"}, start_new_session=True,
        )  # fmt: skip

    def rss_mb(self) -> float:
        """Return the memory of the worker and its children, MB."""
        found = psutil.Process(self._process.pid)
        both = (found, *found.children(recursive=True))
        return sum(float(each.memory_info().rss) for each in both) / 1e6

    def kill(self) -> None:
        """Kill it with SIGKILL, and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def measure(args: argparse.Namespace, file: str) -> Verdict:
    """Run the tasks, and print the figures."""
    environ = {"ETAS_BROKER": args.broker, "ETAS_FILE": file}
    environ["ETAS_VISIBILITY"] = str(args.visibility or "")
    workers = [Worker(n, environ, *args.options) for n in range(1 + args.kill)]
    app = make(args.broker, file, args.visibility)
    try:
        while len(app.control.inspect(timeout=1).ping() or ()) < len(workers):
            time.sleep(LOOK_S)
        before = workers[-1].rss_mb()
        first = time.time() + args.wait
        for number in range(args.count):
            due = first + args.over * number / args.count
            app.tasks["etas.run"].apply_async((number, due), eta=datetime.fromtimestamp(due, UTC))
        print(f"sent {first - time.time():.1f} s before the first is due")
        waiting = workers[-1].rss_mb()
        if args.kill:
            time.sleep(max(0.0, first - 0.5 - time.time()))
            workers.pop(0).kill()
        highest, until = waiting, first + args.over + args.patience
        while len({run.number for run in read(file)}) < args.count and time.time() < until:
            highest = max(highest, workers[-1].rss_mb())
            time.sleep(LOOK_S)
        time.sleep(EXTRA_S)
        runs = read(file)
        late = sorted(1000 * (run.at - run.due) for run in runs)
        p50, p99 = (late[int(len(late) * part)] for part in (0.5, 0.99))
        print(
            f"{len(runs)} runs of {args.count} tasks; late by p50 {p50:.1f}, p99 {p99:.1f}, "
            f"max {late[-1]:.1f} ms, min {late[0]:.1f} ms; worker {before:.0f} MB before, "
            f"{waiting:.0f} MB with all tasks waiting, {highest:.0f} MB at most"
        )
        return judge(runs, args.count)
    finally:
        for worker in workers:
            worker.kill()
        kombu.pools.reset()
        app.close()


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.celery.etas", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("broker")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--over", type=float, default=20.0, help="s between first and last ETA")
    parser.add_argument("--wait", type=float, default=30.0, help="s until the first ETA")
    parser.add_argument("--patience", type=float, default=60.0, help="s after the last ETA")
    parser.add_argument("--kill", action="store_true", help="kill one of two workers")
    parser.add_argument("--visibility", type=float, help="visibility_timeout of kombu, s")
    parser.add_argument(
        "--options", nargs=argparse.REMAINDER, default=["-P", "threads", "-c", "8"],
        help="of the workers",
    )  # fmt: skip
    return parser.parse_args(words)


def main() -> int:
    """Measure, and print the verdict."""
    args = parse()
    with tempfile.NamedTemporaryFile() as file:
        verdict = measure(args, file.name)
    lost, early, doubled = verdict
    print(f"lost {len(lost)}, early {len(early)}, doubled {len(doubled)}")
    return int(not verdict.is_well)


if __name__ == "__main__":
    sys.exit(main())

if "ETAS_BROKER" in os.environ:
    _visibility: Any = os.environ["ETAS_VISIBILITY"]
    app = make(os.environ["ETAS_BROKER"], os.environ["ETAS_FILE"], float(_visibility or 0))
