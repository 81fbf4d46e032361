"""job_take.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.dead_letters.jobs import scripts
from tests.lua.jobs import JOB, KEY, begin, changed, clear, fields


def take(box, runner, hold_ms=10_000):
    return box.run(scripts.job_take("rmq", JOB, runner, hold_ms))


def test_a_free_job_is_taken_and_all_of_it_is_told(box):
    begin(box)
    before = fields(box)

    taken = take(box, "me")

    assert (taken.state, taken.now_ms) == (1, box.clock.now_ms)
    assert {name: value.decode() for name, value in taken.fields.items()} == fields(box)
    assert changed(before, fields(box)) == {
        "runner": "me",
        "until": str(box.clock.now_ms + 10_000),
    }


def test_only_its_runner_renews_the_lease_until_it_ends(box):
    begin(box, "me")
    box.clock.advance(6)
    before = fields(box)

    assert take(box, "other").state == 0
    assert fields(box) == before
    assert take(box, "me").state == 1
    box.clock.advance(9.999)
    assert take(box, "other").state == 0
    box.clock.advance(0.001)
    assert take(box, "other").state == 1
    assert take(box, "me").state == 0


def test_a_lease_that_was_ended_is_free_at_once_and_ending_it_again_changes_nothing(box):
    begin(box, "me")

    assert take(box, "me", 0).state == 0
    assert (fields(box)["runner"], fields(box)["until"]) == ("", "0")
    assert take(box, "other").state == 1
    before = fields(box)
    assert take(box, "me", 0).state == 0
    assert fields(box) == before


@pytest.mark.parametrize("state", ["paused", "stopped", "done"])
def test_a_job_that_does_not_run_is_not_taken(box, state):
    begin(box)
    box.redis.hset(KEY, "state", state)
    before = fields(box)

    assert take(box, "me").state == 0
    assert fields(box) == before


def test_a_job_that_is_stopping_is_taken_to_record_its_batch(box):
    begin(box)
    box.redis.hset(KEY, "state", "stopping")

    assert take(box, "me").state == 1


def test_a_job_that_is_not_there_is_not_made(box):
    clear(box)

    assert take(box, "me") == (-1, box.clock.now_ms, {})
    assert fields(box) == {}
