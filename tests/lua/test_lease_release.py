"""lease_release.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.ids import member_of
from tests.lua.shared import number_now, receipt, release, take


def test_it_costs_no_retry_and_keeps_the_order(box):
    sent = box.send(4)
    number = number_now(box)
    take(box)

    assert release(box, number) == 4

    state = box.state()
    assert "prepare" not in state
    assert "failures" not in state
    assert state["leases"].keys() == {b"%d" % number}
    assert [(lease.id, lease.left) for lease in box.take(4)] == [(id, 16) for id in sent]


def test_a_second_run_finds_nothing(box):
    box.send(2)
    number = number_now(box)
    take(box)
    release(box, number)
    before = box.state()

    assert release(box, number) == 0

    assert box.state() == before


def test_what_had_begun_stays_under_the_lease(box):
    first, second, third = box.send(3)
    number = number_now(box)
    take(box)

    assert release(box, number, begun=(second,)) == 2

    assert box.state()["prepare"] == {second: receipt(2, number)}
    assert [lease.id for lease in box.take(3)] == [first, third]


def test_other_leases_stay(box):
    first, second, third = box.send(3)
    number = number_now(box)
    take(box, limit=1)
    take(box, limit=1)
    box.take_one()

    assert release(box, number + 1) == 1

    assert box.order("prepare")[1:] == [first]
    assert box.order() == [second]
    assert third in box.order("prepare")


def test_it_is_bounded_and_the_oldest_stand_in_front(box):
    sent = box.send(5)
    number = number_now(box)
    take(box)

    assert release(box, number, limit=2) == 2
    assert release(box, number, limit=2) == 2
    assert release(box, number, limit=2) == 1

    assert [lease.id for lease in box.take(5)] == sent


def test_the_limit_counts_what_is_given_back_not_what_had_begun(box):
    sent = box.send(5)
    number = number_now(box)
    take(box)

    assert release(box, number, limit=2, begun=tuple(sent[2:])) == 2
    assert release(box, number, limit=2, begun=tuple(sent[2:])) == 0


def test_delivery_numbers_that_wrap_keep_the_order(box):
    sent = box.send(4)
    box.redis.hset(box.keys.slot, "delivered", 2045)
    number = number_now(box)
    take(box)

    release(box, number)

    assert [lease.id for lease in box.take(4)] == sent


def test_a_due_message_comes_back_before_all_due_ones(box):
    due = box.one(due=0)
    box.clock.advance(1)
    number = number_now(box)
    take(box)
    box.one(due=0)
    box.clock.advance(1)

    assert release(box, number) == 1

    assert box.take_one().id == due


def test_in_order_it_takes_its_old_place(box):
    sent = box.send(3)
    number = number_now(box)
    box.prepare(2, 30_000, shared=0, ordered=True)

    assert release(box, number) == 2

    assert box.prepare(3, 30_000, ordered=True).ids == sent


def test_a_message_that_had_failed_keeps_its_retries(box):
    box.one()
    box.nack(box.take_one())
    number = number_now(box)
    (lease,) = take(box)
    assert lease.left == 15

    release(box, number)

    assert box.take_one().left == 15


def test_a_message_without_a_readable_record_waits_for_the_end_of_the_lease(box):
    id = box.one()
    number = number_now(box)
    take(box)
    box.redis.hset(box.keys.records, member_of(id), b"short")
    before = box.state()

    assert release(box, number) == 0

    assert box.state() == before


def test_too_many_or_malformed_members_are_refused(box):
    box.one()
    number = number_now(box)
    take(box)

    for begun in (tuple(box.ids(1001)), (b"not an id",)):
        with pytest.raises(Exception, match="RMQARG"):
            release(box, number, begun=begun)
