"""rollback_expired_leases.lua on a real server."""

from __future__ import annotations

import time

import pytest

from rmq.kernel.consumer import scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.retry import Exponential
from tests.lua.box import GONE, ordered, timed
from tests.lua.failures import item


def test_rollback_takes_back_what_has_lapsed_and_counts_it(box):
    lapses = box.one()
    box.take_one(lease_ms=1000)
    box.one()
    box.take_one(lease_ms=10_000)
    box.clock.advance(1)
    before = box.state()

    assert box.rollback() == scripts.RollbackReply(1, 0, False)

    assert box.changed(before, replay=True) == {
        ("slot", "returned"): "1",
        ("slot", "rolled_back"): "1",
        ("prepare", lapses): GONE,
        ("store", lapses): ordered(16, 1),
        ("failures", lapses): box.failure(16, 1, "l"),
    }


def test_rollback_run_again_finds_nothing(box):
    box.send(3)
    box.take(3, lease_ms=1000)
    box.clock.advance(1)
    box.rollback()
    before = box.state()

    assert box.twice(
        lambda: scripts.rollback_expired_leases(box.handle, box.keys)
    ) == scripts.RollbackReply(0, 0, False)  # fmt: skip
    assert box.state() == before


@pytest.mark.parametrize("later_ms", [0, 1, 500, 999])
@pytest.mark.fault("F21")
def test_lease_is_never_taken_back_early(box, later_ms):
    """Peer bug: a job is rescued while its worker still runs it."""
    box.clock.advance(later_ms / 1000)
    box.one()
    lease = box.take_one(lease_ms=1000)
    deadline_ms = int(lease.receipt // 1000) * 1000
    assert deadline_ms >= box.clock.now_ms + 1000

    box.clock.advance((deadline_ms - 1 - box.clock.now_ms) / 1000)
    before = box.state()
    assert box.rollback() == scripts.RollbackReply(0, 0, False)
    assert box.state() == before

    box.clock.advance(0.001)
    assert box.rollback() == scripts.RollbackReply(1, 0, False)


@pytest.mark.parametrize("left", [0, 1, 16])
@pytest.mark.parametrize("number", [0, 2047])
def test_no_receipt_of_a_later_second_is_touched(box, left, number):
    deadline = box.clock.now_ms // 1000
    now, later = box.ids(2)
    box.redis.zadd(
        box.keys.prepare,
        {
            member_of(now): deadline * 1000 + left + number / 2048,
            member_of(later): (deadline + 1) * 1000,
        },
    )

    box.rollback()

    assert box.order("prepare") == [later]


def test_seventeen_leases_that_run_out_are_the_end(box):
    id = box.one()
    lefts, items = [], []
    while lease := box.take(lease_ms=1000):
        lefts.append(lease[0].left)
        box.clock.advance(2)
        before = box.state()
        done = box.rollback()
        items.insert(0, item("l", box.clock.now_ms, 7 + 8))

    first = items[-1][:1] + b"\x07" + items[-1][2:]  # there was no error to keep yet
    assert lefts == list(range(16, -1, -1))
    assert done == scripts.RollbackReply(0, 1, False)
    assert box.changed(before) == {
        ("slot", "dead_lettered"): "1",
        ("slot", "rolled_back"): "17",
        ("prepare", id): GONE,
        ("dead", id): box.clock.now_ms,
        ("failures", id): box.failure(0, 17, "l", carried=True, items=[*items[1:-1], first]),
    }


def test_failures_and_lapses_count_together(box):
    id = box.one()
    count = 0
    while lease := box.take(lease_ms=1000):
        count += 1
        if count % 2:
            box.nack(lease[0])
        else:
            box.clock.advance(1)
            box.rollback()

    assert count == 17
    assert box.order("dead") == [id]


def test_last_error_is_kept_through_a_rollback(box):
    id = box.one()
    box.nack(box.take_one(), told=b"the real trouble")
    before = item("f", box.clock.now_ms)
    box.take_one(lease_ms=1000)
    box.clock.advance(1)
    box.rollback()

    assert box.state()["failures"][id] == box.failure(
        15, 2, "l", b"the real trouble", carried=True, items=[before]
    )


def test_rollback_waits_by_the_topics_policy(make_box):
    box = make_box(retry=Exponential(base=4, cap=100, jitter=0))
    id = box.one()
    for wait in (4000, 8000, 16_000):
        box.take_one(lease_ms=1000)
        box.clock.advance(1)
        box.rollback()
        assert box.score(id) == timed(box.clock.now_ms + wait, True)
        box.clock.advance(wait / 1000)


def test_rollback_is_bounded_and_says_that_more_are_waiting(box):
    box.send(5)
    box.take(5, lease_ms=1000)
    box.clock.advance(1)

    assert box.rollback(2) == scripts.RollbackReply(2, 0, True)
    assert len(box.order("prepare")) == 3
    assert box.rollback(2) == scripts.RollbackReply(2, 0, True)
    assert box.rollback(2) == scripts.RollbackReply(1, 0, False)


def test_earliest_deadlines_go_first(box):
    late, early = box.send(2)
    a = box.take_one(lease_ms=5000)
    b = box.take_one(lease_ms=1000)
    assert (a.id, b.id) == (late, early)
    box.clock.advance(10)

    box.rollback(1)

    assert box.order("prepare") == [late]


def test_rollback_wakes_who_waits_only_when_it_took_something_back(box):
    box.one()
    box.take_one(lease_ms=1000)
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)

    box.rollback()
    assert box.counter("waiting") != 0
    box.clock.advance(1)
    box.rollback()
    assert box.counter("waiting") == 0


def test_message_without_a_record_is_still_taken_back(box):
    id = box.one()
    box.take_one(lease_ms=1000)
    box.redis.hdel(box.keys.records, member_of(id))
    box.clock.advance(1)

    assert box.rollback() == scripts.RollbackReply(1, 0, False)
    assert box.order() == [id]


@pytest.mark.fault("F28")
def test_twenty_thousand_lapsed_leases_drain(box):
    """Peer bug: a few jobs are restored in a sweep, and a large backlog is stuck."""
    given = set()
    for _ in range(20):
        given |= set(box.send(1000))
        box.take(1000, lease_ms=1000)
    box.clock.advance(1)

    done, longest_s = [], 0.0
    for _ in range(20):
        began = time.monotonic()
        done.append(box.rollback(1000))
        longest_s = max(longest_s, time.monotonic() - began)

    print(f"\nFIG 20000 ended leases: 20 calls of 1000 each, the longest {longest_s * 1000:.0f} ms")
    assert done[:19] == [scripts.RollbackReply(1000, 0, True)] * 19
    assert sum(one.retried for one in done) == 20_000
    assert box.rollback(1000) == scripts.RollbackReply(0, 0, False)
    assert set(box.order()) == given
    assert box.order("prepare") == []


def test_a_thousand_die_in_one_rollback(make_box):
    box = make_box(max_retries=0, dead_retention_ms=1000)
    box.send(1000)
    box.take(1000, lease_ms=1000)
    box.clock.advance(1)

    assert box.rollback(1000) == scripts.RollbackReply(0, 1000, True)
    assert len(box.order("dead")) == 1000
