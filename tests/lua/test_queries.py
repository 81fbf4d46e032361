"""queries.lua on a real server."""

from __future__ import annotations

from rmq import query_commands
from tests.lua.query import ME, OTHER, take


def test_queries_are_listed_by_when_their_leases_end(box):
    take(box)
    take(box, holder=OTHER._replace(lease_ms=2000))
    before = box.state()
    box.clock.advance(5)

    assert box.run(query_commands.queries(box.keys)) == [
        (OTHER.run, -3000), (ME.run, 595_000),
    ]  # fmt: skip
    assert box.run(query_commands.queries(box.keys, 1)) == [(OTHER.run, -3000)]
    assert box.state() == before


def test_no_query_is_an_empty_list(box):
    assert box.run(query_commands.queries(box.keys)) == []
