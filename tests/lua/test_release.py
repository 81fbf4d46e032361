"""release.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.retry import Exponential
from tests.lua.box import GONE, handed_back, ordered, timed


def test_release_puts_a_message_at_the_front_of_its_line(box):
    box.send(3, priority=50)
    lease = box.take_one()
    before = box.state()
    session = box.session()

    assert box.run(box.release_command([lease], session)) == "1"

    assert box.changed(before, replay=True) == {
        ("slot", "front"): "-1",
        ("prepare", lease.id): GONE,
        ("store", lease.id): ordered(50, 0),
        (f"replay:{session.name[1:].decode()}",): b"1:1",
    }
    assert box.score(lease.id) == 50.5


def test_release_sent_again_does_not_free_the_successors_lease(box):
    box.one()
    lease = box.take_one()
    session = box.session()
    box.run(box.release_command([lease], session))
    successor = box.take_one()  # in the same second, with the same retries
    before = box.state()

    assert box.run(box.release_command([lease], session)) == "1"
    assert box.state() == before
    session.count_to(session.number + 1)
    assert box.run(box.release_command([lease], session)) == "0"
    assert box.state() == before
    assert box.ack(successor) == "1"


def test_batch_handed_back_keeps_its_order_in_front_of_the_others(box):
    given = box.send(10, priority=1_048_575)
    leases = box.take(6)

    box.release(*leases[:3])
    assert box.order()[::-1] == given[:3] + given[6:]
    box.release(*leases[3:])

    assert box.drained() == given[3:6] + given[:3] + given[6:]


def test_release_costs_no_retry(box):
    id = box.one()
    for _ in range(40):
        lease = box.take_one()
        assert (lease.id, lease.left) == (id, 16)
        box.release(lease)

    assert "failures" not in box.state()
    assert "dead" not in box.state()


def test_released_retry_goes_to_the_front_of_the_retries_with_as_many_left(box):
    box.send(3)
    box.nack(*box.take(3))
    first, second = box.take_one(), box.take_one()
    assert (first.left, second.left) == (15, 15)

    box.release(second)
    assert box.score(second.id) == ordered(16, 0)
    box.release(first)

    assert box.drained()[:2] == [first.id, second.id]


def test_released_retry_that_stood_at_its_priority_goes_to_the_front_of_that(make_box):
    box = make_box(retry=Exponential(base=1, cap=60, jitter=0))
    id = box.one(priority=50)
    box.nack(box.take_one())
    others = box.send(2, priority=50)
    box.clock.advance(1)
    lease = box.take(3)[2]
    assert (lease.id, lease.left) == (id, 15)

    box.release(lease)

    assert box.score(id) == ordered(50, 0)
    again = box.take_one()
    assert (again.id, again.left) == (id, 15)
    assert id not in others


def test_released_timed_message_goes_in_front_of_all_that_is_due(box):
    first, second = box.send(2, due=1000)
    box.clock.advance(5)
    lease = box.take_one()
    before = box.state()

    assert box.release(lease) == "1"

    assert box.changed(before) == {
        ("slot", "front"): "-1",
        ("prepare", first): GONE,
        ("store", first): handed_back(0),
    }
    before = box.state()
    assert box.release(lease) == "0"
    assert box.state() == before
    again = box.take_one()
    assert (again.id, again.left) == (first, 16)
    assert box.take_one().id == second


def test_released_timed_message_with_a_priority_goes_to_the_front_of_its_priority(box):
    id = box.one(due=1000, priority=50)
    others = box.send(3, priority=50)
    box.clock.advance(5)
    leases = box.take(4)
    assert [lease.id for lease in leases] == [*others, id]

    box.release(leases[3])

    assert box.score(id) == ordered(50, 0)


@pytest.mark.parametrize("options", [{"priority": 50}, {"due": 100}, {"due": 100, "priority": 50}])
def test_snooze_waits_as_long_as_asked_and_keeps_priority_and_retries(box, options):
    id = box.one(**options)
    box.clock.advance(1)
    lease = box.take_one()

    box.release(lease, wait_ms=7000)

    assert box.score(id) == timed(box.clock.now_ms + 7000, True)
    box.clock.advance(6.999)
    assert box.take() == []
    box.clock.advance(0.001)
    assert box.take_one()[::3] == (id, 16)


def test_snoozed_retry_keeps_its_count(box):
    id = box.one()
    box.nack(box.take_one())
    box.release(box.take_one(), wait_ms=1000)
    assert box.score(id) == timed(box.clock.now_ms + 1000, True)
    box.clock.advance(1)

    assert box.take_one().left == 15


def test_only_the_held_ones_of_a_batch_go_back_and_only_once(box):
    box.send(3)
    a, b, c = box.take(3)
    box.ack(b)
    before = box.state()

    assert box.release(a, b, c, a) == "1010"

    assert box.changed(before) == {
        ("slot", "front"): "-2",
        ("prepare", a.id): GONE,
        ("prepare", c.id): GONE,
        ("store", a.id): ordered(100, -1),
        ("store", c.id): ordered(100, 0),
    }


def test_release_wakes_who_waits(box):
    box.one()
    lease = box.take_one()
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)

    box.release(lease)

    assert box.counter("waiting") == 0


def test_newcomers_stand_behind_what_was_handed_back_for_ever(box):
    given = box.send(3, priority=17)
    for _ in range(50):
        leases = box.take(3)
        assert [lease.id for lease in leases] == given
        box.release(*leases)
    late = box.one(priority=17)

    assert box.drained() == [*given, late]


def test_a_thousand_in_one_call_keep_their_order(box):
    given = box.send(1000, priority=1_048_575)

    assert box.release(*box.take(1000)) == "1" * 1000
    assert [lease.id for lease in box.take(1000)] == given
