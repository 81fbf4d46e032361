"""Groups where somebody changes, drops or purges a message, or a query takes it."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.features.dead_letters import scripts as dead_scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts as producer_scripts
from tests.lua import query
from tests.lua.box import Box
from tests.lua.group import (
    cancel,
    check,
    drained,
    entry,
    grouped,
    held,
    nothing_left,
    one,
    out,
    parts_of,
    purge,
    release,
    reschedule,
    send,
    set_priority,
    slow,
)

HOLD = rmq.Groups(on_dead="hold")


# --- one message


def test_cancel_of_a_held_one_forgets_it(make_box):
    box = grouped(make_box)
    a, b, c = send(box, "a", "a", "a")

    assert cancel(box, b) == "cancelled"

    check(box)
    assert drained(box) == [a, c]
    nothing_left(box)


def test_cancel_of_the_only_held_one_gives_its_lane_back(make_box):
    """Else another group may get the number, and one lets the other's messages go."""
    box = grouped(make_box)
    a, b = send(box, "a", "a")

    assert cancel(box, b) == "cancelled"

    check(box)
    assert entry(box).lanes == ()
    box.redis.hset(box.keys.slot, "lane", 0)  # after as many others as there are lanes
    x, y = send(box, "x", "x")
    c = one(box)
    check(box)
    assert sorted(drained(box)) == sorted([a, c, x, y])


