"""schedule_due.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.schedules import scripts
from rmq.features.schedules.scripts import STALE, DueReply, DueSchedule
from tests.lua.scheduled import EVERY_MS, set_schedule


def test_nothing_is_due_before_the_jitter_of_the_time_has_passed(box):
    next_ms = box.clock.now_ms + EVERY_MS
    set_schedule(box)
    before = box.state()

    assert box.run(scripts.schedule_due(box.keys, b"0")).wait_ms == EVERY_MS + 7
    box.clock.advance((next_ms + 6 - box.clock.now_ms) / 1000)

    assert box.run(scripts.schedule_due(box.keys, b"0")) == DueReply(box.clock.now_ms, 1, [])
    box.clock.advance(0.001)
    assert box.run(scripts.schedule_due(box.keys, b"0")) == DueReply(
        next_ms + 7, -1, [DueSchedule("report", b"definition", b"1", next_ms)]
    )
    assert box.state() == before


def test_no_schedules_is_no_wait(box):
    before = box.state()

    assert box.run(scripts.schedule_due(box.keys, b"0")) == DueReply(box.clock.now_ms, -1, [])

    assert box.state() == before


def test_paused_schedule_is_never_due(box):
    set_schedule(box)
    box.run(scripts.schedule_pause(box.keys, "report"))
    box.clock.advance(1_000_000)

    assert box.run(scripts.schedule_due(box.keys, b"0")) == DueReply(box.clock.now_ms, -1, [])


def test_the_earliest_come_first_up_to_the_limit(box):
    now = box.clock.now_ms
    for name, ago in (("a", 10), ("b", 30), ("c", 20)):
        set_schedule(box, name, next_ms=now - ago, due_ms=now - ago)

    reply = box.run(scripts.schedule_due(box.keys, b"0", 2))

    assert [due.name for due in reply.due] == ["b", "c"]


def test_reply_ends_before_it_grows_over_a_mebibyte(box):
    now = box.clock.now_ms
    for name, ago in (("a", 30), ("b", 20), ("c", 10)):
        definition = name.encode() * 600_000
        set_schedule(box, name, definition=definition, next_ms=now - ago, due_ms=now - ago)

    reply = box.run(scripts.schedule_due(box.keys, b"0"))

    assert [due.name for due in reply.due] == ["a"]
    assert reply.wait_ms == 0


def test_another_generation_than_the_one_listed_is_said(box):
    now = box.clock.now_ms
    set_schedule(box)
    box.run(scripts.schedule_delete(box.keys, "report"))
    set_schedule(box, next_ms=now - 9, due_ms=now - 9, generation=b"1")

    assert box.run(scripts.schedule_due(box.keys, b"0")) == DueReply(now, STALE, [])
    assert len(box.run(scripts.schedule_due(box.keys, b"1")).due) == 1


@pytest.mark.fault("F21")
def test_schedules_that_were_moved_by_a_clock_that_was_ahead_are_returned_until_it_is_there(box):
    names = [f"s{n:04}" for n in range(1500)]
    next_ms = box.clock.now_ms + 3_700_000
    for name in names:
        set_schedule(box, name, next_ms=next_ms, due_ms=next_ms, most=2000)
    ahead = {"clock": box.clock.now_ms + 3_600_000, "s0003:moved": box.clock.now_ms + 3_600_000}
    box.redis.hset(box.keys.schedules, mapping=ahead | {"s0004:moved": box.clock.now_ms + 60_000})
    before, seen = box.state(), []

    for _ in range(2):  # a thousand are looked at
        reply = box.run(scripts.schedule_due(box.keys, b"0"))
        seen += reply.due
        box.clock.advance(1)

    assert seen == [DueSchedule("s0003", b"definition", b"4", next_ms)]
    box.clock.advance(3540)
    assert box.run(scripts.schedule_due(box.keys, b"0")).due == []
    assert box.state() == before


@pytest.mark.fault("F21")
def test_no_more_are_returned_than_the_limit_after_the_clock_was_set_back(box):
    now = box.clock.now_ms
    for name in "abcd":
        set_schedule(box, name, next_ms=now + 3_700_000, due_ms=now + 3_700_000)
    ahead = dict.fromkeys(["clock", *(f"{name}:moved" for name in "abcd")], now + 3_600_000)
    box.redis.hset(box.keys.schedules, mapping=ahead)
    set_schedule(box, "due", next_ms=now, due_ms=now)

    reply = box.run(scripts.schedule_due(box.keys, b"0", 3))

    assert [due.name for due in reply.due] == ["due", "a", "b"]
