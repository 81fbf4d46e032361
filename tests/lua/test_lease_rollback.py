"""lease_rollback.lua on a real server."""

from __future__ import annotations

from rmq.kernel.consumer import scripts
from tests.lua.query import take as take_for_query
from tests.lua.shared import LEASE_MS, number_now, receipt, renew, rollback, take


def expire(box):
    box.clock.advance(LEASE_MS / 1000)


def test_a_lease_that_runs_is_left_alone(box):
    box.one()
    take(box)
    before = box.state()
    box.clock.advance(LEASE_MS / 1000 - 0.001)

    assert rollback(box) == (0, False)

    assert box.state() == before


def test_an_expired_lease_gives_its_deliveries_back_for_the_next_rollback(box):
    first, second = box.send(2)
    number = number_now(box)
    take(box)
    expire(box)
    before = box.state()

    assert rollback(box) == (2, False)

    assert box.changed(before) == {
        ("prepare", first): 1000 + 16 + 1 / 2048,
        ("prepare", second): 1000 + 16 + 2 / 2048,
        ("leases", b"%d" % number): None,
        ("slot", "leases_until"): None,
    }
    assert box.run(scripts.rollback_expired_leases(box.handle, box.keys)) == (2, 0, False, 0)
    assert {lease.left for lease in box.take(2)} == {15}


def test_it_is_bounded_and_goes_on(box):
    box.send(5)
    number = number_now(box)
    take(box)
    expire(box)

    assert rollback(box, limit=3) == (3, True)
    assert box.state()["leases"] == {b"%d" % number: 0}
    assert box.state()["slot"]["leases_until"] == "0"
    assert rollback(box, limit=3) == (2, False)
    after = box.state()
    assert rollback(box, limit=3) == (0, False)
    assert box.state() == after


def test_other_leases_and_other_deliveries_stay(box):
    box.send(4)
    take(box, limit=1)
    box.clock.advance(1)
    number = number_now(box)
    (second,) = take(box, limit=1)
    own = box.take_one(lease_ms=60_000)
    take_for_query(box, limit=1)
    box.clock.advance(LEASE_MS / 1000 - 1)

    assert rollback(box) == (1, False)

    assert box.score(second.id, "prepare") == receipt(2, number)
    assert box.score(own.id, "prepare") == own.receipt
    assert list(box.state()["leases"]) == [b"%d" % number]
    assert box.state()["slot"]["leases_until"] == str(box.clock.now_ms + 1000)


def test_one_call_is_for_one_lease_and_says_that_another_has_ended(box):
    box.send(2)
    take(box, limit=1)
    take(box, limit=1)
    expire(box)

    assert rollback(box) == (1, True)
    assert rollback(box) == (1, False)


def test_an_empty_lease_goes(box):
    box.one()
    number = number_now(box)
    box.ack(*take(box))
    expire(box)
    before = box.state()

    assert rollback(box) == (0, False)

    assert box.changed(before) == {("leases", b"%d" % number): None, ("slot", "leases_until"): None}


def test_a_first_end_that_is_wrong_is_corrected(box):
    box.one()
    take(box)
    box.redis.hset(box.keys.slot, "leases_until", 1)

    rollback(box)

    assert box.state()["slot"]["leases_until"] == str(box.clock.now_ms + LEASE_MS)


def test_a_message_without_retries_dies(make_box):
    box = make_box(max_retries=0)
    id = box.one()
    take(box)
    expire(box)

    assert rollback(box) == (1, False)
    assert box.run(scripts.rollback_expired_leases(box.handle, box.keys)) == (0, 1, False, 0)
    assert box.order("dead") == [id]


def test_in_order_the_message_comes_back_to_its_old_place(box):
    first, second = box.send(2)
    box.prepare(1, LEASE_MS, shared=0, ordered=True)
    expire(box)
    rollback(box)
    box.run(scripts.rollback_expired_leases(box.handle, box.keys))

    assert box.prepare(2, LEASE_MS, shared=0, ordered=True).ids == [first]
    assert second in box.order()


def test_a_receipt_of_a_lease_that_was_given_back_no_longer_counts(box):
    box.one()
    number = number_now(box)
    (lease,) = take(box)
    expire(box)
    renew(box, number)
    assert box.ack(lease) == "1"

    box.one()
    (lease,) = take(box, number=number)
    expire(box)
    rollback(box)
    assert box.ack(lease) == "0"


def test_deliveries_whose_lease_is_missing_are_given_back(box):
    first, second = box.send(2)
    take(box)
    box.redis.delete(box.keys.leases)

    assert rollback(box, limit=1) == (1, True)
    assert rollback(box, limit=1) == (1, True)
    assert rollback(box, limit=1) == (0, False)

    assert box.state()["prepare"] == {
        first: 1000 + 16 + 1 / 2048,
        second: 1000 + 16 + 2 / 2048,
    }
    assert "leases" not in box.state()
    assert "leases_until" not in box.state()["slot"]
