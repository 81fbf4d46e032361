"""resize_scan.lua on a real server: which messages newer ones in other slots wait for."""

from __future__ import annotations

import pytest
import redis

import rmq
from rmq.features.topic_admin import scripts
from rmq.kernel.core.keys import SlotKeys
from tests.lua import group
from tests.lua.eventing import deliver, suspend
from tests.lua.group import send_in


def scan(box, limit=100):
    """Read all pages; how many older messages are left."""
    stamp = box.redis.hget(box.keys.slot, "created")
    keys = SlotKeys(box.handle.prefix, box.handle.name, box.keys.index, stamp)
    before = box.state()
    cursor, found = b"0", 0
    while True:
        cursor, more, _ = box.run(scripts.resize_scan(keys, cursor, limit))
        found += more
        if cursor == b"0":
            assert box.state() == before
            return found


def mark(box, number):
    box.redis.hset(box.keys.slot, "upto", number)


def test_messages_that_wait_or_are_in_flight_count(box):
    box.send(3)
    box.take_one()
    mark(box, 3)

    assert scan(box) == 3


def test_messages_after_the_mark_do_not_count(box):
    box.send(3)
    mark(box, 3)
    box.send(4)

    assert scan(box) == 3


def test_settled_and_dead_messages_and_those_due_later_do_not_count(box):
    box.one()
    box.ack(box.take_one())
    box.one()
    box.reject(box.take_one())
    box.one(due=60_000)
    mark(box, 3)

    assert scan(box) == 0


def test_message_counts_once_it_is_due(box):
    box.one(due=1000)
    mark(box, 1)
    assert scan(box) == 0

    box.clock.advance(1)

    assert scan(box) == 1


def test_message_that_failed_and_waits_for_no_time_counts(box):
    box.one()
    mark(box, 1)
    box.nack(box.take_one())

    assert scan(box) == 1


def test_each_of_many_is_on_a_page(box):
    box.send(1000)
    box.send(500)
    mark(box, 1200)

    assert scan(box, 10) == 1200


def test_numbers_are_compared_over_their_end(box):
    box.redis.hset(box.keys.slot, "accepted", 2**32 - 3)
    box.send(3)
    mark(box, 2**32)
    box.send(2)

    assert scan(box) == 3


def test_it_tells_the_number_of_the_newest_delivery(box):
    assert box.run(scripts.resize_scan(box.keys, b"0", 10)).delivered == 0
    box.send(3)
    box.take(2)

    assert box.run(scripts.resize_scan(box.keys, b"0", 10)).delivered == 2
    mark(box, 3)
    assert box.run(scripts.resize_scan(box.keys, b"0", 10)) == (b"0", 3, 2)


def test_slot_that_the_resize_created_awaits_nothing(box):
    box.send(3)

    assert scan(box) == 0


def test_slot_of_another_stamp_is_an_error(box):
    keys = SlotKeys(box.handle.prefix, box.handle.name, box.keys.index, b"17")

    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        box.run(scripts.resize_scan(keys, b"0", 10))
    with pytest.raises(redis.ResponseError, match="RMQARG cursor"):
        box.run(scripts.resize_scan(box.keys, b"x", 10))


def test_retry_of_a_group_in_order_counts_since_newer_messages_wait_for_it(make_box):
    box = make_box(groups=rmq.Groups())
    send_in(box, "plain", weight=1)
    send_in(box, "weighted", weight=4, share_key="gold")
    mark(box, 2)
    box.nack(*box.take(2), wait_ms=60_000)
    assert scan(box) == 2

    box.clock.advance(60)
    for lease in box.take(2):
        box.ack(lease)

    assert scan(box) == 0


def test_retry_of_a_group_without_order_and_delayed_messages_of_one_in_order_do_not_count(make_box):
    several = make_box(groups=rmq.Groups(order=False, concurrency=2))
    send_in(several, "g")
    mark(several, 1)
    several.nack(several.take_one(), wait_ms=60_000)
    box = make_box(groups=rmq.Groups())
    group.one(box, "g", due=60_000)
    mark(box, 1)

    assert scan(several) == 0
    assert scan(box) == 0


def test_held_messages_count_and_so_does_a_group_that_is_stopped(make_box):
    box = make_box(groups=rmq.Groups())
    send_in(box, "g", 3)
    mark(box, 3)
    assert scan(box) == 3

    assert group.pause(box, "another") == 1

    assert scan(box) == 4


def test_a_suspended_message_counts_only_after_its_event_or_time_limit(make_box):
    box = make_box(groups=rmq.Groups())
    send_in(box, "g")
    mark(box, 1)
    lease = box.take_one()
    suspend(box, lease, limit_ms=1000)
    assert scan(box) == 0

    box.clock.advance(1)
    assert scan(box) == 1
    suspend(box, box.take_one())
    assert scan(box) == 0
    deliver(box, lease.id)
    assert scan(box) == 1


def test_messages_behind_a_suspended_one_count(make_box):
    grouped = make_box(groups=rmq.Groups())
    send_in(grouped, "g", 3)
    mark(grouped, 3)
    suspend(grouped, grouped.take_one())

    assert scan(grouped) == 2


def test_in_order_a_suspended_message_does_not_count(box):
    box.send(2)
    mark(box, 2)
    first, second = box.take(2, ordered=True)
    suspend(box, first)
    assert scan(box) == 1  # the second is in flight
    box.release(second)

    assert scan(box) == 1
