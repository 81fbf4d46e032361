"""prepare.lua with a shared lease, on a real server; by the short form and the long one."""

from __future__ import annotations

import pytest

from rmq.kernel.consumer import scripts
from tests.lua.shared import LEASE_MS, NUMBERS, number_now, receipt, renew, rollback, take


def test_a_take_opens_a_lease_and_its_receipts_name_it(box):
    first, second = box.send(2)
    number = number_now(box)
    before = box.state()

    taken = take(box)

    assert [lease.receipt for lease in taken] == [receipt(1, number), receipt(2, number)]
    changed = box.changed(before)
    assert changed[("prepare", first)] == receipt(1, number)
    assert changed[("prepare", second)] == receipt(2, number)
    assert changed[("leases", b"%d" % number)] == box.clock.now_ms + LEASE_MS
    assert changed[("slot", "leases_until")] == str(box.clock.now_ms + LEASE_MS)


@pytest.mark.parametrize("count", [1, 2])  # one message goes the short way, two the long one
def test_a_take_under_a_lease_that_runs_writes_nothing_about_it(box, count):
    box.one()
    number = number_now(box)
    take(box)
    sent = box.send(count)
    box.clock.advance(1)
    before = box.state()

    taken = take(box, limit=count, number=number)

    assert [lease.id for lease in taken] == sent
    assert [lease.receipt for lease in taken] == [receipt(2 + i, number) for i in range(count)]
    changed = box.changed(before)
    assert {place for place, part in changed if part not in sent} <= {"slot"}
    assert ("slot", "leases_until") not in changed


@pytest.mark.parametrize("count", [1, 2])
def test_a_take_renews_a_lease_of_which_less_than_half_is_left(box, count):
    box.one()
    number = number_now(box)
    take(box)
    box.send(count)
    box.clock.advance(LEASE_MS / 1000 / 2 + 0.001)

    taken = take(box, limit=count, number=number)

    assert {lease.receipt // 1000 for lease in taken} == {3e9 + number}
    assert box.state()["leases"] == {b"%d" % number: box.clock.now_ms + LEASE_MS}


def test_a_take_never_shortens_a_lease(box):
    box.send(2)
    number = number_now(box)
    take(box, limit=1)
    renew(box, number, lease_ms=600_000)
    ends = box.state()["leases"]

    take(box, limit=1, number=number)

    assert box.state()["leases"] == ends


@pytest.mark.parametrize("count", [1, 2])
def test_a_take_under_a_lease_that_is_gone_opens_another(box, count):
    box.one()
    number = number_now(box)
    take(box)
    box.clock.advance(LEASE_MS / 1000)
    assert rollback(box) == (1, False)
    box.run(scripts.rollback_expired_leases(box.handle, box.keys))
    box.send(count)

    taken = take(box, limit=count, number=number)

    assert {lease.receipt // 1000 for lease in taken} == {3e9 + number_now(box)}
    assert list(box.state()["leases"]) == [b"%d" % number_now(box)]


def test_a_take_that_finds_nothing_opens_no_lease(box):
    before = box.state()

    assert take(box) == []

    assert box.state() == before


@pytest.mark.parametrize("count", [1, 3])
def test_sent_twice_it_hands_over_the_same_deliveries(box, count):
    box.send(count)
    session = box.session()

    first = box.prepare(count, LEASE_MS, session, shared=0)
    after = box.state()
    again = box.prepare(count, LEASE_MS, session, shared=0)

    assert (again.ids, again.deadline_s) == (first.ids, first.deadline_s)
    assert box.leases(again) == box.leases(first)
    assert box.state() == after


def test_what_a_rollback_took_is_not_handed_over_again(box):
    box.send(2)
    session = box.session()
    box.prepare(2, LEASE_MS, session, shared=0)
    box.clock.advance(LEASE_MS / 1000)
    rollback(box, limit=1)

    assert [bool(id) for id in box.prepare(2, LEASE_MS, session, shared=0).ids] == [False, True]


def test_a_take_tells_that_a_shared_lease_has_ended(box):
    box.send(2)
    take(box, limit=1)
    assert box.prepare(limit=1).expired == 0
    box.clock.advance(LEASE_MS / 1000)

    assert box.prepare(limit=1).expired & scripts.LONG_EXPIRED


@pytest.mark.parametrize("ordered", [False, True])
def test_a_consumer_sleeps_until_the_lease_ends(box, ordered):
    box.one()
    box.prepare(1, LEASE_MS, shared=0, ordered=ordered)

    assert box.prepare(waits=True, ordered=ordered).wait_us == LEASE_MS * 1000
    assert box.run(scripts.next_ready([box.keys], True)) == [LEASE_MS * 1000]


def test_in_order_the_reply_says_when_the_lease_ends(box):
    box.send(2)

    assert box.prepare(2, LEASE_MS, shared=0, ordered=True).wait_us == LEASE_MS * 1000


def test_leases_that_are_opened_in_one_ms_have_numbers_of_their_own(box):
    box.send(3)
    number = number_now(box)

    numbers = [take(box, limit=1)[0].receipt // 1000 - 3e9 for _ in range(3)]

    assert numbers == [number, number + 1, number + 2]


def test_a_receipt_of_the_last_number_is_exact_and_the_next_is_1(box):
    ids = box.send(3)
    box.redis.hset(box.keys.slot, "delivered", 2046)
    box.clock.advance((NUMBERS - number_now(box)) / 1000)

    taken = take(box, limit=2)

    assert [lease.receipt for lease in taken] == [receipt(2047, NUMBERS), receipt(2048, NUMBERS)]
    assert [box.score(id, "prepare") for id in ids[:2]] == [lease.receipt for lease in taken]
    assert box.ack(*taken) == "11"
    assert take(box)[0].receipt == receipt(2049, 1)


def test_each_verb_takes_such_a_receipt(box):
    box.send(4)
    acked, nacked, rejected, released = take(box)

    assert box.ack(acked) == "1"
    assert box.nack(nacked) == "r"
    assert box.reject(rejected) == "d"
    assert box.release(released) == "1"
