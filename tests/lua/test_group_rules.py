"""Groups: what each verb does to a group, by every key of the slot before and after."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.features.dead_letters import scripts as dead_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.queries import scripts as queries_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.retry import Levels
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua import query
from tests.lua.box import Box
from tests.lua.group import (
    LANE,
    check,
    drained,
    entry,
    grouped,
    held,
    nothing_left,
    one,
    out,
    parts_of,
    send,
)
from tests.lua.reading import HELD, MORE, SINGLE

FIRST = 2**31  # the place of the first message in a lane
HOLD = rmq.Groups(on_dead="hold")


def slow(make_box: Any, groups: rmq.Groups | None = None, **given: Any) -> Box:
    """Retries wait for a second."""
    return grouped(make_box, groups, retry=Levels((1.0,)), max_retries=2, **given)


def cancel(box: Box, id: bytes) -> Any:
    return box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), id))


def reschedule(box: Box, id: bytes, due: int) -> Any:
    return box.run(messages_scripts.reschedule(box.handle, box.keys, box.session(), id, due))


def set_priority(box: Box, id: bytes, priority: int) -> Any:
    return box.run(messages_scripts.set_priority(box.keys, box.session(), id, priority))


def redrive(box: Box, *ids: bytes) -> Any:
    return box.run(dead_scripts.redrive(box.handle, box.keys, box.session(), ids))


def purge(box: Box, queue: str = "store", **how: Any) -> Any:
    return box.run(topic_scripts.purge(box.keys, box.session(), queue, **how))


# --- send


def test_first_of_a_group_goes_out_and_the_others_are_held_in_its_lane(make_box):
    box = grouped(make_box)

    a, b, c = send(box, "a", "a", "a")

    state = check(box)
    known = entry(box)
    assert (known.flags, known.out, known.priority) == (SINGLE, a, 100)
    assert known.lanes == ((100, 1, FIRST + 2),)
    assert known.front == (b, c)
    assert state["store"][b] == FIRST - 2 * LANE
    assert state["store"][c] == FIRST + 1 - 2 * LANE
    assert out(box) == [a]
    assert drained(box) == [a, b, c]
    nothing_left(box)


def test_front_has_some_members_and_more_are_looked_up(make_box):
    box = grouped(make_box)
    given = send(box, *"a" * 19)

    known = entry(box)
    assert known.front == tuple(given[1 : 1 + len(known.front)])
    assert 4 <= len(known.front) <= 19
    assert known.flags == SINGLE | MORE
    assert drained(box) == given
    nothing_left(box)


def test_groups_of_a_batch_do_not_hold_each_other(make_box):
    box = grouped(make_box)
    a1, b1, a2, b2, none1, none2 = send(box, "a", "b", "a", "b", None, None)

    assert {x.id for x in box.take(10)} == {a1, b1, none1, none2}
    assert held(box) == [b2, a2]  # the lane of b has the larger number


def test_larger_priority_replaces_the_head_that_waits_and_not_one_in_flight(make_box):
    box = grouped(make_box)
    low, low2 = send(box, "a", "a")

    high = one(box, priority=500)

    assert out(box) == [high]
    assert held(box) == [low, low2]
    (lease,) = box.take(10)
    higher = one(box, priority=900)
    assert out(box) == []
    assert box.ack(lease) == "1"
    assert drained(box) == [higher, low, low2]
    nothing_left(box)


@pytest.mark.parametrize("how", ["set_priority", "release"])
def test_larger_priority_than_the_heads_does_not_pass_those_that_are_held(make_box, how):
    box = grouped(make_box)
    if how == "set_priority":
        head, first = send(box, "a", "a")
        set_priority(box, head, 50)
    else:
        head = one(box, priority=50)
        lease = box.take_one()
        first = one(box)
        box.release(lease)

    second = one(box)

    check(box)
    assert held(box) == [first, second]
    assert drained(box) == [head, first, second]


def test_held_messages_go_by_priority_and_then_as_they_were_sent(make_box):
    box = grouped(make_box)
    given = {p: send(box, "a", "a", priority=p) for p in (300, 100, 200, 17, 1_048_575)}

    first, second = given[1_048_575]
    wanted = [first, second, *given[300], *given[200], *given[100], *given[17]]
    assert drained(box) == wanted
    nothing_left(box)


def test_a_batch_in_which_each_priority_is_larger_keeps_all_of_them(make_box):
    box = grouped(make_box)
    given, parts = box.ids(6), []
    for n in range(6):
        parts += parts_of("a", priority=100 + n // 2)
    box.run(producer_scripts.send(box.handle, box.keys, box.session(), given, parts, {}))

    check(box)
    assert drained(box) == [given[n] for n in (4, 5, 2, 3, 0, 1)]
    nothing_left(box)


def test_a_duplicate_enters_no_group_a_second_time(make_box):
    box = grouped(make_box)
    (id,) = one_id = box.ids(kept=True)
    for letter in ("", "d"):
        reply = box.run(
            producer_scripts.send(box.handle, box.keys, box.session(), one_id, [*parts_of("a")], {})
        )
        assert reply.letters == letter
        check(box)

    assert drained(box) == [id]
    nothing_left(box)


@pytest.mark.parametrize("size", [1, 31, 32, 200])
@pytest.mark.parametrize("share", [None, "s", "t" * 200])
@pytest.mark.parametrize("audited", ["", "0123456789abcdef.1a2b"])
def test_groups_of_every_length_are_found_whatever_stands_beside_them(
    make_box, size, share, audited
):
    box = grouped(make_box)
    name = "n" * size

    given = [one(box, name, share=share, weight=64, audited=audited) for _ in range(3)]

    assert "/" + name in check(box)["slot"]
    assert drained(box) == given
    nothing_left(box)


def test_max_length_counts_what_is_held(make_box):
    box = grouped(make_box, max_length=3, slots=1)
    send(box, "a", "a", "a")
    before = box.state()
    reply = box.run(
        producer_scripts.send(box.handle, box.keys, box.session(), box.ids(), [*parts_of("a")], {})
    )

    assert reply.letters == "F"
    assert box.changed(before) == {}


def test_messages_without_a_group_are_out_up_to_a_thousand(make_box):
    box = grouped(make_box)
    given = send(box, *[None] * 1000)
    given += send(box, *[None] * 3)

    assert len(out(box)) == 1000
    assert held(box) == given[1000:]
    assert entry(box, "").out == 1000
    leases = box.take(2)
    box.ack(*leases)
    check(box)
    assert held(box) == given[1002:]
    assert drained(box, 100) == given[2:]
    nothing_left(box)


def test_of_a_group_not_ordered_so_many_are_out(make_box):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=3))
    given = send(box, *"aaaaaaaaa")

    assert out(box) == given[:3]
    leases = box.take(10)
    assert [x.id for x in leases] == given[:3]
    box.ack(leases[1])
    assert out(box) == [given[3]]
    box.ack(leases[0], leases[2])
    assert out(box) == given[3:6]
    assert drained(box, 2) == given[3:]
    nothing_left(box)


# --- take


def test_take_moves_the_virtual_time_of_the_slot_on(make_box):
    box = grouped(make_box)
    send(box, "a", "b", "a", "b")
    assert box.counter("vtime") == 0

    first, second = box.take_one(), box.take_one()

    tag = int(64 * (1 + 0.6180339887498949))  # of the first group that the slot has had
    others = int(64 * (1 + 2 * 0.6180339887498949 % 1))
    assert box.counter("vtime") == max(tag, others)
    assert {first.id, second.id} == set(box.state()["prepare"])


def test_groups_take_turns_whatever_waits_behind_one_of_them(make_box):
    box = grouped(make_box)
    many = send(box, *"a" * 20)
    few = send(box, *"bb")

    order = drained(box)

    assert max(order.index(id) for id in few) <= 5
    assert [id for id in order if id in many] == many


def test_weight_of_a_share_gives_it_as_many_turns(make_box):
    box = grouped(make_box)
    gold = [one(box, f"g{n}", share="gold", weight=3) for n in range(3) for _ in range(10)]
    for n in range(3):
        for _ in range(10):
            one(box, f"i{n}", share="iron")

    order = drained(box)

    assert 14 <= sum(id in gold for id in order[:20]) <= 16
    nothing_left(box)


def test_share_field_counts_its_groups_and_is_gone_with_the_last(make_box):
    box = grouped(make_box)
    a, b = one(box, "a", share="s"), one(box, "b", share="s")
    assert "%s" in box.state()["slot"]

    box.ack(box.take_one())
    assert "%s" in check(box)["slot"]
    box.ack(box.take_one())

    nothing_left(box)
    assert {a, b}


# --- settling


def test_ack_lets_the_next_one_go_out_and_wakes_sleepers(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")
    lease = box.take_one()
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    assert box.ack(lease) == "1"

    assert out(box) == [b]
    assert box.counter("waiting") == 0
    assert "records" in check(box)
    assert a not in box.state()["records"]


def test_ack_of_many_settles_all_their_groups(make_box):
    box = grouped(make_box)
    names = [f"g{n}" for n in range(50)]
    given = send(box, *names * 3)

    for round in range(3):
        leases = box.take(100)
        assert {x.id for x in leases} == set(given[50 * round : 50 * round + 50])
        assert box.ack(*leases) == "1" * 50
        check(box)

    nothing_left(box)


def test_stale_ack_changes_nothing(make_box):
    box = grouped(make_box)
    send(box, "a", "a")
    lease = box.take_one()
    box.ack(lease)
    before = box.state()

    assert box.ack(lease) == "0"

    assert box.changed(before) == {}


def test_nack_at_once_stays_out_and_comes_before_those_behind(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")

    assert box.nack(box.take_one(), wait_ms=0) == "r"

    check(box)
    assert out(box) == [a]
    assert drained(box) == [a, b]
    nothing_left(box)


def test_ordered_group_waits_for_the_retry(make_box):
    box = slow(make_box)
    a, b = send(box, "a", "a")

    assert box.nack(box.take_one()) == "r"

    check(box)
    assert out(box) == []
    assert entry(box).out == a
    assert box.take(10) == []
    box.clock.advance(1.1)
    assert drained(box) == [a, b]
    nothing_left(box)


def test_group_not_ordered_goes_on_while_a_retry_waits(make_box):
    box = slow(make_box, rmq.Groups(order=False, concurrency=1))
    a, b, c = send(box, "a", "a", "a")
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    assert box.nack(box.take_one()) == "r"

    check(box)
    assert out(box) == [b]
    assert box.counter("waiting") == 0
    box.clock.advance(1.1)
    assert drained(box) == [b, c, a]
    nothing_left(box)


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_a_death_lets_the_next_one_go_out(make_box, verb):
    box = grouped(make_box, max_retries=0)
    a, b = send(box, "a", "a")
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    assert getattr(box, verb)(box.take_one()) == "d"

    assert list(check(box)["dead"]) == [a]
    assert out(box) == [b]
    assert box.counter("waiting") == 0


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_a_death_holds_the_group_where_that_was_asked(make_box, verb):
    box = grouped(make_box, HOLD, max_retries=0)
    send(box, "a", "a", "b", "b")

    leases = box.take(10)
    assert getattr(box, verb)(next(x for x in leases if b"\x01a" not in x.record)) == "d"

    check(box)
    assert out(box) == []
    assert len(held(box)) == 2


def test_redrive_to_a_group_that_is_held_goes_in_front(make_box):
    box = grouped(make_box, HOLD, max_retries=0)
    a, b, c = send(box, "a", "a", "a")
    box.reject(box.take_one())
    check(box)

    assert redrive(box, a) == "1"

    check(box)
    assert out(box) == []
    assert held(box) == [a, b, c]
    assert entry(box).flags & HELD


def test_redrive_of_several_to_a_held_group_keeps_their_order(make_box):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=3, on_dead="hold"), max_retries=0)
    a, b, c, d = send(box, "a", "a", "a", "a")
    box.reject(*box.take(3))
    check(box)

    assert redrive(box, a, b, c) == "111"

    check(box)
    assert held(box) == [a, b, c, d]


def test_redrive_comes_in_as_a_new_one_where_the_group_goes_on(make_box):
    box = grouped(make_box, max_retries=0)
    a, b, c = send(box, "a", "a", "a")
    box.reject(box.take_one())

    assert redrive(box, a) == "1"

    check(box)
    assert out(box) == [b]
    assert drained(box) == [b, c, a]
    nothing_left(box)


def test_rollback_stays_out_and_comes_first(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")
    box.take(1, 1000)
    box.clock.advance(3)

    reply = box.rollback()

    assert (reply[0], reply[1]) == (1, 0)
    check(box)
    assert drained(box) == [a, b]
    nothing_left(box)


@pytest.mark.parametrize("on_dead", ["continue", "hold"])
def test_rollback_of_many_of_one_group_that_die(make_box, on_dead):
    groups = rmq.Groups(order=False, concurrency=4, on_dead=on_dead)
    box = grouped(make_box, groups, max_retries=0)
    given = send(box, *"aaaaaaaaaa")
    box.take(4, 1000)
    box.clock.advance(3)

    assert box.rollback()[1] == 4

    check(box)
    assert out(box) == (given[4:8] if on_dead == "continue" else [])


def test_release_at_once_stays_out_in_front(make_box):
    box = grouped(make_box)
    a, b = send(box, "a", "a")

    assert box.release(box.take_one()) == "1"

    check(box)
    assert drained(box) == [a, b]
    nothing_left(box)


@pytest.mark.parametrize("ordered", [True, False])
def test_release_with_a_wait(make_box, ordered):
    box = grouped(make_box, rmq.Groups(order=ordered, concurrency=1))
    a, b = send(box, "a", "a")
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    assert box.release(box.take_one(), wait_ms=1000) == "1"

    check(box)
    assert out(box) == ([] if ordered else [b])
    assert box.counter("waiting") == 0
    box.clock.advance(1.1)
    assert drained(box) == ([a, b] if ordered else [b, a])
    nothing_left(box)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_released_message_without_a_priority_of_its_own_is_counted_once(make_box, concurrency):
    """What was due is handed back among what is due; no client sends such ones to groups."""
    box = grouped(make_box, rmq.Groups(order=False, concurrency=concurrency))
    a = one(box, due=1000, priority=0)
    b, c = send(box, "a", "a")
    box.clock.advance(2)
    for _ in range(3):
        leases = [lease for lease in box.take(10) if lease.id == a]
        box.release(*leases) if leases else None
        check(box)

    assert sorted(box.state()["records"]) == sorted([a, b, c])


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
    box.redis.hset(box.keys.slot, "lane", 0)  # after 2^21 others
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
    assert [lane[0] for lane in entry(box).lanes] == [500]
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
        box.run(dead_scripts.drop_expired(box.keys, 0, 1000))
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


def test_expiry_of_a_held_one_that_dies_holds_its_group(make_box):
    box = grouped(make_box, HOLD, on_expire="dead")
    a = one(box)
    b = one(box, expires=1000)
    c = one(box)
    box.clock.advance(2)

    box.run(dead_scripts.drop_expired(box.keys, 0, 1000))

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
