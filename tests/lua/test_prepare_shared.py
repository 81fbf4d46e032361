"""prepare.lua with a shared lease, on a real server; by the short form and the long one."""

from __future__ import annotations

import pytest

from rmq.protocol import commands
from tests.lua.shared import LEASE_MS, receipt, renew, rollback, take


def test_a_take_opens_a_lease_and_its_receipts_name_it(box):
    first, second = box.send(2)
    before = box.state()

    taken = take(box)

    assert [lease.receipt for lease in taken] == [receipt(1), receipt(2)]
    changed = box.changed(before)
    assert changed[("prepare", first)] == receipt(1)
    assert changed[("prepare", second)] == receipt(2)
    assert changed[("leases", b"1")] == box.clock.now_ms + LEASE_MS
    assert changed[("slot", "leases_until")] == str(box.clock.now_ms + LEASE_MS)
    assert changed[("slot", "lease_number")] == "1"


@pytest.mark.parametrize("count", [1, 2])  # one message goes the short way, two the long one
def test_a_take_under_a_lease_that_runs_writes_nothing_about_it(box, count):
    box.one()
    take(box)
    sent = box.send(count)
    before = box.state()

    taken = take(box, limit=count, number=1)

    assert [lease.id for lease in taken] == sent
    assert [lease.receipt for lease in taken] == [receipt(2 + i) for i in range(count)]
    assert {place for place, _ in box.changed(before) if _ not in sent} <= {"slot"}
    assert not {"leases_until", "lease_number"} & {part for _, part in box.changed(before)}


@pytest.mark.parametrize("count", [1, 2])
def test_a_take_renews_a_lease_of_which_less_than_half_is_left(box, count):
    box.one()
    take(box)
    box.send(count)
    box.clock.advance(LEASE_MS / 1000 / 2 + 0.001)

    assert {lease.receipt // 1000 for lease in take(box, limit=count, number=1)} == {3e9 + 1}

    assert box.state()["leases"] == {b"1": box.clock.now_ms + LEASE_MS}


def test_a_take_never_shortens_a_lease(box):
    box.send(2)
    take(box, limit=1)
    renew(box, lease_ms=600_000)
    ends = box.state()["leases"]

    take(box, limit=1, number=1)

    assert box.state()["leases"] == ends


@pytest.mark.parametrize("count", [1, 2])
def test_a_take_under_a_lease_that_is_gone_opens_another(box, count):
    box.one()
    take(box)
    box.clock.advance(LEASE_MS / 1000)
    assert rollback(box) == (1, False)
    box.run(commands.rollback(box.handle, box.keys))
    box.send(count)

    assert {lease.receipt // 1000 for lease in take(box, limit=count, number=1)} == {3e9 + 2}
    assert list(box.state()["leases"]) == [b"2"]


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

    assert box.prepare(limit=1).expired & commands.LONG_EXPIRED


@pytest.mark.parametrize("ordered", [False, True])
def test_a_consumer_sleeps_until_the_lease_ends(box, ordered):
    box.one()
    box.prepare(1, LEASE_MS, shared=0, ordered=ordered)

    assert box.prepare(waits=True, ordered=ordered).wait_us == LEASE_MS * 1000
    assert box.run(commands.next_ready([box.keys], True)) == [LEASE_MS * 1000]


def test_in_order_the_reply_says_when_the_lease_ends(box):
    box.send(2)

    assert box.prepare(2, LEASE_MS, shared=0, ordered=True).wait_us == LEASE_MS * 1000


def test_the_numbers_begin_anew_at_the_limit(box):
    box.send(2)
    box.redis.hset(box.keys.slot, "lease_number", 899_999_999)

    assert [lease.receipt for lease in take(box, limit=1)] == [receipt(1, 900_000_000)]
    assert [lease.receipt for lease in take(box, limit=1)] == [receipt(2, 1)]


def test_a_receipt_of_the_last_number_is_exact(box):
    ids = box.send(2)
    box.redis.hset(box.keys.slot, mapping={"lease_number": 899_999_999, "delivered": 2046})

    taken = take(box)

    assert [box.score(id, "prepare") for id in ids] == [lease.receipt for lease in taken]
    assert box.ack(*taken) == "11"
    assert box.state().get("prepare") is None


def test_each_verb_takes_such_a_receipt(box):
    box.send(4)
    acked, nacked, rejected, released = take(box)

    assert box.ack(acked) == "1"
    assert box.nack(nacked) == "r"
    assert box.reject(rejected) == "d"
    assert box.release(released) == "1"


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "900000001"])
def test_a_bad_number_is_refused(box, number):
    box.one()
    before = box.state()
    command = commands.prepare(box.keys, box.session(), 1, LEASE_MS, False, False, number)

    with pytest.raises(Exception, match="RMQARG shared"):
        box.run(command)

    assert box.changed(before, replay=False) == {}
