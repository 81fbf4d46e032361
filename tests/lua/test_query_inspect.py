"""query_inspect.lua on a real server."""

from __future__ import annotations

from rmq.features.queries import scripts
from rmq.kernel.consumer.scripts import QueryState
from tests.lua.query import ME, RUN, lapse, take


def look(box):
    return box.run(scripts.query_inspect(box.keys, RUN))


def test_it_tells_what_is_held_and_for_how_long_the_owner_has_it(box):
    box.send(3)
    take(box, limit=2)
    before = box.state()

    assert look(box) == look(box) == QueryState(2, 15_000, ME.owner)

    box.clock.advance(20)
    assert look(box) == QueryState(2, -5000, ME.owner)
    assert box.state() == before


def test_a_query_that_was_given_back_holds_nothing_and_has_no_owner(box):
    box.send(1)
    take(box)
    lapse(box, force=True)

    assert look(box) == QueryState(0, 0, "")


def test_a_query_that_never_was_holds_nothing(box):
    assert look(box) == QueryState(0, 0, "")
