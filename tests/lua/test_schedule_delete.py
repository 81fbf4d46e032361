"""schedule_delete.lua on a real server."""

from __future__ import annotations

from rmq.features.schedules import scripts
from tests.lua.box import GONE
from tests.lua.scheduled import EVERY_MS, fields, set_schedule


def test_last_schedule_that_is_deleted_ends_the_generation(box):
    set_schedule(box)
    before = box.state()

    box.run(scripts.schedule_delete(box.keys, "report"))

    assert box.changed(before)["schedules", b"generation"] == b"1"
    assert box.state()["schedules"] == {b"revision": b"1", b"generation": b"1"}


def test_deleted_schedule_leaves_nothing_but_the_count_of_revisions(box):
    next_ms = box.clock.now_ms + EVERY_MS
    set_schedule(box, "another")
    set_schedule(box)
    before = box.state()

    assert box.run(scripts.schedule_delete(box.keys, "report")) is True

    gone = dict.fromkeys(fields(next_ms, moved=b""), GONE)
    assert box.changed(before) == {**gone, ("schedule_times", b"report"): GONE}


def test_deleting_twice_finds_nothing_the_second_time(box):
    set_schedule(box)
    box.run(scripts.schedule_delete(box.keys, "report"))
    after = box.state()

    assert box.run(scripts.schedule_delete(box.keys, "report")) is False

    assert box.state() == after
