"""schedule_pause.lua on a real server."""

from __future__ import annotations

import math

from rmq.features.schedules import scripts
from tests.lua.scheduled import set_schedule


def test_paused_schedule_is_never_due_and_keeps_everything_else(box):
    set_schedule(box)
    before = box.state()

    assert box.run(scripts.schedule_pause(box.keys, "report")) == 1

    assert box.changed(before) == {("schedule_times", b"report"): math.inf}


def test_pausing_twice_changes_nothing_the_second_time(box):
    set_schedule(box)
    box.run(scripts.schedule_pause(box.keys, "report"))
    after = box.state()

    assert box.run(scripts.schedule_pause(box.keys, "report")) == 0

    assert box.state() == after


def test_missing_schedule_is_not_created(box):
    before = box.state()

    assert box.run(scripts.schedule_pause(box.keys, "report")) == -1

    assert box.state() == before
