"""query_take.lua on a real server."""

from __future__ import annotations

from rmq.kernel.consumer.scripts import QueryLog
from tests.lua.query import ME, OTHER, OTHER_RUN, RIVAL, RUN, lapse, log, receipt, take


def test_take_moves_messages_to_the_prepare_queue_and_the_log_and_nothing_else(box):
    first, second, third = box.send(3)
    before = box.state()

    assert take(box, limit=2) == QueryLog(2, 2)

    until = box.clock.now_ms + ME.lease_ms
    assert box.changed(before) == {
        ("store", first): None,
        ("store", second): None,
        ("prepare", first): receipt(1),
        ("prepare", second): receipt(2),
        (f"querylog:{RUN}",): [first, second],
        (f"query:{RUN}", b"tail"): b"2",
        (f"query:{RUN}", b"owner"): b"me:1",
        (f"query:{RUN}", b"exact"): b"0",
        (f"query:{RUN}", b"owner_until"): b"%d" % (box.clock.now_ms + ME.owner_ms),
        ("queries", RUN.encode()): until,
        ("slot", "leases_until"): str(until),
        ("slot", "delivered"): "2",
        ("slot", "takes"): "1",
    }
    assert box.order() == [third]


def test_what_was_taken_and_not_noted_is_the_answer_again_and_nothing_more_is_taken(box):
    box.send(5)

    assert take(box, limit=2) == QueryLog(2, 2)
    after = box.state()
    assert take(box, limit=2) == QueryLog(2, 2)
    assert box.state() == after
    assert take(box, after=1, limit=2) == QueryLog(1, 2)
    assert take(box, after=2, limit=2) == QueryLog(2, 4)
    assert sorted(log(box).values()) == [1, 2, 3, 4]


def test_an_empty_slot_gives_nothing_and_the_query_is_held(box):
    assert take(box) == QueryLog(0, 0)

    state = box.state()
    assert state[f"query:{RUN}"][b"tail"] == b"0"
    assert state["queries"] == {RUN.encode(): box.clock.now_ms + ME.lease_ms}


def test_order_of_taking_is_that_of_a_consumer(box):
    low, high = box.one(priority=50), box.one(priority=900)
    due = box.one(due=10)
    box.clock.advance(1)
    box.one(due=60_000)

    assert take(box) == QueryLog(3, 3)

    assert [id for id, _ in sorted(log(box).items(), key=lambda one: one[1])] == [due, high, low]


def test_what_has_failed_keeps_its_retries(box):
    box.one()
    box.nack(box.take_one())

    take(box)

    (score,) = box.state()["prepare"].values()
    assert score == receipt(2, left=15)


def test_two_queries_compete_and_share_nothing(box):
    mine, theirs = box.send(2)

    assert take(box, limit=1) == QueryLog(1, 1)
    assert take(box, holder=OTHER) == QueryLog(1, 1)

    assert (set(log(box)), set(log(box, OTHER_RUN))) == ({mine}, {theirs})


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.send(2)
    take(box, limit=1)
    box.clock.advance(5)
    before = box.state()

    assert take(box, after=1, holder=RIVAL) == QueryLog(0, 1, 10_000, "me:1")

    assert box.state() == before
    box.clock.advance(10)
    assert take(box, after=1, holder=RIVAL) == QueryLog(1, 2)
    assert box.state()[f"query:{RUN}"][b"owner"] == b"rival:1"


def test_numbers_go_on_where_the_caller_remembers_more_than_redis(box):
    box.one()

    assert take(box, after=40) == QueryLog(1, 41)


def test_numbers_last_as_long_as_messages_are_held_and_400_days_more(box):
    box.one()
    query = f"{box.keys.query_stem.decode()}{RUN}"

    take(box)
    assert box.redis.ttl(query) == -1

    lapse(box, force=True)
    assert 399 * 86_400 < box.redis.ttl(query) <= 400 * 86_400
    take(box, after=1)
    assert 399 * 86_400 < box.redis.ttl(query) <= 400 * 86_400


def test_messages_that_redis_has_and_the_caller_has_done_with_are_not_its_batch(box):
    """Redis came back from an older copy: it has a batch that is settled by now."""
    old, new = box.send(2)
    take(box, limit=1)

    assert take(box, after=7) == QueryLog(1, 8)

    assert log(box) == {old: 7, new: 8}


def test_numbers_of_what_has_lapsed_are_not_used_again(box):
    box.send(3)
    take(box, limit=2)
    lapse(box, force=True)

    before = box.state()
    # Sinks may know that batch: it gets no other message.
    assert take(box, limit=2) == QueryLog(0, 2)
    assert box.changed(before).keys() <= OWNING
    assert take(box, after=2, limit=2) == QueryLog(1, 3)
    assert list(log(box).values()) == [3]


OWNING = {
    (f"query:{RUN}", b"owner"),
    (f"query:{RUN}", b"owner_until"),
    ("queries", RUN.encode()),
    ("slot", "leases_until"),
}
