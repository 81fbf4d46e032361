"""query_release.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.spark import scripts
from rmq.features.spark.scripts import QueryLog, QuerySettleReply
from rmq.kernel.core.ids import member_of
from tests.lua.box import ordered
from tests.lua.query import EXACT, ME, OTHER, RIVAL, RUN, lapse, log, read, receipt, renew, take


def give_back(box, after=0, limit=10, holder=ME):
    return box.run(scripts.query_release(box.handle, box.keys, holder, after, limit))


def test_what_is_given_back_is_as_if_it_had_not_been_taken(box):
    first, second, third = box.send(3)
    take(box, limit=1)
    take(box, after=1)
    before = box.state()

    assert give_back(box, after=1) == QueryLog(2, 1)

    assert box.changed(before) == {
        ("prepare", second): None,
        ("prepare", third): None,
        ("store", second): ordered(100, -1),
        ("store", third): ordered(100, 0),
        (f"querylog:{RUN}",): [first],
        (f"query:{RUN}", b"tail"): b"1",
        ("slot", "front"): "-2",
    }
    after = box.state()
    assert give_back(box, after=1) == QueryLog(0, 1)
    assert box.state() == after
    assert take(box, after=1) == QueryLog(2, 3)
    assert log(box) == {first: 1, second: 2, third: 3}
    assert set(box.state()["prepare"].values()) == {receipt(1), receipt(4, page=3)}


def test_a_query_that_holds_nothing_any_more_has_no_lease_and_expires(box):
    ids = box.send(2)
    take(box)

    assert give_back(box) == QueryLog(2, 0)

    state = box.state()
    assert "queries" not in state
    assert "prepare" not in state
    assert f"querylog:{RUN}" not in state
    assert 399 * 86_400 < box.redis.ttl(f"{box.keys.query_stem.decode()}{RUN}") <= 400 * 86_400
    assert [(lease.id, lease.left) for lease in box.take(2)] == [(id, 16) for id in ids]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_page_by_page_everything_comes_back_in_its_order(box, limit):
    low = box.send(3, priority=50)
    due = [box.one(due=at) for at in (10, 20)]
    box.clock.advance(1)
    high = box.send(2, priority=900)
    expected = [*due, *high, *low]
    assert take(box, holder=EXACT).held == 7
    assert [*log(box)] == expected

    left = 7
    while left:
        back = min(limit, left)
        left -= back
        assert give_back(box, 0, limit, EXACT) == QueryLog(back, left, more=left > 0)

    take(box, holder=EXACT)
    assert [*log(box)] == expected


def test_where_a_message_after_the_number_was_handed_out_nothing_is_given_back(box):
    box.send(4)
    take(box)
    read(box, upto=2)
    before = box.state()

    assert give_back(box, after=1) == QueryLog(0, 4)

    assert box.state() == before
    assert give_back(box, after=2) == QueryLog(2, 2)


def test_what_has_failed_before_keeps_its_retries_and_its_place(box):
    failed = box.one(priority=900)
    box.nack(box.take_one())
    fresh = box.one()
    take(box)
    assert list(log(box)) == [fresh, failed]

    assert give_back(box) == QueryLog(2, 0)

    taken = box.take(2)
    assert [(lease.id, lease.left) for lease in taken] == [(fresh, 16), (failed, 15)]


def test_a_slot_in_order_gives_each_message_its_old_place(box):
    ids = box.send(5)
    (first,) = box.take(1, ordered=True)
    box.ack(first)
    take(box)
    assert list(log(box)) == ids[1:]

    assert give_back(box, limit=2) == QueryLog(2, 2, more=True)
    assert give_back(box) == QueryLog(2, 0)

    assert [lease.id for lease in box.take(5, ordered=True)] == ids[1:]


def test_what_is_settled_or_lapsed_stays_as_it_is(box):
    lapsed, held = box.send(2)
    take(box, limit=1, holder=EXACT)
    lapse(box, force=True)
    take(box, after=1, holder=EXACT)
    assert lapsed in log(box)

    assert give_back(box, holder=EXACT) == QueryLog(1, 1)

    state = box.state()
    assert state[f"querylog:{RUN}"] == [lapsed]
    assert list(state["prepare"]) == [lapsed]
    assert 0 < box.redis.ttl(f"{box.keys.querylog_stem.decode()}{RUN}") <= 30 * 86_400
    take(box, after=1, holder=EXACT)
    assert log(box) == {lapsed: 1, held: 2}


def test_what_was_settled_behind_its_back_or_is_anothers_only_leaves_the_log(box):
    cancelled, taken, kept = box.send(3)
    take(box)
    deadline = box.clock.now_ms // 1000 + 60
    box.redis.zrem(box.keys.prepare, member_of(cancelled))
    box.redis.zadd(box.keys.prepare, {member_of(taken): deadline * 1000 + 16})

    assert give_back(box) == QueryLog(1, 0)

    state = box.state()
    assert state["prepare"] == {taken: deadline * 1000 + 16}
    assert list(state["store"]) == [kept]


def test_a_message_without_a_record_is_left_to_the_next_rollback(box):
    broken, whole = box.send(2)
    take(box)
    box.redis.hset(box.keys.records, member_of(broken), b"\0")

    assert give_back(box) == QueryLog(1, 0)

    state = box.state()
    assert state["prepare"] == {broken: 1000 + 16 + 1 / 2048}
    assert list(state["store"]) == [whole]


def test_another_query_keeps_what_it_holds(box):
    mine, theirs = box.send(2)
    take(box, limit=1)
    take(box, holder=OTHER)

    assert give_back(box) == QueryLog(1, 0)

    assert list(box.state()["prepare"]) == [theirs]
    assert list(box.state()["queries"]) == [OTHER.run.encode()]
    assert box.order() == [mine]


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.send(2)
    take(box)
    renew(box, RIVAL, owns=False)
    before = box.state()

    reply = give_back(box)

    assert (reply.held, reply.newest, reply.owner) == (0, 2, "rival:1")
    assert box.state() == before


def test_a_batch_of_which_the_end_was_given_back_is_settled_as_a_whole(box):
    box.send(5)
    take(box)
    give_back(box, after=3)
    settle = scripts.query_settle(box.handle, box.keys, ME, 0, 3, 10)

    assert box.run(settle) == QuerySettleReply(3, 0)

    assert len(box.order()) == 2
