"""query_reject.lua on a real server."""

from __future__ import annotations

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.spark import scripts
from rmq.features.spark.scripts import QueryLog, QuerySettleReply
from rmq.kernel.core.ids import member_of
from tests.lua.query import EXACT, ME, OTHER, RIVAL, RUN, lapse, log, read, take


def reject(box, upto, limit=10, holder=ME):
    return box.run(scripts.query_reject(box.handle, box.keys, holder, upto, b"why", limit))


def test_reject_buries_the_beginning_of_the_log_and_nothing_else(box):
    first, second, third = box.send(3)
    take(box)
    before = box.state()

    assert reject(box, 2) == QuerySettleReply(2, 2)

    assert box.changed(before) == {
        ("prepare", first): None,
        ("prepare", second): None,
        ("dead", first): box.clock.now_ms,
        ("dead", second): box.clock.now_ms,
        ("failures", first): box.failure(0, 1, "r", b"why"),
        ("failures", second): box.failure(0, 1, "r", b"why"),
        (f"querylog:{RUN}",): [third],
        (f"query:{RUN}", b"settled"): b"2",
        ("slot", "dead_lettered"): "2",
    }
    before = box.state()
    assert reject(box, 2) == QuerySettleReply(0, 0)
    assert box.state() == before


def test_what_is_redriven_and_taken_again_is_not_settled_for_its_old_number(box):
    (id,) = box.send(1)
    take(box)
    reject(box, 1)
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [id]))

    assert take(box, after=1) == QueryLog(1, 2)
    settle = scripts.query_settle(box.handle, box.keys, ME, 1, 1, 10)
    assert box.run(settle) == QuerySettleReply(0, 0)

    assert log(box) == {id: 2}
    assert read(box, 1, 2).ids == [id]


def test_it_is_bounded_and_goes_on(box):
    box.send(5)
    take(box)

    assert reject(box, 5, limit=3) == QuerySettleReply(3, 3)
    assert reject(box, 5, limit=3) == QuerySettleReply(2, 2)
    assert len(box.state()["dead"]) == 5


def test_what_has_lapsed_or_is_anothers_only_leaves_the_log(box):
    lapsed, taken, held = box.send(3)
    take(box, holder=EXACT)
    lapse(box, limit=1, force=True)
    deadline = box.clock.now_ms // 1000 + 60
    box.redis.zadd(box.keys.prepare, {member_of(taken): deadline * 1000 + 16})

    assert reject(box, 3, holder=EXACT) == QuerySettleReply(1, 3)

    assert set(box.state()["dead"]) == {held}
    assert set(box.state()["prepare"]) == {lapsed, taken}
    assert log(box) == {}


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.send(2)
    take(box)
    take(box, holder=OTHER)
    before = box.state()

    assert reject(box, 2, holder=RIVAL) == QuerySettleReply(0, 0, 0, 15_000, "me:1")

    assert box.state() == before
