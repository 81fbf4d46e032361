"""queries.lua on a real server."""

from __future__ import annotations

from rmq.kernel.consumer import scripts
from tests.lua.query import ME, OTHER, RUN, take


def test_queries_are_listed_by_when_their_leases_end(box):
    take(box)
    take(box, holder=OTHER._replace(lease_ms=2000))
    before = box.state()
    box.clock.advance(5)

    assert box.run(scripts.queries(box.keys)) == [
        (OTHER.run, -3000), (ME.run, 595_000),
    ]  # fmt: skip
    assert box.run(scripts.queries(box.keys, 1)) == [(OTHER.run, -3000)]
    assert box.state() == before


def test_no_query_is_an_empty_list(box):
    assert box.run(scripts.queries(box.keys)) == []


def test_an_end_of_leases_that_no_query_has_is_corrected_so_that_consumers_do_not_spin(box):
    take(box)
    box.redis.delete(box.keys.queries)
    box.clock.advance(601)
    assert box.run(scripts.next_ready([box.keys], False)) == [0]
    before = box.state()

    assert box.run(scripts.queries(box.keys)) == []

    assert box.changed(before) == {("slot", "leases_until"): None}
    assert box.run(scripts.next_ready([box.keys], False)) == [-1]
    assert box.prepare().expired == 0


def test_an_end_of_leases_that_is_not_that_of_the_first_is_corrected(box):
    take(box)
    until = box.clock.now_ms + ME.lease_ms
    for wrong in (box.clock.now_ms - 5, None):
        if wrong is None:
            box.redis.hdel(box.keys.slot, "leases_until")
        else:
            box.redis.hset(box.keys.slot, "leases_until", wrong)
        before = box.state()

        assert box.run(scripts.queries(box.keys)) == [(RUN, ME.lease_ms)]

        assert box.changed(before) == {("slot", "leases_until"): str(until)}