def test_cancel_of_the_head_lets_the_next_one_go_and_wakes(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    assert cancel(box, a) == "cancelled"

    check(box)
    assert out(box) == [b]
    assert box.counter("waiting") == 0


def test_cancel_of_a_retry_that_waits_lets_the_next_one_go(make_box):
    box = slow(make_box)
    a, b = send(box, "a", "a")
    box.nack(box.take_one())

    assert cancel(box, a) == "cancelled"

    check(box)
    assert out(box) == [b]


def test_cancel_of_one_whose_time_has_not_come_frees_nothing(make_box):
    box = grouped(make_box)
    later = one(box, due=5000)
    a, b = send(box, "a", "a")

    assert cancel(box, later) == "cancelled"

    check(box)
    assert out(box) == [a]
    assert held(box) == [b]


@pytest.mark.parametrize("which", ["head", "held"])
def test_reschedule_puts_it_behind_when_it_is_due(make_box, which):
    box = grouped(make_box)
    a, b, c = send(box, "a", "a", "a")
    id = {"head": a, "held": b}[which]

    assert reschedule(box, id, 1000)[0] == "rescheduled"

    check(box)
    assert out(box) == ([b] if which == "head" else [a])
    box.clock.advance(1.1)
    assert drained(box) == [x for x in (a, b, c) if x != id] + [id]
    nothing_left(box)


def test_reschedule_of_a_retry_makes_its_group_wait_until_then(make_box):
    box = slow(make_box)
    a, b = send(box, "a", "a")
    box.nack(box.take_one())

    reschedule(box, a, 9000)

    check(box)
    box.clock.advance(5)
    assert box.take(10) == []
    box.clock.advance(5)
    assert drained(box) == [a, b]


def test_set_priority_of_a_held_one_moves_it_to_the_lane_of_that(make_box):
    box = grouped(make_box)
    given = send(box, *"aaaa")
    lease = box.take_one()

    assert set_priority(box, given[2], 500) == "changed"

    check(box)
    box.ack(lease)
    assert drained(box) == [given[2], given[1], given[3]]
    nothing_left(box)


def test_set_priority_of_the_only_held_one_leaves_no_empty_lane(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")
    lease = box.take_one()

    assert set_priority(box, b, 500) == "changed"

    check(box)
    assert entry(box).largest == 500
    box.ack(lease)
    assert drained(box) == [b]
    assert a
    nothing_left(box)


def test_set_priority_of_a_held_one_may_replace_the_head(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")

    assert set_priority(box, b, 500) == "changed"

    check(box)
    assert out(box) == [b]
    assert drained(box) == [b, a]
    nothing_left(box)


def test_set_priority_of_what_is_out_keeps_it_out(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")

    assert set_priority(box, a, 17) == "changed"

    check(box)
    assert entry(box).priority == 17
    assert drained(box) == [a, b]
    nothing_left(box)


def test_set_priority_of_a_retry_counts_when_it_is_due(make_box):
    box = slow(make_box)
    a, b = send(box, "a", "a")
    box.nack(box.take_one())
    assert set_priority(box, a, 900) == "changed"
    box.clock.advance(1.1)
    later = one(box, due=1)  # makes the next take find two that are due
    box.clock.advance(0.1)
    lease = box.take_one()
    box.release(lease)
    assert lease.id == a

    high = one(box, priority=500)

    check(box)
    assert entry(box).priority == 900
    assert drained(box) == [a, high, b, later]


# --- expiry


@pytest.mark.parametrize("way", ["take", "drop_expired"])
@pytest.mark.parametrize("on_expire", ["drop", "dead"])
@pytest.mark.parametrize("on_dead", ["continue", "hold"])
def test_expiry_of_head_and_held(make_box, way, on_expire, on_dead):
    box = grouped(make_box, rmq.Groups(on_dead=on_dead), on_expire=on_expire)
    a, b = one(box, expires=1000), one(box, expires=1000)
    c = one(box)
    d = one(box, expires=1000)
    box.clock.advance(2)

    if way == "take":
        for _ in range(3):
            box.take(10)
            check(box)
    else:
        box.run(dead_scripts.drop_expired(box.handle, box.keys, 0, 1000))
    state = check(box)

    held_up = on_dead == "hold" and on_expire == "dead"
    dead = set(state.get("dead", {}))
    if way == "drop_expired":
        assert dead == ({a, b, d} if on_expire == "dead" else set())
        assert out(box) == ([] if held_up else [c])
    elif held_up:
        assert dead == {a}
        assert held(box) == [b, c, d]
    else:
        assert list(state["prepare"]) == [c]


@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_expiry_of_a_delayed_one_that_dies_holds_its_group(make_box, order, alone):
    box = grouped(make_box, rmq.Groups(order=order, on_dead="hold"), on_expire="dead")
    first = [] if alone else [one(box)]
    late = one(box, due=100, expires=100)
    box.clock.advance(2)

    box.run(dead_scripts.drop_expired(box.handle, box.keys, 0, 1000))
    behind = one(box)

    state = check(box)
    assert list(state["dead"]) == [late]
    assert state["slot"]["groups_held"] == "1"
    assert (out(box), held(box)) == (first, [behind])
    assert release(box, "a")
    assert drained(box) == [*first, behind]
    assert entry(box) is None


def test_expiry_of_a_retry_that_waits_holds_its_group(make_box):
    box = slow(make_box, rmq.Groups(order=False, on_dead="hold"), on_expire="dead")
    retry, other = one(box, expires=1500), one(box)
    box.nack(box.take_one())
    box.clock.advance(2)

    box.run(dead_scripts.drop_expired(box.handle, box.keys, 0, 1000))

    state = check(box)
    assert list(state["dead"]) == [retry]
    assert state["slot"]["groups_held"] == "1"
    assert out(box) == [other], "it was out before"


@pytest.mark.parametrize("on_expire", ["drop", "dead"])
def test_expiry_of_the_head_lets_the_next_one_go_and_wakes(make_box, on_expire):
    box = grouped(make_box, on_expire=on_expire)
    one(box, expires=1000)
    following = one(box)
    box.clock.advance(2)
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    box.run(dead_scripts.drop_expired(box.handle, box.keys, 0, 1000))

    assert out(box) == [following]
    assert box.counter("waiting") == 0


def test_purge_of_a_retry_that_waits_lets_the_next_one_go_and_wakes(make_box):
    box = slow(make_box)
    retry, following = send(box, "a", "a")
    box.nack(box.take_one())
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    assert purge(box, ids=[retry]) == 1

    check(box)
    assert out(box) == [following]
    assert box.counter("waiting") == 0


def test_expiry_of_a_held_one_that_dies_holds_its_group(make_box):
    box = grouped(make_box, HOLD, on_expire="dead")
    a = one(box)
    b = one(box, expires=1000)
    c = one(box)
    box.clock.advance(2)

    box.run(dead_scripts.drop_expired(box.handle, box.keys, 0, 1000))

    check(box)
    assert list(box.state()["dead"]) == [b]
    box.ack(box.take_one())
    check(box)
    assert out(box) == []
    assert held(box) == [c]
    assert a


def test_due_messages_enter_before_expired_ones_leave_in_one_take(make_box):
    box = grouped(make_box, on_expire="drop")
    a = one(box, expires=500)
    later = [one(box, due=1000), one(box, due=1000, expires=1)]
    b = one(box)
    box.clock.advance(2)

    assert box.take(10) == []
    assert check(box)["slot"]["expired"] == "1"
    assert out(box) == [b]
    assert held(box) == later
    assert drained(box) == [b, later[0]]
    assert a not in check(box).get("records", {})
    assert drained(box) == []
    nothing_left(box)


# --- purge


@pytest.mark.parametrize("limit", [2, 3, 1000])
def test_purge_by_pages_leaves_nothing(make_box, limit):
    box = slow(make_box)
    send(box, *"aaabbc", None)
    one(box, priority=500)
    one(box, due=60_000)
    box.nack(box.take_one())
    check(box)

    while purge(box, limit=limit):
        check(box)

    nothing_left(box)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_purge_by_ids_lets_the_next_ones_go_out(make_box, concurrency):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=concurrency))
    given = send(box, *"aaaaaa")

    assert purge(box, ids=[given[0], given[3]]) == 2

    check(box)
    assert out(box) == [given[n] for n in (1, 2)][:concurrency]
    assert drained(box) == [given[n] for n in (1, 2, 4, 5)]
    nothing_left(box)


def test_purge_of_one_id_that_is_given_twice_lets_one_go_out(make_box):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=2))
    given = send(box, *"aaaaaa")

    assert purge(box, ids=[given[0], given[0]]) == 1

    check(box)
    assert out(box) == given[1:3]


