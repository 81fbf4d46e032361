"""The main job, as a user runs it: a process of its own on an embedded server."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.examples.running import EXAMPLES, run, run_forked

SCRIPT = str(EXAMPLES / "flights.py")

# One settlement is not noted, and one departure is sent an hour before its time.
WRONG = """
import sys
sys.path.insert(0, {examples!r})
import flights

note, send, dropped = flights.Books.add_settled, flights.Day.send, []

def forget_one(books, delivery):
    if delivery.body.get("late", 0) == 0 or dropped:
        note(books, delivery)
    else:
        dropped.append(delivery.id)

def hurry_one(day):
    send(day)
    day.books.due_ms[next(iter(day.books.due_ms))] += 3_600_000

flights.Books.add_settled, flights.Day.send = forget_one, hurry_one
sys.exit(flights.main(["--seconds", "2", "--json"]))
"""


@pytest.fixture(scope="module")
def first_day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory of a day, and its report."""
    home = tmp_path_factory.mktemp("flights")
    done = run(home, SCRIPT, "--seconds", "4", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return home, json.loads(done.stdout)


def test_a_day_of_flights_loses_nothing_and_says_so(first_day: tuple[Path, Any]) -> None:
    _, report = first_day

    assert (report["sent"], report["alerts"], report["lost"], report["dead"]) == (842, 51, 0, 1)
    assert report["duplicates"] == report["early"] == 0
    assert report["retried"] > 20
    assert report["merged"] > 0
    refreshes = report["refreshes_asked"] - report["merged"]
    assert report["refreshes_asked"] == 841
    assert report["delivered"] == 842 + 51 + refreshes + report["retried"]


@pytest.mark.slow
def test_a_second_day_starts_clean_tells_how_it_goes_and_ends_with_one_dead_letter_again(
    first_day: tuple[Path, Any],
) -> None:
    home, _ = first_day

    second = run(home, SCRIPT, "--seconds", "4")

    assert second.returncode == 0, second.stdout + second.stderr
    lines = second.stdout.splitlines()
    row = next(line for line in lines if line.split()[:1] == ["dead"])
    assert row.split()[1] == "1"
    assert "dlq ls flights.departures" in second.stdout
    assert [line for line in lines if "/842 departed" in line], "silent where nobody sees the bar"


def test_a_settlement_that_nobody_noted_is_lost_and_a_departure_before_its_time_early(
    tmp_path: Path,
) -> None:
    """Negative control."""
    done = run_forked(tmp_path, "-c", WRONG.format(examples=str(EXAMPLES)))

    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["lost"], report["early"]) == (1, 1)
    assert done.stderr.endswith("flights: wrong: 1 lost, 1 early\n")


@pytest.mark.parametrize(
    ("late_max_ms", "load", "told"),
    [
        (1234.5, 6.1, "late by up to 1.2 s: this machine was busy (load 6.1 on 2 cores)"),
        (1234.5, 0.4, "late by up to 1.2 s: this machine was not busy (load 0.4 on 2 cores); "),
        (9.0, 6.1, ""),
        (float("nan"), 6.1, ""),
    ],
)
def test_what_is_late_is_told_with_its_cause(late_max_ms: float, load: float, told: str) -> None:
    spec = importlib.util.spec_from_file_location("flights", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    flights = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(flights)

    found = flights.lateness({"late_max_ms": late_max_ms, "load": load, "cores": 2})

    assert found.startswith(f"Departures were {told}" if told else "")
    assert bool(found) == bool(told)


@pytest.mark.parametrize("seconds", ["0", "nan", "1e9"])
def test_a_day_of_impossible_length_is_refused(tmp_path: Path, seconds: str) -> None:
    done = run_forked(tmp_path, SCRIPT, "--seconds", seconds)

    assert done.returncode == 2
    assert "--seconds" in done.stderr


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / ".rmq").mkdir()
    with (tmp_path / ".rmq" / "flights.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run_forked(tmp_path, SCRIPT, "--seconds", "4")
    assert done.returncode == 1
    assert "another run is under way here" in done.stderr
    assert "lost" not in done.stdout
