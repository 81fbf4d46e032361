"""The examples of changes that come once, as a user runs them: on SQLite and an embedded server."""

from __future__ import annotations

from pathlib import Path

from tests.examples.running import EXAMPLES, run, run_forked


def test_a_consumer_that_is_too_late_writes_nothing(tmp_path: Path) -> None:
    done = run_forked(tmp_path, str(EXAMPLES / "fencing.py"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "slow   has 300, fence 1, and falls asleep",
        "quick  wrote 300, fence 2",
        "quick  wrote 250, fence 3",
        "slow   could not write 300, fence 1",
        "slow   learns from its ack that it had lost its lease",
        "tea costs 250",
    ]


def test_without_the_fence_it_is_seen_to_overwrite_a_newer_price(tmp_path: Path) -> None:
    """Negative control."""
    done = run_forked(tmp_path, str(EXAMPLES / "fencing.py"), "--unfenced")

    assert done.returncode == 1, done.stderr
    assert "slow   wrote 300, fence 1" in done.stdout
    assert done.stdout.splitlines()[-1] == "tea costs 300, and should cost 250"


def test_each_recipe_does_its_change_once_of_three_copies(tmp_path: Path) -> None:
    done = run(tmp_path, str(EXAMPLES / "recipes.py"))

    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert len(lines) == 9
    assert sum(line.endswith(" done") for line in lines) == 3
    assert last == "tea costs 300; Ada has 970 and 3 points"
