"""resize_scan.lua on a real server: which messages newer ones in other slots wait for."""

from __future__ import annotations

import pytest
import redis

from rmq.features.topic_admin import scripts
from rmq.kernel.core.keys import SlotKeys


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
