"""query_trim.lua on a real server."""

from __future__ import annotations

from rmq import query_commands
from tests.lua.query import RUN, log, take


def trim(box, upto, limit=10):
    return box.run(query_commands.trim(box.keys, RUN, upto, limit))


def test_trim_forgets_the_beginning_of_the_log_and_nothing_else(box):
    first, second, _ = box.send(3)
    take(box)
    before = box.state()

    assert trim(box, 2) == 2

    assert box.changed(before) == {
        (f"querylog:{RUN}", first): None,
        (f"querylog:{RUN}", second): None,
    }


def test_trim_twice_goes_on(box):
    box.send(5)
    take(box)

    assert trim(box, 5, limit=3) == 3
    assert trim(box, 5, limit=3) == 2
    assert trim(box, 5, limit=3) == 0
    assert log(box) == {}
