"""`python -m bench.soak check`: the verdict on a history, as text, as JSON and as an exit code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.soak.histories import Story, sound


def write(path: Path, story: Story) -> Path:
    path.write_text(
        "".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in story.events).replace(
            ', "settings": null', ""
        )
    )
    return path


@pytest.fixture
def history(tmp_path: Path) -> Callable[[Story], Path]:
    return lambda story: write(tmp_path / "history.jsonl", story)


def test_a_sound_history_passes(run, history):
    done = run("check", history(sound(120).end()))

    assert (done.exit_code, done.stderr.count("\n")) == (0, 1)
    assert "kill-consumer      1" in done.stdout
    assert "mutants caught 1/1" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["verdict", "pass"]


def test_a_lost_message_fails_and_is_named(run, history):
    done = run("check", history(sound(120).send(7).end()))

    assert done.exit_code == 1
    assert "m7: answered, and never delivered" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["verdict", "fail"]


def test_all_findings_are_in_json(run, history):
    story = sound(120)
    for number in range(20):
        story.send(number)

    done = run("check", history(story.end()), "--json")

    said = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (said["verdict"], len(said["findings"]["lost"])) == ("fail", 20)
    assert said["faults"][0]["name"] == "kill-consumer"
    assert said["controls"] == {"settle-first": True}


def test_a_table_shows_some_findings_and_says_how_many_more(run, history):
    story = sound(120)
    for number in range(20):
        story.send(number)

    shown = run("check", history(story.end())).stdout

    assert "and 15 more; --json has all" in shown


def test_a_history_that_proves_nothing_is_exit_code_7(run, history):
    done = run("check", history(sound(4).end()))

    assert done.exit_code == 7
    assert "unknown (4 sends were answered, fewer than 100)" in done.stdout
    assert run("check", history(sound(4).end()), "--least-sends", 4).exit_code == 0


def test_an_empty_history_is_unknown(run, tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("")

    assert run("check", path).exit_code == 7


def test_a_line_that_is_no_event_is_named(run, history):
    path = history(sound(4))
    path.write_text(path.read_text() + '{"type": "ok", "op": "send", "t": 1}\n')

    done = run("check", path)

    assert done.exit_code == 1
    assert f"{path}: line {len(sound(4).events) + 1}: field 'wall' is missing" in done.stderr


def test_a_file_that_is_not_there_is_one_line(run, tmp_path):
    done = run("check", tmp_path / "none.jsonl")

    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "No such file" in done.stderr


def test_text_of_others_cannot_control_the_terminal(run, history):
    story = sound(120).send(7, id="m\x1b[31m7")

    shown = run("check", history(story.end())).stdout

    assert "\x1b" not in shown
    assert "m\\x1b[31m7" in shown
