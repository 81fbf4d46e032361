"""The rules of all storms: when one has failed, when one is only slow, and what is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import leaks
from tests.faults import seeds
from tests.faults.bank_child import Faults
from tests.faults.bank_scene import fault
from tests.faults.seeds import Result
from tests.faults.storm import END_S, STILL_S, Hurry, Watch, dropped
from tests.faults.worker_child import Book


class Storm:
    """A storm whose time and CPU seconds a test moves."""

    def __init__(self, busy: float = 0.0) -> None:
        self.now_s = self.cpu_s = 0.0
        self.busy = busy  # of a core, while time goes on
        self.watch = Watch(lambda: "its state", lambda: self.cpu_s, lambda: self.now_s)

    def looks(self, seconds: float, *counters: object, each_s: float = 0.5) -> None:
        """Look again and again for so long."""
        until = self.now_s + seconds
        while self.now_s < until:
            self.now_s += each_s
            self.cpu_s += each_s * self.busy
            self.watch.look(*counters)


def test_a_storm_that_stands_still_fails_with_its_state_and_counters() -> None:
    storm = Storm()
    storm.looks(STILL_S - 1, 7, 8)

    with pytest.raises(AssertionError, match=r"stands still for 30 s.*\(7, 8\), its state"):
        storm.looks(3, 7, 8)


def test_where_a_storm_is_is_asked_only_when_it_has_failed() -> None:
    """To ask a topic that is being resized raises."""
    asked: list[float] = []
    storm = Storm()

    def state() -> str:
        asked.append(storm.now_s)
        raise LookupError("its topic is gone")

    storm.watch = Watch(state, lambda: 0.0, lambda: storm.now_s)
    storm.looks(STILL_S - 1, 7)
    assert not asked

    with pytest.raises(AssertionError, match=r"stands still.*LookupError\('its topic is gone'\)"):
        storm.looks(3, 7)


def test_a_counter_that_moves_begins_the_time_anew() -> None:
    storm = Storm()
    for count in range(5):
        storm.looks(STILL_S - 2, count)


def test_a_storm_whose_processes_are_at_work_does_not_stand_still() -> None:
    storm = Storm(busy=0.2)

    storm.looks(5 * STILL_S, 7)


def test_a_storm_whose_processes_end_their_work_in_vain_stands_still() -> None:
    storm = Storm(busy=0.2)
    storm.looks(STILL_S * 3, 7)
    storm.busy = 0.0

    with pytest.raises(AssertionError, match="stands still"):
        storm.looks(STILL_S * 1.5, 7)


def test_time_in_which_the_storm_was_not_given_the_cpu_does_not_count() -> None:
    storm = Storm()

    storm.looks(10 * STILL_S, 7, each_s=15.0)  # looks that took long: 20 of them


def test_a_storm_that_goes_in_circles_is_ended() -> None:
    storm = Storm()

    def go_on() -> None:
        for count in range(round(END_S) + 2):
            storm.looks(1, count)

    with pytest.raises(AssertionError, match=f"no end in {END_S:g} s"):
        go_on()


def test_a_fault_in_a_hurry_comes_at_the_next_pass_of_its_step(tmp_path: Path) -> None:
    hurry = Hurry(tmp_path / "hurry")
    plan = [fault("taken", "raise", after=47)]
    faults = Faults(plan, False, Book(str(tmp_path / "faults")), hurry)
    faults.reach("taken")
    faults.reach("acked")
    hurry.set()

    with pytest.raises(ConnectionError):
        faults.reach("taken")
    faults.reach("taken")  # it was the only one


def test_all_that_wait_for_a_fault_raise_with_it(tmp_path: Path) -> None:
    plan = [fault("taken", "raise", after=3)]
    faults = Faults(plan, True, Book(str(tmp_path / "faults")), Hurry(tmp_path / "hurry"))
    raised: list[bool] = []

    def reach() -> None:
        try:
            faults.reach("taken")
        except ConnectionError:
            raised.append(True)

    threads = [threading.Thread(target=reach) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)

    assert raised == [True] * 3


def test_what_was_planned_and_did_not_happen_is_dropped() -> None:
    planned = ["kill taken", "kill taken", "kill acked"]

    assert dropped(planned, Counter({"kill taken": 1, "kill acked": 1, "go on": 1})) == Counter(
        {"kill taken": 1}
    )


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The seeds that `seeds` has played, of which the bank fails with 3."""
    made: list[tuple[str, int]] = []

    def play(tasks: Any, jobs: int, tell: Any, until: float) -> None:
        for storm, seed in tasks:
            made.append((storm, seed))
            failure = "Traceback\nAssertionError: lost 1" if (storm, seed) == ("bank", 3) else ""
            tell(Result(storm, seed, 2.0, failure, "", {"kill taken": 1}))

    monkeypatch.setattr(seeds, "play", play)
    return made


def test_seeds_are_played_storm_by_storm_and_their_table_is_told(
    played: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert seeds.main(["--seeds", "2", "--storm", "lines", "--storm", "bank"]) == 0

    assert played == [("lines", 1), ("bank", 1), ("lines", 2), ("bank", 2)]
    told = capsys.readouterr()
    assert "2 kill taken" in told.out
    assert told.err == ""  # no progress in a pipe


@pytest.mark.slow  # 3 s of CPU for a tool of `make storms`
def test_a_process_that_plays_leaves_no_file() -> None:
    environ = {k: v for k, v in os.environ.items() if k != leaks.RUN}  # a run of its own
    words = [sys.executable, "-m", "tests.faults.seeds", "--storm", "lines", "--seeds", "1"]
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # as the path of a socket has to be
        done = subprocess.run(
            words, cwd=seeds.ROOT, env=environ | {"TMPDIR": short}, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
        left = list(Path(short).iterdir())

    assert done.returncode == 0, done
    assert left == []


def test_a_seed_that_fails_is_told_with_the_line_that_repeats_it(
    played: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert seeds.main(["--seeds", "5", "--storm", "bank"]) == 1

    told = capsys.readouterr().out
    assert "bank, seed 3: AssertionError: lost 1" in told
    assert "python -m tests.faults.seeds --storm bank --seed 3\n" in told


def test_the_json_has_each_seed(
    played: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert seeds.main(["--seeds", "3", "--storm", "bank", "--json"]) == 1

    told = json.loads(capsys.readouterr().out)
    assert told["storms"] == [
        {"storm": "bank", "played": 3, "failed": 1, "dropped": {"kill taken": 3}, "seconds": 6.0}
    ]
    assert [one["seed"] for one in told["results"]] == [1, 2, 3]


def test_the_storms_that_may_be_asked_for_are_those_that_there_are() -> None:
    from tests.faults.storms import STORMS

    assert tuple(STORMS) == seeds.NAMES
