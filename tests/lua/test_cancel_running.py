"""cancel.lua of a delivery, and the scripts that end it, on a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rmq.features.messages import scripts
from rmq.kernel.core import ids
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.retry import Exponential
from tests.lua import shared
from tests.lua.box import GONE, Box, Lease
from tests.lua.group import check, drained, grouped, nothing_left, send
from tests.lua.numbers import begin, numbered, open_of
from tests.lua.query import renew as own_query, take as take_for_query

ENDS = ("nack", "reject", "release", "rollback")


def cancel(box: Box, id: bytes, receipt: float | None = None, **options: Any) -> str:
    session = options.pop("session", None) or box.session()
    command = scripts.cancel(box.handle, box.keys, session, id, True, receipt)
    return box.run(command)


def flag(id: bytes) -> str:
    return "~" + member_of(id).hex()


def end(box: Box, verb: str, *leases: Lease) -> Any:
    """Give deliveries back by a verb; its answer. A rollback comes after their deadline."""
    if verb == "rollback":
        box.clock.advance(31)
        return box.rollback()
    return getattr(box, verb)(*leases)


def commands(box: Box, verb: str, leases: list[Lease]) -> Any:
    session = box.session()
    return lambda: getattr(box, f"{verb}_command")(leases, session)


# --- the request -------------------------------------------------------------------------------


def test_request_is_a_field_of_the_delivery_and_is_published(box):
    box.one()
    lease = box.take_one()
    before, session = box.state(), box.session()
    listener = box.redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(box.handle.channel)
    listener.get_message(timeout=1)

    answer = box.twice(lambda: scripts.cancel(box.handle, box.keys, session, lease.id, True))

    assert answer == "requested"
    delivery = f"{lease.receipt % 1000:.17g}"
    assert box.changed(before, replay=True) == {
        ("slot", "cancelling"): "1",
        ("slot", flag(lease.id)): delivery.encode(),
        (f"replay:{session.name[1:].decode()}",): b"1:r",
    }
    published = [listener.get_message(timeout=1), listener.get_message(timeout=0.05)]
    assert published[0]["data"] == b"cancel 0 %b %b" % (delivery.encode(), member_of(lease.id))
    assert published[1] is None


def test_every_status_but_requested_and_cancelled_changes_nothing(box):
    waiting, dead, gone = box.one(priority=20), box.one(), box.one()
    box.ack(*[x for x in box.take(2) if x.id == gone or box.reject(x) == ""])
    box.one()
    lease = box.take_one()
    box.release(lease)
    current = box.take_one()
    assert current.id == lease.id
    assert cancel(box, lease.id) == "requested"
    before = box.state()

    assert cancel(box, dead) == "dead"
    assert cancel(box, gone) == "gone"
    assert cancel(box, box.ids()[0]) == "gone"
    assert cancel(box, current.id) == "already_requested"
    assert cancel(box, current.id, current.receipt) == "already_requested"
    assert cancel(box, current.id, lease.receipt) == "old_delivery"
    assert cancel(box, waiting, lease.receipt) == "old_delivery"
    assert box.run(scripts.cancel(box.handle, box.keys, box.session(), current.id)) == "in_flight"
    assert box.changed(before) == {}
    assert cancel(box, waiting) == "cancelled"


def test_message_of_a_query_is_refused(box):
    id = box.one()
    own_query(box)
    take_for_query(box)
    before = box.state()

    assert cancel(box, id) == "in_query"
    assert box.changed(before) == {}


def test_receipt_names_its_delivery_after_an_extend_and_under_a_shared_lease(box):
    box.send(2)
    lease = box.take_one()
    box.run(box.extend_command([lease], box.session(), 90_000))
    (other,) = shared.take(box)

    assert cancel(box, lease.id, lease.receipt) == "requested"
    assert cancel(box, other.id, other.receipt) == "requested"
    assert box.counter("cancelling") == 2


def test_wrong_argument_changes_nothing(box):
    box.one()
    lease = box.take_one()
    good = scripts.cancel(box.handle, box.keys, box.session(), lease.id, True)
    before = box.state()

    for place, value in ((4, "2"), (4, ""), (6, "x"), (6, "1 2")):
        args = list(good.args)
        args[place] = value
        with pytest.raises(redis.ResponseError, match="RMQARG"):
            box.raw("cancel", good.keys, args)
    assert box.changed(before) == {}


# --- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["nack", "reject", "release"])
def test_delivery_that_is_given_back_ends_as_cancelled_and_leaves_nothing(box, verb):
    kept, plain = box.one(kept=True, priority=30), box.one(priority=20)
    leases = box.take(2)
    assert [lease.id for lease in leases] == [kept, plain]
    cancel(box, kept)
    before = box.state()

    letters = box.twice(commands(box, verb, leases))

    assert letters == {"nack": "cr", "reject": "cd", "release": "c1"}[verb]
    changed = box.changed(before)
    gone = {
        ("slot", "cancelled"): "1",
        ("slot", "settled_turn"): str(box.clock.now_ms // 60_000),
        ("slot", "cancelling"): GONE,
        ("slot", flag(kept)): GONE,
        ("prepare", kept): GONE,
        ("records", kept): GONE,
        (box.settled_set(), kept): True,
    }
    assert {place: value for place, value in changed.items() if place in gone} == gone
    assert not [place for place in changed if kept in place and place not in gone]
    assert box.run(box.send_command([kept])).codes == "d"
    assert box.redis.hget(box.keys.records, member_of(plain))


def test_lease_that_expires_ends_as_cancelled_and_costs_no_rollback(box):
    first, second = box.send(2)
    box.take(2)
    cancel(box, first)
    box.clock.advance(31)

    assert box.rollback() == (1, 0, False, 1)

    assert (box.counter("cancelled"), box.counter("rolled_back")) == (1, 1)
    assert box.order() == [second]
    before = box.state()
    assert box.rollback() == (0, 0, False, 0)
    assert box.changed(before) == {}


def test_last_retry_of_a_cancelled_message_makes_no_dead_letter(make_box):
    box = make_box(max_retries=0)
    for verb in ENDS:
        box.one()
        lease = box.take_one()
        cancel(box, lease.id)

        end(box, verb, lease)

        assert not {"dead", "records", "failures", "prepare", "store"} & box.state().keys()
    assert (box.counter("cancelled"), box.counter("dead_lettered")) == (len(ENDS), 0)


@pytest.mark.parametrize("verb", ENDS)
def test_failed_message_of_before_leaves_no_failure_entry(make_box, verb):
    box = make_box(retry=Exponential(1, 2))
    box.one()
    box.nack(box.take_one(), wait_ms=0)
    lease = box.take_one()
    cancel(box, lease.id)

    end(box, verb, lease)

    assert not {"dead", "records", "failures", "prepare", "store"} & box.state().keys()


def test_ack_wins_and_forgets_the_request(box):
    for count in (1, 3):
        box.send(count)
        leases = box.take(count)
        for lease in leases:
            cancel(box, lease.id)
        settled = box.counter("settled")

        assert box.twice(commands(box, "ack", leases)) == "1" * count

        assert box.counter("settled") == settled + count
        assert not [field for field in box.state()["slot"] if field[0] == "~"]
        assert "cancelling" not in box.state()["slot"]
        assert box.counter("cancelled") == 0


def test_request_for_one_delivery_says_nothing_about_the_next(box):
    """A client with older scripts may give a delivery back and leave the request."""
    box.one()
    lease = box.take_one()
    cancel(box, lease.id)
    box.redis.hdel(box.keys.slot, "cancelling")
    box.release(lease)
    box.redis.hset(box.keys.slot, "cancelling", 1)
    again = box.take_one()

    assert box.nack(again) == "r"
    assert cancel(box, box.take_one().id) == "requested"
    assert box.counter("cancelling") == 1


def test_extend_renews_the_lease_and_says_that_it_is_cancelled(box):
    box.send(2)
    first, second = box.take(2)
    cancel(box, first.id)
    stale = second._replace(receipt=second.receipt + 1000)

    assert box.run(box.extend_command([stale, first], box.session())).codes == "0c"
    deadline = box.score(first.id, "prepare")
    assert deadline == first.receipt + 30_000


def test_renewal_of_a_shared_lease_returns_the_number_of_requests(box):
    box.send(3)
    leases = shared.take(box)
    number = shared.number_now(box)
    renew = shared.scripts.lease_renew(box.keys, number, 30_000)
    assert box.run(renew).cancelling == 0
    cancel(box, leases[0].id)
    cancel(box, leases[2].id)

    assert box.run(renew) == (30_000, 2)
    box.ack(leases[0])
    assert box.run(renew).cancelling == 1
    box.nack(leases[2])
    assert box.run(renew).cancelling == 0


def test_cancelled_delivery_of_a_worker_that_died_is_not_released_but_ends(box):
    leases = [*shared.take(box, 3)] if box.send(3, priority=50) else []
    number = shared.number_now(box)
    cancel(box, leases[1].id)

    assert shared.release(box, number, 1) == 1
    assert shared.release(box, number, 1) == 1
    assert shared.release(box, number, 1) == 0
    assert box.order() == [leases[2].id, leases[0].id]
    box.clock.advance(31)
    assert shared.rollback(box) == (1, False)
    assert box.rollback() == (0, 0, False, 1)
    assert (box.counter("cancelled"), box.counter("rolled_back")) == (1, 0)


# --- what else belongs to a message ------------------------------------------------------------


@pytest.mark.parametrize("verb", ENDS)
def test_next_message_of_the_group_goes_out(make_box, verb):
    box = grouped(make_box)
    first, second, other = send(box, "a", "a", "b")
    lease = next(lease for lease in box.take(2) if lease.id == first)
    cancel(box, first)

    end(box, verb, lease)
    check(box)

    assert set(drained(box)) >= {second}
    assert first not in box.state().get("records", {})
    if verb == "rollback":
        assert other not in box.state().get("records", {})
        nothing_left(box)


@pytest.mark.parametrize("verb", ENDS)
def test_number_of_an_audited_message_is_accounted_for(box, verb):
    begin(box)
    numbered(box, 1)
    lease = box.take_one()
    cancel(box, lease.id)

    end(box, verb, lease)

    assert open_of(box) == [(2, None)]
    assert (box.counter("accounted"), box.counter("seen")) == (1, 0)


@pytest.mark.parametrize("verb", ENDS)
def test_large_body_is_removed(box, verb):
    box.one(large=b"x" * 5000)
    lease = box.take_one()
    cancel(box, lease.id)

    end(box, verb, lease)

    assert "bodies" not in box.state()
    assert "large" not in box.state()["slot"]


@pytest.mark.parametrize("verb", ENDS)
@pytest.mark.parametrize("wait_ms", [0, 5000])
def test_slot_in_order_goes_on_with_the_next_message(box, verb, wait_ms):
    first, second = box.send(2)
    (lease,) = box.take(1, ordered=True)
    box.redis.hset(box.keys.slot, "blocked", box.clock.now_ms + 100_000)
    cancel(box, first)

    if wait_ms and verb in ("nack", "release"):
        getattr(box, verb)(lease, wait_ms=wait_ms)
    else:
        end(box, verb, lease)

    assert "blocked" not in box.state()["slot"]
    assert [x.id for x in box.take(1, ordered=True)] == [second]


def test_dedup_key_of_a_cancelled_message_may_be_used_again(box):
    id = ids.derive(b"k", box.keys.index, 0)
    box.run(box.send_command([id]))
    lease = box.take_one()
    cancel(box, id)

    assert box.nack(lease) == "c"
    assert box.run(box.send_command([id])).codes == ""


@pytest.mark.parametrize("verb", ENDS)
@pytest.mark.parametrize("place", ["settled0", "settled1", "audit", "failures", "bodies"])
def test_key_of_a_wrong_type_stops_the_script_before_it_writes(box, verb, place):
    begin(box)
    numbered(box, 1)
    lease = box.take_one()
    cancel(box, lease.id)
    key = getattr(box.keys, place)
    box.redis.delete(key)
    box.redis.set(key, "a string")
    if verb == "rollback":
        box.clock.advance(31)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        box.rollback() if verb == "rollback" else end(box, verb, lease)
    assert box.changed(before) == {}


def test_at_maxmemory_a_request_is_stored_and_the_message_ends(box):
    for verb in ENDS:
        box.one(kept=True)
        lease = box.take_one()
        box.redis.config_set("maxmemory", 1)
        try:
            assert cancel(box, lease.id) == "requested"
            end(box, verb, lease)
        finally:
            box.redis.config_set("maxmemory", 0)
        assert lease.id not in box.state().get("records", {})
    assert box.counter("cancelled") == len(ENDS)


def test_many_at_once(box):
    given = box.send(400)
    leases = box.take(400)
    for lease in leases[::2]:
        cancel(box, lease.id)

    assert box.release(*leases) == "c1" * 200
    assert (box.counter("cancelled"), "cancelling" in box.state()["slot"]) == (200, False)
    assert sorted(box.order()) == sorted(given[1::2])
