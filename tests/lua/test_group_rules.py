"""Groups: what each verb does to a group, by every key of the slot before and after."""

from __future__ import annotations

import random

import pytest

import rmq
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts as producer_scripts
from tests.lua.group import (
    check,
    drained,
    entry,
    grouped,
    held,
    held_score,
    nothing_left,
    one,
    out,
    parts_of,
    pause,
    redrive,
    release,
    resume,
    send,
    send_in,
    set_priority,
    slow,
)
from tests.lua.reading import HELD, MORE, SINGLE

FIRST = 2**20  # the place of the first message in a lane
HOLD = rmq.Groups(on_dead="hold")


# --- send


def test_first_of_a_group_goes_out_and_the_others_are_held_in_its_lane(make_box):
    box = grouped(make_box)

    a, b, c = send(box, "a", "a", "a")

    state = check(box)
    known = entry(box)
    assert (known.flags, known.out, known.priority) == (SINGLE, a, 100)
    assert (known.largest, known.lanes, known.place) == (100, (1,), FIRST + 2)
    assert known.front == (b, c)
    assert state["store"][b] == held_score(1, 100, FIRST)
    assert state["store"][c] == held_score(1, 100, FIRST + 1)
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


@pytest.mark.parametrize("concurrency", [1, 3])
def test_group_of_many_priorities_goes_by_them_and_then_as_sent(make_box, concurrency):
    box = grouped(make_box, rmq.Groups(order=False, concurrency=concurrency))
    rng, wanted = random.Random(concurrency), list[tuple[int, int, bytes]]()
    for n in range(60):
        priority = rng.choice([17, 1_048_575, *range(100, 140)])
        count = rng.randint(1, 4)
        sent = send(box, *"a" * count, priority=priority)
        wanted += [(-priority, n, id) for id in sent]
    heads = out(box)

    assert len(entry(box).lanes) == 1
    order = drained(box)

    rest = [id for _, _, id in sorted(wanted, key=lambda one: one[:2]) if id not in heads]
    assert [id for id in order if id not in heads] == rest
    nothing_left(box)


@pytest.mark.parametrize("priorities", [3, 3000])
def test_scripts_do_as_much_for_a_group_of_many_priorities_as_for_one_of_few(make_box, priorities):
    box = grouped(make_box)
    for at in range(0, 3000, 250):
        parts = [
            part
            for n in range(at, at + 250)
            for part in parts_of("a", priority=17 + n * 7919 % 3000 % priorities * 300)
        ]
        box.run(producer_scripts.send(box.handle, box.keys, box.session(), box.ids(250), parts, {}))

    def commands() -> int:
        box.redis.config_resetstat()
        one(box, priority=20)
        box.ack(box.take_one())
        stats = box.redis.info("commandstats")
        kinds = ("zrangebyscore", "zadd", "zscore", "hset", "hmget", "hget")
        return sum(stats.get(f"cmdstat_{kind}", {"calls": 0})["calls"] for kind in kinds)

    assert min(commands() for _ in range(3)) <= 25
    assert box.redis.hstrlen(box.keys.slot, "/a") <= 38 + 8 * 13


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
        assert reply.codes == letter
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

    assert reply.codes == "F"
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


@pytest.mark.parametrize("share", ["s", "names", "users", "1"])
def test_share_field_counts_its_groups_and_is_gone_with_the_last(make_box, share):
    box = grouped(make_box)
    a, b = one(box, "a", share=share), one(box, "b", share=share)
    assert f"%{share}" in box.state()["slot"]

    box.ack(box.take_one())
    assert f"%{share}" in check(box)["slot"]
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


def test_redrives_to_a_stopped_group_are_held_behind_each_other_and_before_the_rest(make_box):
    box = grouped(make_box, HOLD, max_retries=0)
    a, b, c, d = send(box, "a", "a", "a", "a")
    for _ in range(3):
        box.reject(box.take_one())
        release(box, "a")
    pause(box, "a")
    (e,) = send(box, "a")
    assert held(box) == [d, e]

    assert [redrive(box, x) for x in (a, b)] == ["1", "1"]
    assert redrive(box, c) == "1"

    check(box)
    assert held(box) == [a, b, c, d, e]
    resume(box, "a")
    pause(box, "a")
    assert held(box) == [a, b, c, d, e], "the head that a pause puts back"
    assert resume(box, "a")
    assert drained(box) == [a, b, c, d, e]


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


@pytest.mark.parametrize("kept", [None, 0, 7])
def test_group_goes_on_after_a_message_whose_record_is_lost(make_box, kept):
    box = grouped(make_box)
    first, second = send(box, "group", "group")
    send(box, *"abc")
    box.break_record(first, None if kept is None else box.state()["records"][first][:kept])
    leases = box.take(10)

    assert box.reject(*leases, reason="u") == "dddd"

    assert first in [lease.id for lease in leases]
    assert box.drained() == [second]


def test_record_that_is_cut_short_anywhere_stops_no_group(make_box):
    box = grouped(make_box)
    (id,) = send(box, "g10")
    whole = len(box.state()["records"][id])
    for kept in range(8, whole):
        name = f"g{kept}"
        (id,) = send_in(box, name)
        entry = box.redis.hget(box.keys.records, member_of(id))
        box.break_record(id, entry[:kept])
        (later,) = send_in(box, f"{name}+")

        leases = box.take(10)

        assert {id, later} <= {lease.id for lease in leases}
        box.reject(*leases, reason="u")
