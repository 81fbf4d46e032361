"""query_settle.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.queries import scripts
from rmq.features.queries.scripts import QuerySettleReply
from rmq.kernel.consumer.scripts import QueryRollbackReply
from rmq.kernel.core.ids import member_of
from tests.lua.query import EXACT, ME, OTHER, RIVAL, RUN, lapse, log, receipt, take


def settle(box, upto, limit=10, holder=ME, since=None):
    since = upto if since is None else since
    return box.run(scripts.query_settle(box.handle, box.keys, holder, since, upto, limit))


def test_settle_ends_the_beginning_of_the_log_and_nothing_else(box):
    first, second, third = box.send(3, kept=True)
    take(box)
    before = box.state()

    assert settle(box, 2) == QuerySettleReply(2, 2)

    changed = box.changed(before)
    remembered = {key: changed.pop(key) for key in list(changed) if key[0].startswith("settled")}
    assert {id for _, id in remembered} == {first, second}
    assert changed.pop(("slot", "settled_turn"))
    assert changed == {
        ("prepare", first): None,
        ("prepare", second): None,
        ("records", first): None,
        ("records", second): None,
        (f"querylog:{RUN}",): [third],
        ("slot", "settled"): "2",
        (f"query:{RUN}", b"settled"): b"2",
    }


def test_settle_twice_goes_on(box):
    box.send(5)
    take(box)

    assert settle(box, 5, limit=3) == QuerySettleReply(3, 3)
    assert settle(box, 5, limit=3) == QuerySettleReply(2, 2)
    before = box.state()
    assert settle(box, 5, limit=3) == QuerySettleReply(0, 0)
    assert box.state() == before
    assert log(box) == {}


def test_what_others_hold_is_left_to_them(box):
    mine, theirs = box.send(2)
    take(box, limit=1)
    take(box, holder=OTHER, limit=1)
    leased = box.one()
    assert box.take_one().id == leased

    assert settle(box, 100) == QuerySettleReply(1, 1)

    state = box.state()
    assert mine not in state["prepare"]
    assert set(state["prepare"]) == {theirs, leased}
    assert log(box, OTHER.run) == {theirs: 1}


@pytest.mark.parametrize("others", [0, 1])
def test_what_somebody_has_taken_away_is_not_settled(box, others):
    """A count alone does not tell: what the other query holds makes up for what is missing."""
    kept, cancelled, taken = box.send(3)
    take(box)
    for _ in range(others):
        box.one()
        take(box, holder=OTHER, limit=1)
    box.redis.zrem(box.keys.prepare, member_of(cancelled))
    deadline = box.clock.now_ms // 1000 + 60
    box.redis.zadd(box.keys.prepare, {member_of(taken): deadline * 1000 + 16})

    assert settle(box, 3) == QuerySettleReply(1, 3)

    state = box.state()
    assert kept not in state["records"]
    assert taken in state["prepare"]
    assert taken in state["records"]
    assert log(box) == {}
    assert state["slot"]["settled"] == "1"


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.send(2)
    take(box)
    box.clock.advance(5)
    before = box.state()

    assert settle(box, 2, holder=RIVAL) == QuerySettleReply(0, 0, 0, 10_000, "me:1")

    assert box.state() == before
    box.clock.advance(10)
    assert settle(box, 2, holder=RIVAL) == QuerySettleReply(2, 2)


def test_what_has_lapsed_is_not_settled_but_its_number_is(box):
    (id,) = box.send(1)
    take(box)
    lapse(box, force=True)
    before = box.state()

    assert settle(box, 100) == QuerySettleReply(0, 0)

    assert id in box.state()["prepare"]
    assert box.changed(before) == {(f"query:{RUN}", b"settled"): b"1"}
    before = box.state()
    assert settle(box, 100) == QuerySettleReply(0, 0)
    assert box.state() == before


def missed(box):
    found = box.state()[f"query:{RUN}"]
    return found.get(b"missed"), found.get(b"missed_at")


@pytest.mark.parametrize("rolled_back", [False, True])
def test_what_has_lapsed_of_a_batch_and_waits_ever_since_is_settled(box, rolled_back):
    first, second, other = box.send(3, kept=True)
    take(box, limit=2, holder=EXACT)
    lapse(box, force=True)
    if rolled_back:
        box.rollback()
    else:
        box.clock.advance(5)
    before = box.state()

    assert settle(box, 2, since=0, holder=EXACT) == QuerySettleReply(2, 2)

    changed = box.changed(before)
    remembered = {key: changed.pop(key) for key in list(changed) if key[0].startswith("settled")}
    assert {id for _, id in remembered} == {first, second}
    assert changed.pop(("slot", "settled_turn"))
    was = "store" if rolled_back else "prepare"
    assert changed == {
        (was, first): None,
        (was, second): None,
        ("records", first): None,
        ("records", second): None,
        ("failures", first): None,
        ("failures", second): None,
        (f"querylog:{RUN}",): None,
        ("slot", "settled"): "2",
        (f"query:{RUN}", b"settled"): b"2",
    }
    before = box.state()
    assert settle(box, 2, since=0, holder=EXACT) == QuerySettleReply(0, 0)
    assert box.state() == before
    assert box.order() == [other]


def test_what_others_had_since_it_lapsed_is_counted_and_told_until_somebody_takes_it_so(box):
    acked, nacked, leased, stolen, sent_again, waiting = ids = box.send(6)
    take(box, holder=EXACT)
    assert lapse(box, force=True) == QueryRollbackReply(6, False)
    box.rollback()
    taken = {lease.id: lease for lease in box.take(5)}
    assert list(taken) == ids[:5]
    box.ack(taken[acked])
    box.nack(taken[nacked])
    box.release(taken[stolen])
    take(box, after=0, holder=OTHER, limit=1)
    box.ack(taken[sent_again])
    box.redis.delete(box.keys.settled0, box.keys.settled1)  # the dedup window has passed
    box.run(box.send_command([sent_again]))

    assert settle(box, 6, since=0, holder=EXACT) == QuerySettleReply(1, 6, missing=5)

    state = box.state()
    assert waiting not in state["records"]
    assert set(state["records"]) == {nacked, leased, stolen, sent_again}
    assert missed(box) == (b"5", b"6")
    for _ in range(2):
        assert settle(box, 6, since=0, holder=EXACT) == QuerySettleReply(0, 0, missing=5)
    box.run(scripts.query_renew(box.keys, ME, 6, 6))
    assert settle(box, 6, since=0) == QuerySettleReply(0, 0, missing=5)
    assert missed(box) == (None, None)
    assert settle(box, 6, since=0) == QuerySettleReply(0, 0)


def test_what_is_missing_is_added_up_over_pages(box):
    box.send(5)
    take(box, holder=EXACT)
    lapse(box, force=True)
    box.rollback()
    box.ack(*box.take(3))

    assert settle(box, 5, 2, since=0, holder=EXACT) == QuerySettleReply(0, 2, missing=2)
    assert settle(box, 5, 2, since=0, holder=EXACT) == QuerySettleReply(1, 2, missing=3)
    assert settle(box, 5, 2, since=0, holder=EXACT) == QuerySettleReply(1, 1, missing=3)


def test_what_lapsed_before_the_batch_began_is_left_to_the_queue(box):
    """Nobody has handed it out: its numbers were never in a batch that has ended."""
    lapsed, waits = box.send(2)
    take(box, limit=1, holder=EXACT)
    lapse(box, force=True)
    box.rollback()
    take(box, after=1, limit=1, holder=EXACT)
    before = box.state()

    assert settle(box, 2, since=1, holder=EXACT) == QuerySettleReply(1, 2)

    assert {id for id in (lapsed, waits) if id in box.state()["records"]} == set(before["store"])


def test_what_was_forgotten_under_an_owner_that_is_not_exact_counts_for_that_one_alone(box):
    box.send(2)
    take(box)
    lapse(box, force=True)

    assert settle(box, 2, since=0) == QuerySettleReply(0, 0, missing=2)
    assert missed(box) == (None, None)
    assert settle(box, 2, since=0, holder=EXACT) == QuerySettleReply(0, 0)


def test_a_query_whose_numbers_were_forgotten_misses_nothing(box):
    """It was silent for 400 days, or Redis lost it: nothing is known of its batch."""
    box.send(1)
    box.run(scripts.query_renew(box.keys, EXACT, 7, 9))

    assert settle(box, 9, since=7, holder=EXACT) == QuerySettleReply(0, 0)


def test_failures_go_with_their_messages(box):
    box.one()
    box.nack(box.take_one())
    take(box)
    assert box.state()["prepare"] == {next(iter(log(box))): receipt(2, left=15)}

    assert settle(box, 1) == QuerySettleReply(1, 1)

    state = box.state()
    assert "failures" not in state
    assert "records" not in state
