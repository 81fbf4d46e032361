"""release.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.core.retry import Exponential
from tests.lua.box import GONE, handed_back, ordered, timed
from tests.lua.eventing import (
    LIMIT_MS,
    one_suspended,
    suspend,
    suspend_command,
    suspended,
    wait_at,
    wait_of,
)


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


def test_release_with_an_event_suspends_a_message_until_its_time_limit(box):
    id = box.one(priority=50)
    lease = box.take_one()
    before = box.state()
    session, now = box.session(), box.clock.now_ms

    for _ in range(2):  # a call that arrives twice
        assert box.run(suspend_command(box, [lease], session=session)) == "1"
        assert box.changed(before) == {
            ("slot", "front"): "-1",
            ("prepare", id): GONE,
            ("store", id): timed(now + LIMIT_MS, True),
            ("waits", id): now,
            wait_at(id): wait_of(box),
            ("slot", "waited"): "1",
            ("slot", "suspended"): "1",
            ("slot", "large"): "1",
        }


def test_release_with_an_event_suspends_only_deliveries_with_a_valid_receipt(box):
    box.send(2)
    lost, kept = box.take(2)
    box.release(lost)

    assert suspend(box, lost, kept) == "01"

    assert box.state()["waits"] == {kept.id: box.clock.now_ms}
    assert suspended(box) == {"waited": "1", "suspended": "1", "large": "1"}


def test_a_message_that_waits_again_is_counted_once(box):
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    suspend(box, box.take_one(), key=b"second")  # its consumer has not read its events

    assert suspended(box) == {"waited": "1", "suspended": "1", "large": "1"}
    assert box.state()["bodies"] == {wait_at(id)[1]: wait_of(box, key=b"second")}


def test_a_cancelled_delivery_is_not_suspended(box):
    id = box.one()
    lease = box.take_one()
    box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), id, running=True))

    assert suspend(box, lease) == "c"

    state = box.state()
    assert not {"waits", "bodies", "records"} & state.keys()
    assert not {"waited", "suspended", "large"} & state["slot"].keys()


def test_a_thousand_deliveries_are_suspended_in_one_call(box):
    box.send(1000)

    assert suspend(box, *box.take(1000)) == "1" * 1000

    assert suspended(box) == {"waited": "1000", "suspended": "1000", "large": "1000"}
    assert len(box.state()["waits"]) == 1000


@pytest.mark.parametrize(("key", "limit_ms"), [(bytes(256), 1000), (b"key", 0)])
def test_an_event_needs_a_short_key_and_a_time_limit(box, key, limit_ms):
    box.one()
    lease = box.take_one()
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG event"):
        suspend(box, lease, key=key, limit_ms=limit_ms)
    assert box.changed(before) == {}


def test_in_order_a_suspended_message_goes_to_its_old_place_and_the_next_take_waits(box):
    first, second = box.send(2)
    lease, other = box.take(2, ordered=True)
    before = box.state()

    suspend(box, lease)
    box.release(other)

    assert box.order()[::-1] == [first, second]
    changed = box.changed(before)
    assert ("slot", "ordered") not in changed
    assert ("slot", "holder") not in changed
    assert box.take(2, ordered=True) == []
    assert box.state()["slot"]["holder"] == first


def test_messages_are_suspended_at_maxmemory(tight):
    id = tight.one()
    command = suspend_command(tight, [tight.take_one()])
    tight.redis.script_load(command.script.text)
    tight.redis.config_set("maxmemory", 1)

    assert tight.run(command) == "1"
    assert tight.state()["waits"] == {id: tight.clock.now_ms}


@pytest.mark.parametrize(
    "given_back", [(1, 2, 3), (3, 1, 2), (1, 3), (0, 4), (2,), (0, 1, 2, 3, 4)]
)
@pytest.mark.parametrize("verb", ["release", "nack"])
def test_given_back_deliveries_leave_and_all_others_stay(box, verb, given_back):
    given = box.send(5)
    taken = box.take(5)
    before = box.state()["prepare"]

    letters = getattr(box, verb)(*[taken[n] for n in given_back])

    assert set(letters) <= {"1", "r"}
    after = box.state().get("prepare", {})
    assert after == {id: before[id] for n, id in enumerate(given) if n not in given_back}
    assert len(box.order()) == len(given_back)
