"""job_step.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.ids import member_of
from tests.lua.jobs import KEY, LOG, begin, changed, clear, fields, step, whole


def test_a_batch_is_noted_and_a_second_run_changes_nothing(box):
    begin(box, "me")
    a, b = box.ids(2)
    before = fields(box)
    note = {"slot": 3, "ids": [a, b], "examined": 7, "cursor": "here"}

    assert box.run(step(**note)) == (1, "running", 1, box.clock.now_ms)

    after = fields(box)
    assert changed(before, after) == {
        "batch": "1", "slot": "3", "members": (member_of(a) + member_of(b)).decode("latin-1"),
        "examined": "7", "cursor": "here", "noted": str(box.clock.now_ms),
    }  # fmt: skip
    assert box.run(step(**note | {"cursor": "elsewhere"})) == (1, "running", 1, box.clock.now_ms)
    assert fields(box) == after


def test_a_batch_is_recorded_once_and_the_next_one_noted(box):
    begin(box, "me")
    a, b, c = box.ids(3)
    box.run(step(slot=3, ids=[a, b]))
    then = {"number": 1, "letters": "10", "slot": 4, "ids": [c], "examined": 3, "cursor": "on"}

    assert box.run(step(**then))[:3] == (1, "running", 2)

    found, log = whole(box)
    assert (found["count_1"], found["count_0"], found["recorded"], found["batch"]) == (
        "1", "1", "1", "2",
    )  # fmt: skip
    assert log == [b"13:" + member_of(a), b"03:" + member_of(b)]
    assert box.run(step(**then))[:3] == (1, "running", 2)
    assert whole(box) == (found, log)


def test_only_the_newest_outcomes_are_kept(box):
    begin(box, "me")
    ids = box.ids(7)
    box.run(step(ids=ids))

    box.run(step(number=1, letters="1" * 7))

    assert box.redis.lrange(LOG, 0, -1) == [b"10:" + member_of(id) for id in ids[2:]]
    assert fields(box)["count_1"] == "7"


def test_the_last_step_ends_the_job_which_then_expires(box):
    begin(box, "me")
    box.run(step(ids=box.ids(1)))

    assert box.run(step(number=1, letters="1", last=True))[:2] == (1, "done")

    found = fields(box)
    assert (found["state"], found["ended"]) == ("done", str(box.clock.now_ms))
    assert (found["runner"], found["until"]) == ("", "0")
    assert 0 < box.redis.ttl(KEY) <= 60
    assert 0 < box.redis.ttl(LOG) <= 60
    assert box.run(step(number=1, letters="1", last=True))[:2] == (0, "done")
    assert fields(box) == found


@pytest.mark.parametrize(("state", "then"), [("paused", "paused"), ("stopping", "stopped")])
def test_a_job_that_is_to_halt_records_its_batch_and_notes_none(box, state, then):
    begin(box, "me")
    box.run(step(ids=box.ids(1)))
    box.redis.hset(KEY, "state", state)

    assert box.run(step(number=1, letters="1", ids=box.ids(1)))[:3] == (1, then, 1)

    found = fields(box)
    assert (found["state"], found["recorded"], found["count_1"]) == (then, "1", "1")
    assert "members" not in found


def test_another_runner_changes_nothing(box):
    begin(box, "me")
    box.run(step(ids=box.ids(1)))
    before = whole(box)

    assert box.run(step("other", number=1, letters="1", last=True))[:3] == (0, "running", 1)
    assert whole(box) == before


def test_letters_that_are_not_those_of_the_batch_are_refused(box):
    begin(box, "me")
    box.run(step(ids=box.ids(2)))
    before = whole(box)

    with pytest.raises(Exception, match="RMQARG letters"):
        box.run(step(number=1, letters="1"))

    assert whole(box) == before


def test_a_job_that_is_not_there_is_not_made(box):
    clear(box)

    assert box.run(step())[0] == -1
    assert whole(box) == ({}, [])


def test_a_thousand_in_one_batch(box):
    begin(box, "me")
    box.run(step(ids=box.ids(1000), most=10_000))

    box.run(step(number=1, letters="1" * 1000, most=10_000, last=True))

    assert box.redis.llen(LOG) == 1000
