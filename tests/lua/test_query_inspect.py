"""query_inspect.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.spark import scripts
from rmq.kernel.consumer.scripts import QueryState
from tests.lua.query import ME, RIVAL, RUN, lapse, renew, take


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


def test_it_gives_back_the_last_report_of_an_owner(box):
    renew(box)
    assert look(box).report == b""
    before = box.state()

    renew(box, report=b'{"rows":7}')

    assert box.changed(before) == {(f"query:{RUN}", b"report"): b'{"rows":7}'}
    before = box.state()
    renew(box, report=b'{"rows":7}')
    renew(box)
    assert box.state() == before
    assert look(box) == QueryState(0, 15_000, ME.owner, b'{"rows":7}')
    renew(box, RIVAL, report=b'{"rows":1}')
    assert look(box).report == b'{"rows":7}', "it is not the owner"


def test_a_report_of_more_than_500_bytes_is_refused(box):
    renew(box, report=b"x" * 500)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG report"):
        renew(box, report=b"x" * 501)

    assert box.state() == before
