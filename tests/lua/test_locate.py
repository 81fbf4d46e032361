"""locate.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.topic import scripts
from rmq.kernel.topic.scripts import LocateReply


def where(box, *ids):
    """Run locate, and return its reply; check that no key changes."""
    before = box.state()
    found = box.run(scripts.locate(box.keys, ids))
    assert box.state() == before
    return found


def test_each_message_is_told_by_its_queue_in_the_order_asked(box):
    settled, dead, taken = box.send(3)
    by_id = {lease.id: lease for lease in box.take(3)}
    box.ack(by_id[settled])
    box.reject(by_id[dead])
    waiting, later = box.one(), box.one(due=60_000)
    unknown = box.ids()[0]

    found = where(box, unknown, later, dead, settled, taken, waiting)

    assert found == LocateReply(5, 2, 1, "gsdgps")


def test_what_was_given_back_waits_again(box):
    id = box.one()
    box.nack(box.take_one())

    assert where(box, id) == LocateReply(1, 1, 0, "s")


def test_slot_that_never_had_a_message_holds_nothing(box):
    assert where(box, box.ids()[0]) == LocateReply(0, 0, 0, "g")


def test_dead_letters_alone_are_not_what_a_slot_holds(box):
    id = box.one()
    box.reject(box.take_one())

    assert where(box, id) == LocateReply(1, 0, 0, "d")


def test_a_thousand_are_told_at_once_and_not_one_more(box):
    ids = box.send(1000)
    assert where(box, *ids) == LocateReply(1000, 1000, 0, "s" * 1000)

    with pytest.raises(redis.ResponseError, match="RMQARG ids"):
        where(box, *ids, ids[0])


def test_what_is_no_id_is_refused(box):
    with pytest.raises(redis.ResponseError, match="RMQARG id"):
        where(box, b"short")
