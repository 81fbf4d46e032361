"""The main job, as a user runs it: a process of its own on an embedded server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import any_binary

EXAMPLES = Path(__file__).parents[2] / "examples"

FORGETFUL = """
import sys
sys.path.insert(0, {examples!r})
import flights

note, dropped = flights.Books.add_settled, []

def forget_one(books, delivery):
    if delivery.body.get("late", 0) == 0 or dropped:
        note(books, delivery)
    else:
        dropped.append(delivery.id)

flights.Books.add_settled = forget_one
sys.exit(flights.main(["--seconds", "2", "--json"]))
"""


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    environment["RMQ_REDIS_SERVER"] = any_binary()
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_a_day_of_flights_loses_nothing_and_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, str(EXAMPLES / "flights.py"), "--seconds", "4", "--json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["sent"], report["alerts"], report["lost"], report["dead"]) == (842, 51, 0, 1)
    assert report["duplicates"] == report["early"] == 0
    assert report["retried"] > 20
    assert report["merged"] > 0
    refreshes = report["refreshes_asked"] - report["merged"]
    assert report["refreshes_asked"] == 841
    assert report["delivered"] == 842 + 51 + refreshes + report["retried"]


def test_a_second_day_starts_clean_and_ends_with_one_dead_letter_again(tmp_path: Path) -> None:
    script = str(EXAMPLES / "flights.py")
    first = run(tmp_path, script, "--seconds", "1", "--json")

    second = run(tmp_path, script, "--seconds", "1")

    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    row = next(line for line in second.stdout.splitlines() if line.split()[:1] == ["dead"])
    assert row.split()[1] == "1"
    assert "dlq ls flights.departures" in second.stdout


def test_a_settlement_that_nobody_noted_is_reported_as_lost(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", FORGETFUL.format(examples=str(EXAMPLES)))

    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["lost"] == 1


@pytest.mark.parametrize("seconds", ["0", "nan", "1e9"])
def test_a_day_of_impossible_length_is_refused(tmp_path: Path, seconds: str) -> None:
    done = run(tmp_path, str(EXAMPLES / "flights.py"), "--seconds", seconds)

    assert done.returncode == 2
    assert "--seconds" in done.stderr


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / ".rmq").mkdir()
    with (tmp_path / ".rmq" / "flights.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run(tmp_path, str(EXAMPLES / "flights.py"), "--seconds", "4")
    assert done.returncode == 1
    assert "another run is under way here" in done.stderr
    assert "lost" not in done.stdout