# --- queries


def settle(box: Box, upto: int = 10_000, since: int = 0, limit: int = 4000) -> Any:
    return box.run(queries_scripts.query_settle(box.handle, box.keys, query.ME, since, upto, limit))


def test_query_settles_messages_of_groups_and_wakes(make_box):
    box = grouped(make_box)
    given = send(box, *"aabbc")
    query.take(box)
    check(box)
    assert len(query.log(box)) == 3
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    assert settle(box).settled == 3

    check(box)
    assert sorted(out(box)) == sorted([given[1], given[3]])
    assert box.counter("waiting") == 0


def test_query_settles_four_thousand_groups_of_which_each_has_more(make_box):
    box = grouped(make_box)
    names = [f"group {n}" for n in range(4000)]
    for part in range(0, 4000, 1000):
        parts = [part for name in names[part : part + 1000] for part in parts_of(name)]
        for _ in range(2):
            box.run(
                producer_scripts.send(box.handle, box.keys, box.session(), box.ids(1000), parts, {})
            )
    check(box)
    for after in range(0, 4000, 1000):
        query.take(box, after, 1000)
    assert len(query.log(box)) == 4000

    assert settle(box, limit=4000).settled == 4000

    check(box)
    assert len(out(box)) == 4000
    assert held(box) == []


def test_query_rejects_messages_of_groups(make_box):
    box = grouped(make_box, HOLD)
    a1, a2, b1, b2 = send(box, *"aabb")
    query.take(box, limit=1)
    (first,) = query.log(box)

    box.run(queries_scripts.query_reject(box.handle, box.keys, query.ME, 100, b"no", 100))

    check(box)
    assert list(box.state()["dead"]) == [first]
    assert out(box) == ([b1] if first == a1 else [a1])
    assert set(held(box)) == {a2, b2}


