"""query_renew.lua on a real server."""

from __future__ import annotations

from rmq.features.spark import scripts
from rmq.features.spark.scripts import QueryLog
from tests.lua.query import EXACT, ME, OTHER, RIVAL, RUN, lapse, log, read, renew, take


def renewing(box, after=0, upto=100, holder=ME):
    return scripts.query_renew(box.keys, holder, after, upto)


def test_renew_moves_the_leases_and_nothing_else(box):
    box.send(3)
    take(box, limit=2)
    box.clock.advance(5)
    before = box.state()

    assert box.run(renewing(box)) == QueryLog(2, 2)

    until = box.clock.now_ms + ME.lease_ms
    assert box.changed(before) == {
        (f"query:{RUN}", b"owner_until"): b"%d" % (box.clock.now_ms + ME.owner_ms),
        ("queries", RUN.encode()): until,
        ("slot", "leases_until"): str(until),
    }


def test_it_counts_what_is_held_of_a_batch(box):
    box.send(5)
    take(box, limit=4)

    assert box.run(renewing(box, 1, 3)) == QueryLog(2, 4)
    assert box.run(renewing(box, 4, 9)) == QueryLog(0, 4)
    lapse(box, force=True)
    assert box.run(renewing(box, 0, 9)) == QueryLog(0, 4)


def test_the_lease_that_ends_first_is_that_of_the_slot(box):
    box.run(renewing(box, holder=ME._replace(lease_ms=5000)))
    box.run(renewing(box, holder=OTHER))

    assert box.state()["slot"]["leases_until"] == str(box.clock.now_ms + 5000)
    box.run(renewing(box))
    assert box.state()["slot"]["leases_until"] == str(box.clock.now_ms + 600_000)


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.run(renewing(box))
    before = box.state()

    assert box.run(renewing(box, holder=RIVAL)) == QueryLog(0, 0, 15_000, "me:1")

    assert box.state() == before


def test_renew_tells_what_is_settled_and_what_was_handed_out(box):
    box.send(3)
    take(box)
    box.run(scripts.query_settle(box.handle, box.keys, ME, 0, 2, 10))

    assert box.run(renewing(box)) == QueryLog(1, 3, settled=2)
    assert read(box, 2, 9).numbers == [3]
    assert box.run(renewing(box)) == QueryLog(1, 3, settled=2, handed=3)
    assert box.run(renewing(box, holder=RIVAL)) == QueryLog(1, 3, 15_000, "me:1", 2, 3)


def test_renewing_costs_the_same_for_any_number_of_messages(box):
    box.send(300)
    take(box, limit=300)
    (prepared,) = (box.state()["prepare"],)
    box.clock.advance(60)

    box.run(renewing(box))

    assert box.state()["prepare"] == prepared


def test_in_another_slot_it_takes_over_and_keeps_no_time(box):
    box.send(1)
    take(box)
    before = box.state()

    assert renew(box, RIVAL, owns=False) == QueryLog(1, 1)

    assert box.changed(before) == {
        (f"query:{RUN}", b"owner"): b"rival:1",
        (f"query:{RUN}", b"owner_until"): None,
    }
    before = box.state()
    assert renew(box, RIVAL, owns=False) == QueryLog(1, 1)
    assert box.state() == before


def test_after_its_time_another_process_becomes_the_owner(box):
    renew(box)
    box.clock.advance(14.999)
    assert renew(box, RIVAL) == QueryLog(0, 0, 1, "me:1")
    box.clock.advance(0.001)

    assert renew(box, RIVAL) == QueryLog(0, 0)

    assert box.state()[f"query:{RUN}"][b"owner"] == b"rival:1"
    assert renew(box) == QueryLog(0, 0, 15_000, "rival:1")


def test_a_query_that_holds_nothing_has_a_lease_only_where_its_ownership_is(box):
    renew(box, owns=False)
    assert "queries" not in box.state()
    assert "leases_until" not in box.state()["slot"]
    assert 399 * 86_400 < box.redis.ttl(f"{box.keys.query_stem.decode()}{RUN}") <= 400 * 86_400

    renew(box)

    assert list(box.state()["queries"]) == [RUN.encode()]
    renew(box, owns=False)
    assert "queries" not in box.state()
    assert "leases_until" not in box.state()["slot"]


def test_an_owner_that_is_not_exact_has_what_lapsed_forgotten(box):
    box.send(3)
    take(box, holder=EXACT, limit=2)
    lapse(box, force=True)
    take(box, after=2, holder=EXACT)
    assert len(log(box)) == 3

    renew(box, EXACT)
    assert len(log(box)) == 3
    renew(box)

    assert list(log(box).values()) == [3]
    assert box.state()[f"query:{RUN}"][b"waived"] == b"2"
    assert box.redis.ttl(f"{box.keys.querylog_stem.decode()}{RUN}") == -1
