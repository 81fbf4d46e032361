"""reschedule.lua on a real server."""

from __future__ import annotations

from rmq.features.messages import scripts
from tests.lua.box import stored, timed
from tests.lua.eventing import deliver, one_suspended, suspend, wait_at, wait_of


def command(box, id, due, session=None):
    return scripts.reschedule(box.handle, box.keys, session or box.session(), id, due)


def reschedule(box, id, due):
    return box.run(command(box, id, due))


def test_timed_message_gets_another_time_in_score_and_record(box):
    id = box.one(due=5000, priority=40)
    due = box.clock.now_ms + 60_000
    before = box.state()

    session = box.session()
    assert box.twice(lambda: command(box, id, due, session)) == ("rescheduled", due)

    assert box.changed(before) == {
        ("store", id): timed(due, True),
        ("records", id): stored(1, due=due, priority=40),
    }


def test_priority_message_becomes_timed_and_keeps_priority_and_body(box):
    id = box.one(priority=40, body=b"hello", expires=1000)
    due = box.clock.now_ms + 60_000

    reschedule(box, id, 60_000)

    assert box.state()["store"] == {id: timed(due, True)}
    assert box.state()["records"] == {
        id: stored(1, b"hello", priority=40, due=due, expires=due + 1000)
    }
    box.clock.advance(60.5)
    assert box.take_one().id == id


def test_expiry_moves_along_with_the_time(box):
    id = box.one(due=5000, expires=1000)

    reschedule(box, id, 60_000)
    later = box.clock.now_ms + 60_000
    assert box.state()["records"] == {id: stored(1, due=later, expires=later + 1000)}

    reschedule(box, id, 2000)
    sooner = box.clock.now_ms + 2000
    assert box.state()["records"] == {id: stored(1, due=sooner, expires=sooner + 1000)}


def test_timed_message_without_priority_still_goes_first_when_due(box):
    id = box.one(due=5000)
    reschedule(box, id, 1000)
    box.one(priority=1_048_575)
    box.clock.advance(1)

    assert box.take_one().id == id


def test_retry_keeps_what_it_has_left(box):
    id = box.one(priority=40)
    for _ in range(3):
        box.nack(box.take_one())

    reschedule(box, id, 5000)

    assert box.score(id) == timed(box.clock.now_ms + 5000, True)
    box.clock.advance(5)
    assert box.take_one().left == 13


def test_merge_window_moves_and_still_merges(box):
    id, _ = box.merge(range_ms=5000)

    reschedule(box, id, 60_000)

    assert box.merge()[1].into == id.member
    due = box.clock.now_ms + 60_000
    assert box.state()["records"][id] == stored(1, due=due, key=b"key")


def test_time_that_has_passed_is_due_at_once(box):
    id, now = box.one(due=60_000), box.clock.now_ms
    before = box.state()

    assert reschedule(box, id, now - 5000) == ("rescheduled", now - 5000)
    assert box.changed(before) == {
        ("store", id): timed(now - 5000, False),
        ("records", id): stored(1, due=now - 5000),
    }
    before = box.state()
    assert reschedule(box, id, now - 5000) == ("rescheduled", now - 5000)
    assert box.changed(before) == {}
    assert box.take_one().id == id


def test_reschedule_wakes_who_waits(box):
    id = box.one(due=5000)
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)

    reschedule(box, id, 1000)

    assert box.counter("waiting") == 0


def test_the_time_limit_of_a_suspended_message_moves(box):
    id = one_suspended(box, priority=50)
    now, due = box.clock.now_ms, box.clock.now_ms + 5000
    before, session = box.state(), box.session()

    assert box.twice(lambda: command(box, id, due, session)) == ("rescheduled", due)

    assert box.changed(before) == {
        ("store", id): timed(due, True),
        ("records", id): stored(1, due=due, priority=50),
        wait_at(id): wait_of(box, ago_ms=box.clock.now_ms - now, limit_ms=due - now),
    }


def test_in_order_a_suspended_message_that_is_rescheduled_is_taken_at_its_new_time(box):
    id = box.one()
    suspend(box, *box.take(1, ordered=True))
    assert box.take(1, ordered=True) == []

    reschedule(box, id, 1000)

    assert box.take(1, ordered=True) == []
    box.clock.advance(1)
    assert [lease.id for lease in box.take(1, ordered=True)] == [id]


def test_an_event_that_came_is_no_time_limit(box):
    id = one_suspended(box)
    deliver(box, id)
    before = box.state()

    reschedule(box, id, 5000)

    assert wait_at(id) not in box.changed(before)
