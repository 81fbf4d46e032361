"""Play each storm with many seeds: `python -m tests.faults.seeds --seeds 200`.

Storms are small here (`storms`), and several are played at a time, each in a process with servers
of its own. Seeds are the same each time: 1, 2, 3 and so on; `--seed` plays one of them, or one that
a test has named. The exit code is 1 when a storm has failed with a seed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).parents[2]
NAMES = (
    "bank", "outbox", "resize", "resize-workers", "schedulers", "hostile", "soak", "lines",
    "senders", "groups", "lost-acks", "tenants", "interrupts",
    "follow-ups", "dead-letters", "cancels", "results", "steps", "history", "batches",
    "events", "celery",
)  # fmt: skip
JOBS_EACH_CORE = 2  # most storms wait for leases and servers half of the time
WORD = "--serve"
MOST_TEXT = 20_000  # characters of a failure


@dataclass
class Result:
    """The outcome of a seed of a storm."""

    storm: str
    seed: int
    seconds: float
    failure: str = ""
    figures: str = ""
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def again(self) -> str:
        """The line that repeats it."""
        return f"python -m tests.faults.seeds --storm {self.storm} --seed {self.seed}"


@dataclass
class Row:
    """The outcome of all seeds of a storm."""

    storm: str
    played: int = 0
    failed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        """Count a seed."""
        self.played += 1
        self.failed += bool(result.failure)
        self.dropped.update(result.dropped)
        self.seconds += result.seconds


# --- a process that plays ------------------------------------------------------------------------


def serve() -> None:
    """Play what is asked on stdin, a storm and a seed a line; answer each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what storms print is for nobody
    from tests.conftest import end_run
    from tests.faults.storms import STORMS, Stage

    with ExitStack() as stack:
        stack.callback(end_run)  # last of all
        stage = stack.enter_context(Stage())
        for line in sys.stdin:
            storm, seed = line.split()
            began = time.monotonic()
            result = Result(storm, int(seed), 0.0)
            try:
                found = STORMS[storm](stage, int(seed))
                result.figures, result.dropped = found.figures, dict(+found.dropped)
            except Exception:
                result.failure = traceback.format_exc()[-MOST_TEXT:]
            result.seconds = time.monotonic() - began
            print(json.dumps(vars(result)), file=answers, flush=True)


class Player:
    """Such a process, which is started again if it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def play(self, storm: str, seed: int) -> Result:
        """Play a seed."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.seeds", WORD], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        process, began = self._process, time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(storm, seed, file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return Result(**json.loads(answer))
        self._process = None
        told = f"its process ended: exit code {process.wait()}"
        return Result(storm, seed, time.monotonic() - began, told)

    def close(self) -> None:
        """Let it stop its servers and end."""
        if self._process is not None:
            self._process.communicate()


def play(
    tasks: list[tuple[str, int]], jobs: int, tell: Callable[[Result], None], until: float
) -> None:
    """Play all, so many at a time, and tell each; none is begun after `until`."""
    waiting: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()

    def work() -> None:
        player = Player()
        try:
            while time.monotonic() < until:
                result = player.play(*waiting.get_nowait())
                with lock:
                    tell(result)
        except queue.Empty:
            pass
        finally:
            player.close()

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(tasks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- what is told --------------------------------------------------------------------------------


@contextmanager
def progress(total: int) -> Iterator[Callable[[Result, int], None]]:
    """A line that says how far it is, on a terminal."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as line:
        task = line.add_task("", total=total)

        def step(result: Result, failed: int) -> None:
            told = f"{failed} failed, last {result.storm} {result.seed}"
            line.update(task, advance=1, description=told)

        yield step


def table(rows: list[Row]) -> Table:
    """The rows, for a terminal or a pipe."""
    made = Table("storm", box=None, pad_edge=False)
    for name in ("seeds", "failed", "seconds of one", "dropped faults"):
        made.add_column(name, justify="left" if name.startswith("dropped") else "right")
    for row in rows:
        each = f"{row.seconds / row.played:.1f}" if row.played else ""
        gone = ", ".join(f"{count} {name}" for name, count in sorted(row.dropped.items()))
        made.add_row(row.storm, str(row.played), str(row.failed), each, gone or "none")
    return made


def asked(words: list[str] | None) -> argparse.Namespace:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m tests.faults.seeds", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--seeds", type=int, default=20, help="how many, of each storm")
    made.add_argument("--seed", type=int, help="one seed alone")
    made.add_argument("--first", type=int, default=1, help="the first of the seeds")
    made.add_argument("--storm", action="append", choices=NAMES, help="of these alone")
    made.add_argument("--jobs", type=int, help="played at a time; two for each core")
    made.add_argument("--minutes", type=float, help="begin none after so long")
    made.add_argument("--json", action="store_true", help="print all results as JSON")
    return made.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Play, and print what was found."""
    args = asked(words)
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    storms = args.storm or NAMES
    tasks = [(storm, seed) for seed in seeds for storm in storms]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    until = time.monotonic() + (args.minutes * 60 if args.minutes else float("inf"))
    rows = {storm: Row(storm) for storm in storms}
    results: list[Result] = []
    began = time.monotonic()
    with progress(len(tasks)) as step:

        def tell(result: Result) -> None:
            results.append(result)
            rows[result.storm].add(result)
            step(result, sum(row.failed for row in rows.values()))

        play(tasks, args.jobs or JOBS_EACH_CORE * (cores or 1), tell, until)
    failed = sorted((one for one in results if one.failure), key=lambda one: (one.storm, one.seed))
    if args.json:
        told: dict[str, Any] = {
            "seconds": round(time.monotonic() - began, 1),
            "storms": [vars(row) for row in rows.values()],
            "results": [vars(one) | {"again": one.again} for one in results],
        }
        print(json.dumps(told, indent=1))
    else:
        report(list(rows.values()), failed, alone=len(tasks) == 1)
    return int(bool(failed))


def report(rows: list[Row], failed: list[Result], alone: bool) -> None:
    """Print the table, and each failure with the line that repeats it."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for one in failed:
        lines = one.failure.strip().splitlines()
        last = next(line for line in reversed(lines) if not line.startswith("explained by: "))
        print(one.failure if alone else f"{one.storm}, seed {one.seed}: {last[:400]}")
    console.print(table(rows))
    for one in failed:
        print(f"again: {one.again}")


if __name__ == "__main__":
    if sys.argv[1:] == [WORD]:
        serve()
    else:
        raise SystemExit(main())
