"""query_fail.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.spark import scripts
from rmq.features.spark.scripts import Failing
from rmq.kernel.core.ids import member_of
from tests.lua.box import timed
from tests.lua.query import EXACT, ME, OTHER, RUN, lapse, log, read, receipt, take

MARKS = f"querymarks:{RUN}"
KEPT_MS = 400 * 86_400_000


def failing(ids, first=1, wait_ms=None, error=b"why"):
    """Messages with the numbers from `first` on."""
    return [Failing(first + n, member_of(id), error, wait_ms) for n, id in enumerate(ids)]


def fail(box, messages, retry=False, run=RUN):
    return box.run(scripts.query_fail(box.handle, box.keys, run, messages, retry))


def handed(box, count, holder=ME, **options):
    """Send messages that a query takes and hands out."""
    box.run(scripts.query_renew(box.keys, holder, 0, 0))
    ids = box.send(count, **options)
    after = int(box.redis.hget(box.keys.query_stem + holder.run.encode(), "tail") or 0)
    take(box, after, count, holder)
    read(box, after, after + count, count, holder.run)
    return ids


def settle(box, upto, since=0, limit=10, holder=EXACT):
    return box.run(scripts.query_settle(box.handle, box.keys, holder, since, upto, limit))


def mark(number, letter, score):
    return b"%d%b%b" % (number, letter, repr(score).removesuffix(".0").encode())


def unmarked(box):
    """The negative control: a variant that does not note what it did."""
    box.redis.delete(box.keys.querymarks_stem + RUN.encode())


def test_reject_buries_the_message_and_marks_its_number_and_nothing_else(box):
    first, second, third = handed(box, 3)
    before = box.state()

    assert fail(box, failing([second], 2)) == "d"

    assert box.changed(before) == {
        ("prepare", second): None,
        ("dead", second): box.clock.now_ms,
        ("failures", second): box.failure(0, 1, "r", b"why"),
        ("slot", "dead_lettered"): "1",
        (MARKS, mark(2, b"d", receipt(1))): 2,
    }
    assert log(box) == {first: 1, second: 2, third: 3}
    ttl = box.redis.pttl(box.keys.querymarks_stem + RUN.encode())
    assert KEPT_MS - 60_000 < ttl <= KEPT_MS
    before = box.state()
    for retry in (False, True):
        assert fail(box, failing([second], 2), retry) == "D"
    assert box.state() == before


def test_a_message_given_back_waits_for_its_retry_and_nothing_else_changes(box):
    first, second = handed(box, 2)
    before = box.state()

    assert fail(box, failing([first], wait_ms=5000), retry=True) == "r"

    assert box.changed(before) == {
        ("prepare", first): None,
        ("store", first): timed(box.clock.now_ms + 5000, ask=True),
        ("failures", first): box.failure(16, 1, "f", b"why"),
        (MARKS, mark(1, b"r", receipt(1))): 1,
    }
    before = box.state()
    for retry in (False, True):
        assert fail(box, failing([first]), retry) == "R"
    assert box.state() == before
    box.clock.advance(5)
    assert [lease.left for lease in box.take(5)] == [15]
    assert log(box) == {first: 1, second: 2}


def test_each_message_waits_as_long_as_it_was_told(box):
    ids = handed(box, 3)
    given = [
        Failing(number, member_of(id), b"", wait_ms)
        for number, (id, wait_ms) in enumerate(zip(ids, (7000, None, 3000), strict=True), 1)
    ]

    assert fail(box, given, retry=True) == "rrr"

    store = box.state()["store"]
    assert store[ids[0]] == timed(box.clock.now_ms + 7000, ask=True)
    assert int(store[ids[1]]) == 16, "a retry at once, as the policy of the topic says"
    assert store[ids[2]] == timed(box.clock.now_ms + 3000, ask=True)


def test_a_message_without_retries_left_is_dead(make_box):
    box = make_box(max_retries=0)
    (id,) = handed(box, 1)

    assert fail(box, failing([id]), retry=True) == "d"

    assert set(box.state()["dead"]) == {id}
    assert box.state()["failures"] == {id: box.failure(0, 1, "f", b"why")}
    assert fail(box, failing([id]), retry=True) == "D"


def test_settle_passes_over_what_was_failed_and_misses_nothing(box):
    dead, retried, held = handed(box, 3, kept=True)
    fail(box, failing([dead]))
    fail(box, failing([retried], 2, 60_000), retry=True)
    before = box.state()

    reply = settle(box, 3)

    assert (reply.settled, reply.left, reply.missing) == (1, 0, 0)
    changed = box.changed(before)
    remembered = {key: changed.pop(key) for key in list(changed) if key[0].startswith("settled")}
    assert {id for _, id in remembered} == {held}
    assert {key for key in changed if key[0] in ("prepare", "records", "dead", "store")} == {
        ("prepare", held), ("records", held),
    }  # fmt: skip
    state = box.state()
    assert MARKS not in state
    assert log(box) == {}
    assert set(state["dead"]) == {dead}
    assert set(state["store"]) == {retried}
    assert set(state["failures"]) == {dead, retried}
    assert state["slot"]["settled"] == "1"


def test_without_the_mark_settle_misses_the_message(box):
    dead, _ = handed(box, 2)
    fail(box, failing([dead]))

    unmarked(box)

    assert settle(box, 2).missing == 1


def test_without_the_mark_a_message_is_failed_twice(box):
    (id,) = handed(box, 1)
    fail(box, failing([id], wait_ms=0), retry=True)
    unmarked(box)
    take(box, after=1)
    read(box, 1, 2)

    assert fail(box, failing([id], wait_ms=0), retry=True) == "r"

    assert box.state()["failures"][id][0] == 15


def test_a_batch_of_which_all_was_failed_settles_and_the_query_holds_nothing(box):
    ids = handed(box, 4)
    assert fail(box, failing(ids)) == "dddd"
    assert "prepare" not in box.state()

    reply = settle(box, 4)

    assert (reply.settled, reply.left, reply.missing) == (0, 0, 0)
    state = box.state()
    assert "queries" not in state
    assert MARKS not in state
    assert log(box) == {}
    assert set(state["dead"]) == set(ids)


def test_a_replay_reads_the_batch_as_it_was(box):
    ids = handed(box, 4)
    first = read(box, 0, 4)
    fail(box, failing(ids[:1]))
    fail(box, failing(ids[1:2], 2, 0), retry=True)

    again = read(box, 0, 4)

    assert again.ids == first.ids == ids
    assert again.records == first.records
    assert again.receipts == [receipt(1)] * 4
    box.ack(box.take_one())  # another consumer has the one that was given back
    later = read(box, 0, 4)
    assert later.ids == ids
    assert later.receipts == [receipt(1)] * 4
    assert later.records == [first.records[0], b"", *first.records[2:]]


def test_the_same_message_in_a_later_batch_is_another(box):
    id, other = handed(box, 2)
    fail(box, failing([id], wait_ms=0), retry=True)
    take(box, after=2)
    read(box, 2, 3)
    assert log(box) == {id: 3, other: 2}
    assert box.redis.llen(box.keys.querylog_stem + RUN.encode()) == 3

    assert fail(box, failing([id])) == "R", "of the first batch"
    assert settle(box, 2).settled == 1

    assert box.state()["prepare"] == {id: receipt(3, left=15, page=2)}
    assert fail(box, failing([id], 3)) == "d"
    assert settle(box, 3, since=2).missing == 0
    assert set(box.state()["dead"]) == {id}


def test_settling_the_first_batch_leaves_what_came_again_when_the_counts_agree(box):
    """The last message of the first batch is held again, on a page of its own."""
    first, last = handed(box, 2)
    fail(box, failing([last], 2, 0), retry=True)
    take(box, after=2)

    reply = settle(box, 2)

    assert (reply.settled, reply.missing) == (1, 0)
    assert box.state()["prepare"] == {last: receipt(3, left=15, page=2)}
    assert first not in box.state()["records"]
    assert log(box) == {last: 3}


def test_what_others_have_of_a_batch_is_left_to_them(box):
    leased, queried, _ = handed(box, 3, EXACT)
    fail(box, failing([leased, queried], wait_ms=0), retry=True)
    (lease,) = box.take(1, 60_000)
    assert lease.id == leased
    take(box, holder=OTHER)
    before = box.state()

    assert fail(box, failing([leased, queried])) == "RR"
    assert box.state() == before
    lapse(box, force=True)  # the query dies, and its lease expires
    assert box.state()["prepare"][leased] == lease.receipt
    assert box.state()["prepare"][queried] >= receipt(0, 0)
    reply = settle(box, 3)

    assert (reply.settled, reply.missing) == (1, 0)
    assert set(box.state()["records"]) == {leased, queried}


def test_what_lapsed_or_was_never_handed_out_or_is_of_another_number_is_lost(box):
    lapsed, held = handed(box, 2, EXACT)
    lapse(box, limit=1, force=True)
    (unread,) = box.send(1)
    take(box, after=2)
    box.run(scripts.query_renew(box.keys, EXACT, 0, 9))
    foreign = handed(box, 1, OTHER)
    before = box.state()

    assert fail(box, failing([lapsed])) == "0"
    assert fail(box, [*failing([lapsed], 2), *failing([held], 3)]) == "00"
    assert fail(box, failing([unread], 3)) == "0"
    assert fail(box, failing(foreign, 1)) == "0"
    assert fail(box, failing([held], 99)) == "0"

    assert box.state() == before
    settle(box, 2)
    assert fail(box, failing([held], 2)) == "0"


def test_maxreplays_passes_over_what_was_failed(box):
    dead, retried, held = handed(box, 3)
    fail(box, failing([dead]))
    fail(box, failing([retried], 2, 0), retry=True)
    take(box, holder=OTHER)

    reply = box.run(scripts.query_reject(box.handle, box.keys, ME, 3, b"never ended", 10))

    assert reply.settled == 1
    state = box.state()
    assert set(state["dead"]) == {dead, held}
    assert set(state["prepare"]) == {retried}
    assert state["failures"][dead] == box.failure(0, 1, "r", b"why")
    assert MARKS not in state
    assert log(box) == {}


def test_marks_of_forgotten_numbers_go_with_them(box):
    ids = handed(box, 3)
    fail(box, failing(ids[:1]))

    lapse(box, force=True)

    state = box.state()
    assert MARKS not in state
    assert log(box) == {}
    assert set(state["dead"]) == {ids[0]}


def test_a_dead_letter_that_was_redriven_and_taken_again_is_settled_under_its_new_number(box):
    (id,) = handed(box, 1)
    fail(box, failing([id]))
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [id]))
    take(box, after=1)

    assert settle(box, 1).missing == 0
    assert log(box) == {id: 2}
    assert settle(box, 2, since=1).settled == 1
    assert "records" not in box.state()


def test_large_calls_are_done_in_one_step(box):
    ids = handed(box, 1000)

    letters = fail(box, [message for message in failing(ids) if message.number % 2])

    assert letters == "d" * 500
    assert len(box.state()["prepare"]) == 500
    reply = settle(box, 1000, limit=4000)
    assert (reply.settled, reply.missing) == (500, 0)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [([2, 1], "number"), ([1, 1], "number"), ([1, 4001], "number"), ([0], "number"), ([], "mess")],
)
def test_numbers_that_do_not_grow_or_lie_too_far_apart_are_refused(box, numbers, named):
    ids = handed(box, 2)
    before = box.state()
    given = [Failing(number, member_of(ids[0]), b"") for number in numbers]

    with pytest.raises(redis.ResponseError, match=f"RMQARG {named}"):
        fail(box, given)

    assert box.state() == before


def test_in_a_slot_in_order_the_message_goes_back_to_its_place(box):
    first, second = handed(box, 2)
    assert box.take(1, ordered=True) == []  # which makes it one
    before = box.state()

    assert fail(box, failing([first], wait_ms=5000), retry=True) == "r"

    changed = box.changed(before)
    assert changed[("slot", "holder")] == first
    assert changed[("slot", "ordered")] == str(box.clock.now_ms + 5000)
    assert fail(box, failing([second], 2, 0), retry=True) == "r"
    assert box.order() == [second, first], "as they stood"
