"""extend.lua on a real server."""

from __future__ import annotations

import math

import pytest

from rmq.kernel.consumer import scripts
from rmq.kernel.core.score import receipt_with_deadline
from tests.lua.box import LEASE_MAX_MS


def test_extend_moves_the_deadline_and_nothing_else(box):
    id = box.one()
    lease = box.take_one()
    box.clock.advance(10)
    before = box.state()
    session = box.session()

    reply = box.run(box.extend_command([lease], session, 60_000))

    deadline = box.clock.now_ms // 1000 + 60
    assert reply == scripts.ExtendReply(deadline, "1")
    assert box.changed(before, replay=True) == {
        ("prepare", id): deadline * 1000 + 16 + 1 / 2048,
        (f"replay:{session.name[1:].decode()}",): b"1:%d 1" % deadline,
    }
    assert box.score(id, "prepare") == receipt_with_deadline(lease.receipt, deadline)


def test_extend_sent_again_gives_the_first_answer_and_changes_nothing(box):
    box.send(2)
    leases = box.take(2)
    session = box.session()
    box.clock.advance(3.9)

    assert box.twice(lambda: box.extend_command(leases, session)).codes == "11"


def test_receipt_changes_with_the_deadline(box):
    box.one()
    lease = box.take_one()
    box.clock.advance(10)
    deadline, _ = box.run(box.extend_command([lease], box.session()))

    assert box.ack(lease) == "0"
    assert box.ack(lease._replace(receipt=receipt_with_deadline(lease.receipt, deadline))) == "1"


@pytest.mark.parametrize("later_ms", [0, 1, 999])
@pytest.mark.parametrize("lease_ms", [1000, 1001, LEASE_MAX_MS])
def test_deadline_is_whole_seconds_and_never_sooner_than_asked(box, later_ms, lease_ms):
    box.one()
    lease = box.take_one()
    box.clock.advance(later_ms / 1000)

    deadline, _ = box.run(box.extend_command([lease], box.session(), lease_ms))

    assert deadline == math.ceil((box.clock.now_ms + lease_ms) / 1000)


def test_lapsed_lease_that_nobody_took_back_may_still_be_extended(box):
    box.one()
    lease = box.take_one(lease_ms=1000)
    box.clock.advance(5)

    assert box.run(box.extend_command([lease], box.session())).codes == "1"
    assert box.rollback() == scripts.RollbackReply(0, 0, False)


def test_only_the_held_ones_of_a_batch_are_extended(box):
    box.send(3)
    a, b, c = box.take(3)
    box.ack(b)
    before = box.state()
    box.clock.advance(2)

    reply = box.run(box.extend_command([a, b, c._replace(receipt=a.receipt), a], box.session()))

    assert reply.codes == "1000"
    assert box.changed(before) == {
        ("prepare", a.id): receipt_with_deadline(a.receipt, reply.deadline_s)
    }


def test_retries_and_delivery_number_stay_in_the_receipt(box):
    box.redis.hset(box.keys.slot, "delivered", 2046)
    box.one()
    for _ in range(3):
        box.nack(box.take_one())
    lease = box.take_one()
    assert lease.delivery == 2050

    deadline, _ = box.run(box.extend_command([lease], box.session()))

    assert box.score(lease.id, "prepare") == deadline * 1000 + 13 + 2 / 2048


def test_a_thousand_in_one_call(box):
    box.send(1000)
    leases = box.take(1000)
    box.clock.advance(5)

    deadline, letters = box.run(box.extend_command(leases, box.session()))

    assert letters == "1" * 1000
    assert box.ack(
        *(x._replace(receipt=receipt_with_deadline(x.receipt, deadline)) for x in leases)
    ) == "1" * 1000  # fmt: skip
