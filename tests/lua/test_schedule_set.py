"""schedule_set.lua on a real server."""

from __future__ import annotations

from rmq.features.schedules import scripts
from tests.lua.scheduled import EVERY_MS, fields, row, set_schedule


def test_new_schedule_is_stored_with_its_next_time(box):
    before, next_ms = box.state(), box.clock.now_ms + EVERY_MS

    assert set_schedule(box) == "created"

    assert box.changed(before) == {
        **fields(next_ms, moved=b"%d" % box.clock.now_ms),
        ("schedules", b"revision"): b"1",
        ("schedules", b"clock"): b"%d" % box.clock.now_ms,
        ("schedule_times", b"report"): next_ms + 7,
    }


def test_the_same_definition_changes_nothing_and_keeps_the_next_time(box):
    set_schedule(box)
    before = box.state()
    box.clock.advance(10)

    assert set_schedule(box) == "unchanged"

    assert box.state() == before


def test_another_body_keeps_the_next_time(box):
    next_ms = box.clock.now_ms + EVERY_MS
    set_schedule(box)
    before = box.state()
    box.clock.advance(10)

    assert set_schedule(box, definition=b"another") == "updated"

    assert box.changed(before) == {
        ("schedules", b"report:definition"): b"another",
        ("schedules", b"report:revision"): b"2",
        ("schedules", b"revision"): b"2",
    }
    assert row(box).next_ms == next_ms


def test_another_timing_begins_with_the_time_given(box):
    set_schedule(box)
    before = box.state()

    assert set_schedule(box, timing="5000|||0", next_ms=5000, due_ms=5000) == "updated"

    assert box.changed(before) == {
        ("schedules", b"report:timing"): b"5000|||0",
        ("schedules", b"report:revision"): b"2",
        ("schedules", b"revision"): b"2",
        ("schedules", b"report:next"): b"5000",
        ("schedule_times", b"report"): 5000,
    }


def test_paused_schedule_stays_paused_when_its_timing_changes(box):
    set_schedule(box)
    box.run(scripts.schedule_pause(box.keys, "report"))

    assert set_schedule(box, timing="5000|||0", next_ms=5000) == "updated"

    assert row(box).due_ms is None
    assert row(box).next_ms == 5000


def test_schedule_past_its_last_time_goes_on_when_its_timing_changes(box):
    set_schedule(box)
    box.redis.hset(box.keys.schedules, "report:next", "")
    box.redis.zadd(box.keys.schedule_times, {"report": "inf"})

    assert set_schedule(box, timing="5000|||0", next_ms=5000, due_ms=5001) == "updated"

    assert row(box).due_ms == 5001


def test_topic_that_is_full_of_schedules_takes_no_new_one_but_changes_those_it_has(box):
    set_schedule(box, most=1)
    before = box.state()

    assert set_schedule(box, "another", most=1) == "full"

    assert box.state() == before
    assert set_schedule(box, definition=b"another", most=1) == "updated"


def test_deleted_schedule_that_is_set_again_gets_a_revision_of_its_own(box):
    set_schedule(box)
    box.run(scripts.schedule_delete(box.keys, "report"))

    assert set_schedule(box, generation=b"1") == "created"

    assert row(box).revision == b"2"


def test_schedule_listed_under_another_generation_is_not_stored(box):
    set_schedule(box)
    box.run(scripts.schedule_delete(box.keys, "report"))
    before = box.state()

    assert set_schedule(box) == "stale"

    assert box.state() == before
