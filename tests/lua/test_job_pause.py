"""job_pause.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.dead_letters.jobs import scripts
from tests.lua.jobs import JOB, KEY, begin, changed, clear, fields


def pause(box):
    return box.run(scripts.job_pause("rmq", JOB))


def test_one_state_becomes_another_and_a_second_run_finds_that(box):
    begin(box)
    box.redis.hset(KEY, "state", "running")
    before = fields(box)

    assert pause(box) == (1, box.clock.now_ms)

    after = fields(box)
    assert changed(before, after) == {"state": "paused"}
    assert pause(box) == (0, box.clock.now_ms)
    assert fields(box) == after


@pytest.mark.parametrize("state", ["paused", "stopping", "stopped", "done"])
def test_a_job_of_another_state_stays_as_it_is(box, state):
    begin(box)
    box.redis.hset(KEY, "state", state)
    before = fields(box)

    assert pause(box).state == 0
    assert fields(box) == before


def test_a_job_that_is_not_there_is_not_made(box):
    clear(box)

    assert pause(box).state == -1
    assert fields(box) == {}
