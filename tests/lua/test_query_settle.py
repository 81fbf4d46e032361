"""query_settle.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.spark import scripts
from rmq.features.spark.scripts import QuerySettleReply
from rmq.kernel.consumer.scripts import QueryRollbackReply
from rmq.kernel.core.ids import member_of
from tests.lua.query import EXACT, ME, OTHER, RIVAL, RUN, lapse, log, read, receipt, renew, take


def settle(box, upto, limit=10, holder=ME, since=None):
    since = upto if since is None else since
    return box.run(scripts.query_settle(box.handle, box.keys, holder, since, upto, limit))


def test_settle_ends_the_beginning_of_the_log_and_nothing_else(box):
    first, second, third = box.send(3, kept=True)
    take(box)
    before = box.state()

    assert settle(box, 2) == QuerySettleReply(2, 0)

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

    assert settle(box, 5, limit=3) == QuerySettleReply(3, 2)
    assert settle(box, 5, limit=3) == QuerySettleReply(2, 0)
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

    assert settle(box, 100) == QuerySettleReply(1, 0)

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

    assert settle(box, 3) == QuerySettleReply(1, 0)

    state = box.state()
    assert kept not in state["records"]
    assert taken in state["prepare"]
    assert taken in state["records"]
    assert log(box) == {}
    assert state["slot"]["settled"] == "1"


def test_bytes_that_were_read_are_returned_once(box):
    box.send(3)
    take(box)
    read(box, 3, 3, bytes_read=900)

    assert settle(box, 2, holder=RIVAL).bytes == 0
    assert [settle(box, 2).bytes, settle(box, 2).bytes, settle(box, 3).bytes] == [900, 0, 0]
    read(box, 3, 3, bytes_read=7)
    assert settle(box, 3) == QuerySettleReply(0, 0, bytes=7), "of a batch that is settled already"
    assert b"bytes" not in box.state()[f"query:{RUN}"]


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.send(2)
    take(box)
    box.clock.advance(5)
    before = box.state()

    assert settle(box, 2, holder=RIVAL) == QuerySettleReply(0, 0, 0, 10_000, "me:1")

    assert box.state() == before
    box.clock.advance(11)
    assert settle(box, 2, holder=RIVAL) == QuerySettleReply(0, 0, 0, -1000, "me:1")
    assert box.state() == before
    renew(box, RIVAL)
    assert settle(box, 2, holder=RIVAL) == QuerySettleReply(2, 0)


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

    assert settle(box, 2, since=0, holder=EXACT) == QuerySettleReply(2, 0)

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

    assert settle(box, 6, since=0, holder=EXACT) == QuerySettleReply(1, 0, missing=5)

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

    assert settle(box, 5, 2, since=0, holder=EXACT) == QuerySettleReply(0, 3, missing=2)
    assert settle(box, 5, 2, since=0, holder=EXACT) == QuerySettleReply(1, 1, missing=3)
    assert settle(box, 5, 2, since=0, holder=EXACT) == QuerySettleReply(1, 0, missing=3)


def test_what_lapsed_before_the_batch_began_is_left_to_the_queue(box):
    """Nobody has handed it out: its numbers were never in a batch that has ended."""
    lapsed, waits = box.send(2)
    take(box, limit=1, holder=EXACT)
    lapse(box, force=True)
    box.rollback()
    take(box, after=1, limit=1, holder=EXACT)
    before = box.state()

    assert settle(box, 2, since=1, holder=EXACT) == QuerySettleReply(1, 0)

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

    assert settle(box, 1) == QuerySettleReply(1, 0)

    state = box.state()
    assert "failures" not in state
    assert "records" not in state


def named(box, call):
    """How often a call sends these commands: by a range of scores, and by names."""
    box.redis.config_resetstat()
    call()
    found = box.redis.info("commandstats")
    return [
        found.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        for name in ("zremrangebyscore", "zmscore")
    ]


def pages(box, *sizes, holder=ME):
    """Take pages of so many messages; their ids."""
    box.send(sum(sizes))
    newest = 0
    for size in sizes:
        newest = take(box, newest, size, holder).newest
    return list(log(box))


def test_whole_pages_are_removed_as_one_range(box):
    first, *rest = pages(box, 2, 3, 4)
    box.one()
    leased = box.take_one().id

    assert named(box, lambda: settle(box, 5)) == [1, 0]

    state = box.state()
    assert first not in state["records"]
    assert set(state["prepare"]) == {*rest[4:], leased}
    assert set(state["records"]) == {*rest[4:], leased}
    assert list(log(box)) == rest[4:]
    assert state["slot"]["settled"] == "5"


@pytest.mark.parametrize(("upto", "limit"), [(3, 10), (4, 10), (9, 3), (9, 8)])
def test_an_end_inside_a_page_settles_the_pages_before_it_and_then_single_messages(
    box, upto, limit
):
    ids = pages(box, 2, 3, 4)
    end = min(upto, limit)
    whole = 5 if end > 5 else 2

    assert named(box, lambda: settle(box, upto, limit)) == [1, 0]
    assert list(log(box)) == ids[whole:]
    assert box.state()[f"query:{RUN}"][b"settled"] == b"%d" % whole

    while settle(box, upto, limit).left:
        pass
    state = box.state()
    assert list(state.get("prepare", {})) == ids[upto:] or set(state["prepare"]) == {*ids[upto:]}
    assert list(log(box)) == ids[upto:]
    assert state["slot"]["settled"] == str(upto)


def test_the_end_of_a_first_page_in_part_is_settled_by_names(box):
    ids = pages(box, 5)

    assert named(box, lambda: settle(box, 3)) == [0, 1]

    assert set(box.state()["prepare"]) == {*ids[3:]}
    assert named(box, lambda: settle(box, 5)) == [1, 0]
    assert "prepare" not in box.state()


@pytest.mark.parametrize("missing", [0, 1, 2, 3, 4])
def test_where_a_message_of_a_page_went_elsewhere_it_alone_is_not_settled(box, missing):
    ids = pages(box, 2, 3)
    box.redis.zrem(box.keys.prepare, member_of(ids[missing]))

    replies = [settle(box, 4, since=0)]
    while replies[-1].left:
        replies.append(settle(box, 4, since=0))

    assert sum(reply.settled for reply in replies) == 4 - (missing < 4)
    assert replies[-1].missing == (missing < 4)
    assert set(box.state()["records"]) == {ids[4], ids[missing]}


def test_a_log_from_before_pages_is_settled(box):
    """Each message had the number of its delivery, and all of them one deadline."""
    ids = pages(box, 5)
    scores = {member_of(id): receipt(n, page=0) for n, id in enumerate(ids, 1)}
    box.redis.zadd(box.keys.prepare, scores)
    box.redis.hdel(f"{box.keys.query_stem.decode()}{RUN}", "page")

    assert settle(box, 3) == QuerySettleReply(3, 0)
    assert set(box.state()["prepare"]) == {*ids[3:]}
    box.send(2)
    assert take(box, 5).newest == 7
    assert set(box.state()["prepare"].values()) == {
        receipt(4, page=0), receipt(5, page=0), receipt(6, page=1),
    }  # fmt: skip
    assert named(box, lambda: settle(box, 5)) == [1, 0]
    assert settle(box, 7) == QuerySettleReply(2, 0)
    assert "prepare" not in box.state()


def test_with_two_queries_each_settles_its_own_although_their_pages_have_one_number(box):
    mine = pages(box, 2, 2)
    box.send(3)
    take(box, holder=OTHER, limit=3)
    theirs = list(log(box, OTHER.run))

    assert named(box, lambda: settle(box, 4)) == [0, 1]

    state = box.state()
    assert set(state["prepare"]) == set(state["records"]) == {*theirs}
    assert not {*mine} & {*theirs}
    assert settle(box, 3, holder=OTHER) == QuerySettleReply(3, 0)


def test_with_the_last_message_the_lease_ends(box):
    pages(box, 2, 2)
    assert box.redis.ttl(f"{box.keys.query_stem.decode()}{RUN}") == -1
    settle(box, 2)
    assert list(box.state()["queries"]) == [RUN.encode()]

    settle(box, 4)

    assert "queries" not in box.state()
    assert 399 * 86_400 < box.redis.ttl(f"{box.keys.query_stem.decode()}{RUN}") <= 400 * 86_400
    box.send(1)
    take(box, 4)
    assert box.redis.ttl(f"{box.keys.query_stem.decode()}{RUN}") == -1
    assert box.state()["prepare"] == {next(iter(log(box))): receipt(5, page=1)}


def test_in_an_audited_slot_the_numbers_of_a_page_are_accounted_for(box):
    box.redis.hset(box.keys.slot, "audited", 1)
    ids = pages(box, 3)

    assert settle(box, 3) == QuerySettleReply(3, 0)

    assert not {*ids} & {*box.state().get("records", {})}
