"""restore.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.protocol import commands
from tests.lua.test_trash import bury, trash


def restore(box, *ids):
    return box.run(commands.restore(box.keys, box.session(), ids))


def test_a_letter_comes_back_as_it_was(box):
    ids = bury(box, 3)
    before = box.state()
    trash(box, *ids)
    box.clock.advance(0.5)

    assert restore(box, *ids) == "111"

    assert box.changed(before) == {}


def test_run_again_it_finds_nothing_and_changes_nothing(box):
    ids = bury(box, 2)
    trash(box, *ids)
    session = box.session()
    assert box.twice(lambda: commands.restore(box.keys, session, ids)) == "11"
    before = box.state()

    assert restore(box, *ids) == "00"
    assert box.state() == before


def test_only_letters_of_the_trash_and_each_once(box):
    a, b = bury(box, 2)
    trash(box, a)
    waiting = box.one()

    assert restore(box, a, a, b, waiting) == "1000"


def test_what_was_restored_can_be_redriven(box):
    (id,) = bury(box)
    trash(box, id)
    restore(box, id)

    assert box.run(commands.redrive(box.handle, box.keys, box.session(), [id])) == "1"
    assert box.take_one().id == id


@pytest.mark.parametrize("count", [0, 1001])
def test_count_outside_its_limits_is_refused(box, count):
    before = box.state()

    with pytest.raises(Exception, match="RMQARG count"):
        restore(box, *[b"x" * 16] * count)

    assert box.state() == before
