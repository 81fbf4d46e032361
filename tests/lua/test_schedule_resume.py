"""schedule_resume.lua on a real server."""

from __future__ import annotations

from rmq.features.schedules import scripts
from tests.lua.scheduled import set_schedule


def resume(box, revision: bytes = b"1"):
    return scripts.schedule_resume(box.keys, "report", revision, 5000, 5007)


def test_resumed_schedule_goes_on_with_the_time_given(box):
    set_schedule(box)
    box.run(scripts.schedule_pause(box.keys, "report"))
    before = box.state()

    assert box.run(resume(box)) == 1

    assert box.changed(before) == {
        ("schedules", b"report:next"): b"5000",
        ("schedule_times", b"report"): 5007,
    }


def test_resuming_twice_changes_nothing_the_second_time(box):
    set_schedule(box)
    box.run(scripts.schedule_pause(box.keys, "report"))
    box.run(resume(box))
    after = box.state()

    assert box.run(resume(box)) == 0

    assert box.state() == after


def test_schedule_that_is_not_paused_keeps_its_time(box):
    set_schedule(box)
    before = box.state()

    assert box.run(resume(box)) == 0

    assert box.state() == before


def test_schedule_that_has_changed_stays_paused(box):
    set_schedule(box)
    box.run(scripts.schedule_pause(box.keys, "report"))
    before = box.state()

    assert box.run(resume(box, b"2")) == -2

    assert box.state() == before


def test_missing_schedule_is_not_created(box):
    before = box.state()

    assert box.run(resume(box)) == -1

    assert box.state() == before
