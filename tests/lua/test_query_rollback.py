"""query_rollback.lua on a real server."""

from __future__ import annotations

from rmq.features.spark import scripts as queries_scripts
from rmq.features.spark.scripts import QueryLog
from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import QueryRollbackReply
from rmq.kernel.core.ids import member_of
from tests.lua.query import EXACT, ME, OTHER, RUN, lapse, log, read, take


def test_a_lease_that_runs_is_left_alone(box):
    box.send(2)
    take(box)
    before = box.state()
    box.clock.advance(599)

    assert lapse(box) == QueryRollbackReply(0, False)

    assert box.state() == before


def test_a_lapsed_query_gives_back_what_it_held_for_the_next_rollback(box):
    first, second = box.send(2)
    take(box)
    box.clock.advance(600)
    before = box.state()

    assert lapse(box) == QueryRollbackReply(2, False)

    assert box.changed(before) == {
        ("prepare", first): 1000 + 16 + 1 / 2048,
        ("prepare", second): 1000 + 16 + 1 / 2048,
        (f"querylog:{RUN}",): None,
        (f"query:{RUN}", b"waived"): b"2",
        ("queries", RUN.encode()): None,
        (f"query:{RUN}", b"owner"): None,
        (f"query:{RUN}", b"owner_until"): None,
        ("slot", "leases_until"): None,
    }
    assert box.run(scripts.rollback_expired_leases(box.handle, box.keys)) == (2, 0, False, 0)
    assert {lease.left for lease in box.take(2)} == {15}


def test_of_an_exact_query_the_ids_stay_in_the_log_and_failures_tell_whose_they_were(box):
    first, second = box.send(2)
    take(box, holder=EXACT)
    box.clock.advance(600)
    before = box.state()

    assert lapse(box) == QueryRollbackReply(2, False)

    assert box.changed(before) == {
        ("prepare", first): 1000 + 16 + 1 / 2048,
        ("prepare", second): 1000 + 16 + 1 / 2048,
        ("failures", first): box.failure(16, 1, "l", scripts.rollback_failure(RUN)),
        ("failures", second): box.failure(16, 1, "l", scripts.rollback_failure(RUN)),
        ("queries", RUN.encode()): None,
        (f"query:{RUN}", b"lapsed_to"): b"2",
        (f"query:{RUN}", b"owner"): None,
        (f"query:{RUN}", b"owner_until"): None,
        ("slot", "leases_until"): None,
    }
    assert 0 < box.redis.ttl(f"{box.keys.querylog_stem.decode()}{RUN}") <= 30 * 86_400
    before = box.state()
    assert lapse(box, force=True) == QueryRollbackReply(0, False)
    assert box.state() == before
    assert box.run(queries_scripts.query_inspect(box.keys, RUN)).messages == 0
    assert read(box).ids == []
    assert box.run(scripts.rollback_expired_leases(box.handle, box.keys)) == (2, 0, False, 0)
    assert box.state()["failures"][first] == box.failure(16, 1, "l", scripts.rollback_failure(RUN))


def test_ids_that_have_lapsed_stay_before_those_that_are_held(box):
    first, second, third = box.send(3)
    take(box, holder=EXACT, limit=2)
    assert lapse(box, limit=1, force=True) == QueryRollbackReply(1, True)

    assert read(box).ids == [second]
    assert box.run(queries_scripts.query_inspect(box.keys, RUN)).messages == 1
    assert take(box, after=2, holder=EXACT) == QueryLog(1, 3, expired=1)
    assert read(box).ids == [second, third]
    assert box.redis.ttl(f"{box.keys.querylog_stem.decode()}{RUN}") == -1
    assert lapse(box, force=True) == QueryRollbackReply(2, False)
    assert box.state()[f"querylog:{RUN}"] == [first, second, third]


def test_an_owner_that_is_not_exact_has_what_lapsed_before_forgotten(box):
    box.send(3)
    take(box, holder=EXACT, limit=2)
    lapse(box, force=True)

    assert take(box, after=2) == QueryLog(1, 3, expired=1)

    assert list(log(box).values()) == [3]
    assert box.state()[f"query:{RUN}"][b"waived"] == b"2"


def test_it_is_bounded_and_goes_on(box):
    box.send(5)
    take(box)
    box.clock.advance(600)

    assert lapse(box, limit=3) == QueryRollbackReply(3, True)
    assert box.state()["queries"] == {RUN.encode(): box.clock.now_ms}
    assert lapse(box, limit=3) == QueryRollbackReply(2, False)
    assert lapse(box, limit=3) == QueryRollbackReply(0, False)


def test_force_gives_back_at_once(box):
    box.send(1)
    take(box)

    assert lapse(box, force=True) == QueryRollbackReply(1, False)


def test_another_query_keeps_what_it_holds(box):
    box.send(2)
    take(box, limit=1)
    box.clock.advance(10)
    take(box, holder=OTHER)
    box.clock.advance(595)

    assert lapse(box) == QueryRollbackReply(1, False)

    assert list(log(box, OTHER.run).values()) == [1]
    assert box.state()["slot"]["leases_until"] == str(box.clock.now_ms + 5000)


def test_what_was_settled_before_is_not_brought_back(box):
    first, second = box.send(2)
    take(box)
    box.redis.zrem(box.keys.prepare, member_of(first))

    assert lapse(box, force=True) == QueryRollbackReply(2, False)

    assert box.state()["prepare"] == {second: 1000 + 16 + 1 / 2048}


def test_a_take_tells_that_a_query_has_lapsed(box):
    box.send(2)
    take(box, limit=1, holder=ME._replace(lease_ms=1000))
    assert box.prepare().expired == 0
    box.clock.advance(1)

    assert box.prepare().expired == scripts.LONG_EXPIRED
    assert box.run(scripts.next_ready([box.keys], False)) == [0]