@pytest.mark.parametrize("retry", [True, False])
def test_query_fails_messages_of_groups(make_box, retry):
    box = slow(make_box, rmq.Groups(order=False, concurrency=1))
    a1, a2 = send(box, *"aa")
    query.take(box, limit=1)
    query.renew(box)
    query.read(box)
    failing = [queries_scripts.Failing(1, member_of(a1), b"why")]

    letters = box.run(queries_scripts.query_fail(box.handle, box.keys, query.RUN, failing, retry))

    assert letters == ("r" if retry else "d")
    check(box)
    assert out(box) == [a2]


def test_query_gives_back_what_it_did_not_read(make_box):
    box = grouped(make_box)
    given = send(box, *"aab")
    query.take(box)

    box.run(queries_scripts.query_release(box.handle, box.keys, query.ME, 0, 100))

    check(box)
    assert set(out(box)) == {given[0], given[2]}
    assert held(box) == [given[1]]


def test_query_whose_lease_has_ended_gives_its_messages_back_and_may_still_settle_them(make_box):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=1))
    a1, a2, b1 = send(box, *"aab")
    query.take(box)
    query.read(box)
    query.lapse(box, force=True)
    box.clock.advance(2)
    box.rollback()
    check(box)
    assert set(out(box)) | set(box.state()["store"]) >= {a1, b1}

    settle(box)

    check(box)
    assert set(box.state()["records"]) <= {a1, a2, b1}


# --- publish, redrive from another topic


def test_publish_of_a_stage_enters_groups(make_box):
    box = grouped(make_box)
    (first,) = send(box, "a")
    ids = box.ids(3)
    for place, id in enumerate(ids):
        entry = [member_of(id), *parts_of("a")]
        box.run(queries_scripts.stage_push(box.keys, "stage", place, 60_000, entry))
    box.run(queries_scripts.stage_push(box.keys, "stage", 3, 60_000, []))

    for _ in ids:
        box.run(queries_scripts.publish(box.handle, box.keys, box.session(), "stage"))

    check(box)
    assert out(box) == [first]
    assert held(box) == ids


def test_publish_of_many_that_differ_in_their_bodies_alone(make_box):
    box = grouped(make_box)
    (first,) = send(box, "a")
    ids, parts = box.ids(5), [parts_of(name) for name in "aabbb"]
    entry = ["p", parts[0][0], member_of(ids[0]), 5]
    rests = [rest for _, rest in parts]
    box.run(queries_scripts.stage_push(box.keys, "stage", 0, 60_000, entry, rests))

    box.run(queries_scripts.publish(box.handle, box.keys, box.session(), "stage"))

    check(box)
    assert first in out(box)
    assert len(out(box)) == 2
    assert len(held(box)) == 4


def test_query_that_lost_a_message_twice_settles_it_once(make_box):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=2))
    a1, a2, a3, a4 = send(box, *"aaaa")
    for after in (0, 1):
        query.take(box, after, limit=1, holder=query.EXACT)
        assert list(box.state()["prepare"]) == [a1]
        query.lapse(box, force=True)
        box.clock.advance(2)
        box.rollback()
        check(box)
        if after == 0:  # so that it is what goes next
            box.redis.zadd(box.keys.store, {member_of(a1): 1000})
    box.redis.zadd(box.keys.store, {member_of(a1): 14.5})

    reply = box.run(queries_scripts.query_settle(box.handle, box.keys, query.EXACT, 0, 2, 100))

    assert reply.settled == 1
    check(box)
    assert out(box) == [a2, a3]
    assert held(box) == [a4]


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_delivery_that_is_given_twice_in_a_call_leaves_once(make_box, verb):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=2), max_retries=0)
    send(box, *"aaaaaa")
    lease, _ = box.take(2)

    getattr(box, verb)(lease, lease)

    check(box)
