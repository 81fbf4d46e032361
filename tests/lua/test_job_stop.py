"""job_stop.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.dead_letters.jobs import scripts
from tests.lua.jobs import JOB, KEY, LOG, begin, changed, clear, fields, step


def stop(box):
    return box.run(scripts.job_stop("rmq", JOB, 60))


def test_one_state_becomes_another_and_a_second_run_finds_that(box):
    begin(box)
    box.redis.hset(KEY, "state", "running")
    before = fields(box)

    assert stop(box) == (1, box.clock.now_ms)

    after = fields(box)
    assert changed(before, after) == {"state": "stopped", "ended": str(box.clock.now_ms)}
    assert stop(box) == (0, box.clock.now_ms)
    assert fields(box) == after


@pytest.mark.parametrize("state", ["stopping", "stopped", "done"])
def test_a_job_of_another_state_stays_as_it_is(box, state):
    begin(box)
    box.redis.hset(KEY, "state", state)
    before = fields(box)

    assert stop(box).state == 0
    assert fields(box) == before


def test_a_job_that_is_not_there_is_not_made(box):
    clear(box)

    assert stop(box).state == -1
    assert fields(box) == {}


def test_a_job_with_a_batch_on_its_way_stops_after_it(box):
    begin(box, "me")
    box.run(step(ids=box.ids(1)))

    assert stop(box).state == 1
    assert fields(box)["state"] == "stopping"
    assert box.run(step(number=1, letters="1"))[:2] == (1, "stopped")
    assert fields(box)["count_1"] == "1"


def test_a_job_that_stopped_expires(box):
    begin(box)
    stop(box)

    assert 0 < box.redis.ttl(KEY) <= 60


def test_the_log_of_a_job_that_stopped_while_paused_expires_with_it(box):
    begin(box, "me")
    box.run(step(ids=box.ids(1)))
    box.run(scripts.job_pause("rmq", JOB))
    box.run(step(number=1, letters="1"))
    assert box.redis.ttl(LOG) == -1

    stop(box)

    assert 0 < box.redis.ttl(LOG) <= 60
