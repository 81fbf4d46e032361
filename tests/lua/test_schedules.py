"""schedules.lua on a real server."""

from __future__ import annotations

from rmq.features.schedules import scripts
from rmq.features.schedules.scripts import ScheduleRow
from tests.lua.scheduled import EVERY_MS, set_schedule


def test_one_schedule_is_read_by_its_name(box):
    next_ms = box.clock.now_ms + EVERY_MS
    set_schedule(box)
    set_schedule(box, "another")
    before = box.state()

    reply = box.run(scripts.schedules(box.keys, "report"))

    assert (reply.now_ms, reply.generation) == (box.clock.now_ms, b"0")
    assert reply.rows == [ScheduleRow("report", next_ms + 7, b"definition", b"1", next_ms, None, 0)]
    assert box.state() == before


def test_missing_schedule_has_no_row(box):
    set_schedule(box)
    before = box.state()

    assert box.run(scripts.schedules(box.keys, "repor")).rows == []

    assert box.state() == before


def test_pages_go_by_due_time_with_paused_ones_last(box):
    now = box.clock.now_ms
    for name, ago in (("a", 10), ("b", 30), ("c", 20)):
        set_schedule(box, name, next_ms=now - ago, due_ms=now - ago)
    box.run(scripts.schedule_pause(box.keys, "b"))

    first = box.run(scripts.schedules(box.keys, limit=2)).rows
    second = box.run(scripts.schedules(box.keys, offset=2, limit=2)).rows

    assert [(row.name, row.due_ms) for row in first + second] == [
        ("c", now - 20), ("a", now - 10), ("b", None),
    ]  # fmt: skip
