"""A topic with several hundred thousand dead letters: `python -m bench.dead_letters`.

It measures how long the command line takes to show some, how long Redis is busy with one call of a
scan, and how fast a job redrives them. Commands are timed as a user starts them, with compiled
modules.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import rmq
from bench import report
from bench.machine import server
from bench.measurement import Measurement
from tests.servers import Server, engines

CAUSES = (
    "TimeoutError: no answer of the shop after 30 s",
    "ConnectionRefusedError: port 443",
)
FILL = 10_000  # messages that are sent and then dead-lettered together
SCAN = 'error contains "nothing"'  # fits no letter, so all are scanned
RATE = 500


def bury(client: rmq.Client, name: str, count: int, slots: int) -> None:
    """Create a topic with dead letters of alternating causes."""
    topic = client.topic(name, slots=slots)
    for start in range(0, count, FILL):
        numbers = range(start, min(count, start + FILL))
        topic.send_many([rmq.Outgoing({"n": n, "fill": "x" * 100}) for n in numbers])
        with topic.consumer() as consumer:
            left = len(numbers)
            while left:
                batch = consumer.receive(1000)
                left -= len(batch)
                for place, cause in enumerate(CAUSES):
                    consumer.reject([d for d in batch if d.body["n"] % len(CAUSES) == place], cause)
    time.sleep(0.002)  # a job starts after the death of the last letter


class Shell:
    """Runs the command `rmq` as a process."""

    def __init__(self, url: str, compiled: str) -> None:
        self._env = {**os.environ, "RMQ_URL": url, "PYTHONPYCACHEPREFIX": compiled}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)

    def seconds(self, *words: str, first_row: bool = False, env: Mapping[str, str] = {}) -> float:
        """Return the duration of a command, or the time until its first row."""
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "rmq", *words],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**self._env, **env},
        ) as process:  # fmt: skip
            assert process.stdout is not None
            if first_row:
                process.stdout.readline()
                if not process.stdout.readline():
                    raise RuntimeError(f"rmq {' '.join(words)} printed no row")
                took = time.perf_counter() - began
            process.stdout.read()
        return took if first_row else time.perf_counter() - began


def _waited_s(pid: int) -> float:
    """Return how long a process was ready to run but had no CPU, s."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextlib.contextmanager
def first_of_all(pid: int) -> Iterator[bool]:
    """Give a process priority over all others; yield whether that is permitted."""
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(50))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def _scan(own: Server, client: rmq.Client, topic: str) -> tuple[float, float]:
    """Scan all dead letters; return the longest script, ms, and Redis's wait for a CPU, s."""
    assert own.process is not None
    with own.raw() as raw:
        raw.config_set("slowlog-log-slower-than", 500)
        raw.config_set("slowlog-max-len", 100_000)
        raw.slowlog_reset()
        before = _waited_s(own.process.pid)
        client.admin.redrive(topic, filter=SCAN, dry_run=True)
        waited = _waited_s(own.process.pid) - before
        entries: Any = raw.slowlog_get(100_000)
    lengths = [each["duration"] for each in entries if each["command"].startswith(b"EVALSHA")]
    return max(lengths, default=0) / 1000, waited


def scans(own: Server, client: rmq.Client, topic: str, rounds: int) -> list[Measurement]:
    """Measure the longest call of a scan, with Redis at normal priority and before all others."""
    usual = [_scan(own, client, topic) for _ in range(rounds)]
    found = [
        Measurement("scan", "longest call, of SLOWLOG", [ms for ms, _ in usual], unit="ms"),
        Measurement("scan", "Redis waited for a CPU", [s for _, s in usual], unit="s"),
    ]
    assert own.process is not None
    with first_of_all(own.process.pid) as permitted:
        first = [_scan(own, client, topic) for _ in range(rounds)] if permitted else []
    if first:
        found += [
            Measurement(
                "scan", "longest call, Redis goes first", [ms for ms, _ in first],
                unit="ms", target=5.0, at_most=True,
            ),
            Measurement("scan", "then it waited for a CPU", [s for _, s in first], unit="s"),
        ]  # fmt: skip
    return found


def commands(shell: Shell, topic: str, rows: int, rounds: int) -> list[Measurement]:
    """Measure commands as processes, in turn."""
    first, table, ratio, complete = [], list[float](), list[float](), list[float]()
    typed = {"_RMQ_COMPLETE": "bash_complete", "COMP_WORDS": "rmq peek ", "COMP_CWORD": "2"}
    shell.seconds("dlq", "ls", topic)  # compiles
    for _ in range(rounds):
        first.append(shell.seconds("dlq", "ls", topic, first_row=True))
        table.append(shell.seconds("dlq", "ls", topic, "--limit", str(rows)))
        ratio.append(table[-1] / shell.seconds("dlq", "ls", topic, "--limit", str(rows), "--json"))
        complete.append(shell.seconds(env=typed) / shell.seconds("--help"))
    return [
        Measurement("commands", "first row of rmq dlq ls", first, "s", 1.0, True),
        Measurement("commands", f"a table of {rows:,} rows", table, "s", 3.0, True),
        Measurement("commands", "the same / --json", ratio, "x"),
        Measurement("commands", "completing a topic / rmq --help", complete, "x"),
    ]


def _sent_per_s(client: rmq.Client, name: str, count: int, slots: int, rate: float | None) -> float:
    """Redrive `count` dead letters of twice as many by a job; return how many per second."""
    bury(client, name, count * len(CAUSES), slots)
    job = client.admin.job_start(name, conditions={"filter": f'error="{CAUSES[0]}"'}, rate=rate)
    began = time.perf_counter()
    done = client.admin.job_run(job.id).done
    took = time.perf_counter() - began
    client.admin.topic_delete(name, force=True)
    if done != count:
        raise RuntimeError(f"the job sent {done} of {count} back")
    return done / took


def jobs(client: rmq.Client, count: int, slots: int, rounds: int) -> list[Measurement]:
    """Measure jobs that redrive half of the dead letters, at full speed and at a rate."""
    fast = [_sent_per_s(client, f"fast-{n}", count, slots, None) for n in range(rounds)]
    rated = [_sent_per_s(client, f"rated-{n}", 10 * RATE, slots, RATE) for n in range(rounds)]
    return [
        Measurement("jobs", f"redrive of {count:,} of {2 * count:,}", fast, "messages/s", 20_000.0),
        Measurement(
            "jobs", f"at {RATE}/s: rate / {RATE}", [r / RATE for r in rated], "x", 1.05, True
        ),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.dead_letters", description=__doc__)
    parser.add_argument("--letters", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--rows", type=int, default=50_000, help="of the table, default 50000")
    parser.add_argument("--sent", type=int, default=100_000, help="by a job, default 100000")
    parser.add_argument("--slots", type=int, default=4, help="default 4")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--engine", choices=engines(), help="default: PATH's redis-server")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table."""
    options = _options()
    load = os.getloadavg()[0]
    with (
        server(options.engine) as own,
        rmq.Client(own.url, timeout=60) as client,
        tempfile.TemporaryDirectory() as compiled,
    ):
        bury(client, "many", options.codes, options.slots)
        figures = [
            *commands(Shell(own.url, compiled), "many", options.rows, options.rounds),
            *scans(own, client, "many", options.rounds),
            *jobs(client, options.sent, options.slots, options.rounds),
        ]
    console = report.console(width=110)
    console.print(report.table(figures))
    loads = f"{load:.1f} before, {os.getloadavg()[0]:.1f} after"
    console.print(f"{options.codes:,} letters, {options.slots} slots; load {loads}")


if __name__ == "__main__":
    main()
