"""query_again.lua on a real server."""

from __future__ import annotations

from rmq.features.spark import scripts
from rmq.features.spark.scripts import QueryLog
from tests.lua.query import EXACT, ME, RIVAL, RUN, lapse, log, read, take


def again(box, upto, holder=ME):
    return box.run(scripts.query_again(box.keys, holder, upto))


def test_a_batch_gets_new_numbers_once_and_nothing_else_changes(box):
    first, second, third = box.send(3)
    take(box, limit=2)
    before = box.state()

    assert again(box, 2) == QueryLog(2, 4)

    assert box.changed(before) == {
        (f"query:{RUN}", b"tail"): b"4",
        (f"query:{RUN}", b"settled"): b"2",
    }
    after = box.state()
    assert again(box, 2) == QueryLog(2, 4)
    assert box.state() == after
    assert take(box, after=2)[:2] == (2, 4)
    assert log(box) == {first: 3, second: 4}
    assert take(box, after=4) == QueryLog(1, 5)
    assert third in log(box)


def test_what_was_taken_beyond_the_batch_stays_behind_it(box):
    ids = box.send(3)
    take(box, limit=2)
    take(box, after=2)

    assert again(box, 2) == QueryLog(3, 6)

    assert read(box, 2).ids == ids


def test_what_has_lapsed_is_not_handed_out_again(box):
    box.send(2)
    take(box, holder=EXACT)
    lapse(box, force=True)

    assert again(box, 2) == QueryLog(0, 2)

    assert log(box) == {}
    assert box.state()[f"query:{RUN}"][b"settled"] == b"2"


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.send(2)
    take(box)
    before = box.state()

    assert again(box, 2, RIVAL) == QueryLog(2, 2, 15_000, "me:1")

    assert box.state() == before
