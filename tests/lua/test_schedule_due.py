"""schedule_due.lua on a real server."""

from __future__ import annotations

from rmq.protocol import commands
from rmq.protocol.commands import DueReply, DueSchedule
from rmq.protocol.commands.recurring import STALE
from tests.lua.scheduled import EVERY_MS, set_schedule


def test_nothing_is_due_before_the_jitter_of_the_time_has_passed(box):
    next_ms = box.clock.now_ms + EVERY_MS
    set_schedule(box)
    before = box.state()

    assert box.run(commands.schedule_due(box.keys, b"0")).wait_ms == EVERY_MS + 7
    box.clock.advance((next_ms + 6 - box.clock.now_ms) / 1000)

    assert box.run(commands.schedule_due(box.keys, b"0")) == DueReply(box.clock.now_ms, 1, [])
    box.clock.advance(0.001)
    assert box.run(commands.schedule_due(box.keys, b"0")) == DueReply(
        next_ms + 7, -1, [DueSchedule("report", b"definition", b"1", next_ms)]
    )
    assert box.state() == before


def test_no_schedules_is_no_wait(box):
    before = box.state()

    assert box.run(commands.schedule_due(box.keys, b"0")) == DueReply(box.clock.now_ms, -1, [])

    assert box.state() == before


def test_paused_schedule_is_never_due(box):
    set_schedule(box)
    box.run(commands.schedule_pause(box.keys, "report"))
    box.clock.advance(1_000_000)

    assert box.run(commands.schedule_due(box.keys, b"0")) == DueReply(box.clock.now_ms, -1, [])


def test_the_earliest_come_first_up_to_the_limit(box):
    now = box.clock.now_ms
    for name, ago in (("a", 10), ("b", 30), ("c", 20)):
        set_schedule(box, name, next_ms=now - ago, due_ms=now - ago)

    reply = box.run(commands.schedule_due(box.keys, b"0", 2))

    assert [due.name for due in reply.due] == ["b", "c"]


def test_reply_ends_before_it_grows_over_a_mebibyte(box):
    now = box.clock.now_ms
    for name, ago in (("a", 30), ("b", 20), ("c", 10)):
        definition = name.encode() * 600_000
        set_schedule(box, name, definition=definition, next_ms=now - ago, due_ms=now - ago)

    reply = box.run(commands.schedule_due(box.keys, b"0"))

    assert [due.name for due in reply.due] == ["a"]
    assert reply.wait_ms == 0


def test_another_generation_than_the_one_listed_is_said(box):
    now = box.clock.now_ms
    set_schedule(box)
    box.run(commands.schedule_delete(box.keys, "report"))
    set_schedule(box, next_ms=now - 9, due_ms=now - 9, generation=b"1")

    assert box.run(commands.schedule_due(box.keys, b"0")) == DueReply(now, STALE, [])
    assert len(box.run(commands.schedule_due(box.keys, b"1")).due) == 1
