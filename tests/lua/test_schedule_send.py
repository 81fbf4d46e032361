"""schedule_send.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.schedules import scripts
from rmq.kernel.core import ids
from tests.lua.box import Box, ordered, stored
from tests.lua.scheduled import EVERY_MS, row, set_schedule


def due_schedule(box: Box) -> int:
    """Store a schedule, and let its time come; return the time."""
    next_ms = box.clock.now_ms + EVERY_MS
    set_schedule(box)
    box.clock.advance((EVERY_MS + 7) / 1000)
    return next_ms


def send_command(box: Box, time_ms: int, revision: bytes = b"1", expected: int | None = None):
    """A send for a time; the next one is a minute after it."""
    id = ids.derive_scheduled("report", time_ms, box.index, box.handle.check)
    return scripts.schedule_send(
        box.handle, box.keys, ("report", revision, time_ms if expected is None else expected),
        (time_ms + EVERY_MS, time_ms + EVERY_MS + 3), time_ms, (id, *box.part()),
    )  # fmt: skip


def test_message_is_stored_and_the_schedule_moved_in_one_step(box):
    time_ms = due_schedule(box)
    before = box.state()
    id = ids.derive_scheduled("report", time_ms, box.index, box.handle.check)

    assert box.run(send_command(box, time_ms)) == 1

    assert box.changed(before) == {
        ("store", id): ordered(100, 1),
        ("records", id): stored(1, priority=100),
        ("slot", "accepted"): "1",
        ("slot", "order"): "1",
        ("schedules", b"report:next"): b"%d" % (time_ms + EVERY_MS),
        ("schedules", b"report:last"): b"%d" % time_ms,
        ("schedules", b"report:sent"): b"1",
        ("schedules", b"report:moved"): b"%d" % box.clock.now_ms,
        ("schedules", b"clock"): b"%d" % box.clock.now_ms,
        ("schedule_times", b"report"): time_ms + EVERY_MS + 3,
    }


def test_send_that_comes_twice_adds_nothing(box):
    time_ms = due_schedule(box)
    command = send_command(box, time_ms)
    box.run(command)
    after = box.state()

    assert box.run(command) == 0

    assert box.state() == after


def test_send_that_comes_late_adds_nothing_though_its_message_is_settled_and_forgotten(make_box):
    box = make_box(dedup_window_ms=0)
    time_ms = due_schedule(box)
    command = send_command(box, time_ms)
    box.run(command)
    box.ack(box.take_one())
    box.clock.advance(10_000)
    after = box.state()

    assert box.run(command) == 0

    assert box.state() == after


@pytest.mark.parametrize("change", ["revision", "expected", "early", "paused", "deleted"])
def test_schedule_that_is_not_as_it_was_read_sends_nothing(box, change):
    time_ms = due_schedule(box)
    command = send_command(box, time_ms)
    if change == "revision":
        command = send_command(box, time_ms, revision=b"2")
    elif change == "expected":
        command = send_command(box, time_ms, expected=time_ms - EVERY_MS)
    elif change == "early":
        box.redis.zadd(box.keys.schedule_times, {"report": box.clock.now_ms + 1})
    elif change == "paused":
        box.run(scripts.schedule_pause(box.keys, "report"))
    else:
        box.run(scripts.schedule_delete(box.keys, "report"))
    before = box.state()

    assert box.run(command) == 0

    assert box.state() == before


def test_times_can_be_skipped_without_a_message(box):
    time_ms = due_schedule(box)
    before = box.state()
    following = (time_ms + EVERY_MS, time_ms + EVERY_MS)

    skip = scripts.schedule_send(box.handle, box.keys, ("report", b"1", time_ms), following)
    assert box.run(skip) == 1

    assert box.changed(before) == {
        ("schedules", b"report:next"): b"%d" % following[0],
        ("schedules", b"report:moved"): b"%d" % box.clock.now_ms,
        ("schedules", b"clock"): b"%d" % box.clock.now_ms,
        ("schedule_times", b"report"): following[1],
    }
    assert box.run(skip) == 0


def ahead_by(box: Box, seconds: float) -> tuple[str, bytes, int]:
    """Have a schedule moved by a clock that is so far ahead; return how a caller names it."""
    time_ms = due_schedule(box)
    box.clock.advance(seconds)
    box.run(send_command(box, time_ms))
    box.clock.advance(-seconds)
    return "report", b"1", time_ms + EVERY_MS


@pytest.mark.fault("F21")
def test_schedule_that_was_moved_by_a_clock_that_was_ahead_is_moved_back_and_sends_nothing(box):
    read, now = ahead_by(box, 3600), box.clock.now_ms
    before = box.state()
    following = (now + 5, now + 6)
    message = ids.derive_scheduled("report", now, box.index, box.handle.check), *box.part()

    sending = scripts.schedule_send(box.handle, box.keys, read, following, now, message)
    assert box.run(sending) == 0
    assert box.state() == before
    back = scripts.schedule_send(box.handle, box.keys, read, following)
    assert box.run(back) == 1

    assert box.changed(before) == {
        ("schedules", b"report:next"): b"%d" % following[0],
        ("schedules", b"report:moved"): b"%d" % now,
        ("schedule_times", b"report"): following[1],
    }
    assert box.run(back) == 0


@pytest.mark.parametrize("why", ["a minute", "paused"])
@pytest.mark.fault("F21")
def test_schedule_that_is_paused_or_was_moved_a_minute_ahead_is_not_moved_back(box, why):
    read = ahead_by(box, 60 if why == "a minute" else 3600)
    if why == "paused":
        box.run(scripts.schedule_pause(box.keys, "report"))
    before = box.state()

    assert box.run(scripts.schedule_send(box.handle, box.keys, read, (read[2], read[2]))) == 0

    assert box.state() == before


def test_schedule_without_a_time_left_is_never_due_again(box):
    time_ms = due_schedule(box)
    id = ids.derive_scheduled("report", time_ms, box.index, box.handle.check)
    read = ("report", b"1", time_ms)

    last = scripts.schedule_send(box.handle, box.keys, read, None, time_ms, (id, *box.part()))
    assert box.run(last) == 1

    assert box.counter("accepted") == 1
    assert row(box)._replace(definition=b"") == ("report", None, b"", b"1", None, time_ms, 1)


def test_full_slot_keeps_the_time_until_there_is_room(make_box):
    box = make_box(max_length=1)
    time_ms = due_schedule(box)
    box.one()
    before = box.state()

    assert box.run(send_command(box, time_ms)) == -1

    assert box.state() == before
    box.ack(box.take_one())
    assert box.run(send_command(box, time_ms)) == 1


def test_message_that_is_still_stored_is_not_stored_again(box):
    time_ms = due_schedule(box)
    box.run(send_command(box, time_ms))
    box.redis.hset(box.keys.schedules, "report:next", time_ms)
    box.redis.zadd(box.keys.schedule_times, {"report": time_ms})

    assert box.run(send_command(box, time_ms)) == 1

    assert box.counter("accepted") == 1
    assert row(box).sent == 1
    assert row(box).next_ms == time_ms + EVERY_MS


def test_sleeping_consumer_is_woken(box):
    time_ms = due_schedule(box)
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 10_000)
    subscription = box.redis.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(box.handle.channel)
    subscription.get_message(timeout=1)

    box.run(send_command(box, time_ms))

    message = subscription.get_message(timeout=5)
    while message is None:
        message = subscription.get_message(timeout=5)
    subscription.close()
    assert message["data"] == b"0"
