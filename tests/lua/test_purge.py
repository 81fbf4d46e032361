"""purge.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.topic import scripts
from tests.lua.box import GONE


def purge(box, place="store", **options):
    return box.run(scripts.purge(box.handle, box.keys, box.session(), place, **options))


def test_purge_by_id_deletes_whole_messages_and_nothing_else(box):
    a, b, c = box.send(3)
    before = box.state()

    assert purge(box, ids=[a, c, box.ids()[0]]) == 2

    assert box.changed(before) == {
        ("slot", "purged"): "2",
        ("store", a): GONE,
        ("store", c): GONE,
        ("records", a): GONE,
        ("records", c): GONE,
    }
    assert box.order() == [b]


def test_pages_go_from_the_lowest_score_to_the_end(box):
    low, high = box.send(2, priority=20), box.send(3, priority=30)

    assert purge(box, limit=2) == 2
    assert set(box.order()) == set(high)
    assert purge(box, limit=2) == 2
    assert purge(box, limit=2) == 1
    assert {part for part in box.state() if not part.startswith("replay")} == {"slot"}
    assert box.counter("purged") == 5
    assert low[0] not in box.order()


def test_only_scores_up_to_high_are_deleted(box):
    box.send(2, priority=20)
    kept = box.send(2, priority=30)

    assert purge(box, high="(30") == 2
    assert set(box.order()) == set(kept)


def test_dead_letters_go_with_their_failures(box):
    ids = box.send(2)
    box.reject(*box.take(2))

    assert purge(box, "dead", ids=ids[:1]) == 1
    state = box.state()
    assert set(state["dead"]) == set(state["records"]) == set(state["failures"]) == {ids[1]}


def test_messages_in_flight_and_of_the_other_queue_are_not_touched(box):
    waiting = box.one(priority=17)
    box.send(2)
    flying, dead = box.take(2)
    box.reject(dead)
    before = box.state()

    assert purge(box, "store", ids=[flying.id, dead.id]) == 0
    assert purge(box, "dead", ids=[flying.id, waiting]) == 0
    assert box.state() == before
    assert purge(box, "store") == 1
    assert purge(box, "dead") == 1
    assert box.ack(flying) == "1"


def test_merge_windows_leave_the_index(box):
    a, _ = box.merge(key=b"a")
    b, _ = box.merge(key=b"b")

    assert purge(box, ids=[a]) == 1
    assert set(box.state()["merge"]) == {b"b"}
    assert purge(box) == 1
    assert {part for part in box.state() if not part.startswith("replay")} == {"slot"}
    assert box.merge(key=b"b")[1].codes == "s"
    assert b not in box.order()


def test_purge_of_an_older_window_leaves_the_index_to_the_newer(box):
    older, _ = box.merge(body=b"x" * 90, mode="collect", most=150)
    newer, _ = box.merge(body=b"x" * 90, mode="collect", most=150)

    purge(box, ids=[older])

    assert box.state()["merge"][b"key"][:16] == newer


@pytest.mark.parametrize("kept", [None, b"", b"\x06short", b"\x07" + bytes(7), b"\x04" + bytes(8)])
def test_message_whose_record_is_missing_or_cut_short_can_be_purged(box, kept):
    box.merge()
    id = box.one()
    box.break_record(id, kept)

    assert purge(box, ids=[id]) == 1
    assert id not in box.order()
    assert id not in box.state()["records"]


def test_a_thousand_in_one_call(box):
    ids = box.send(1000)
    box.send(1000)

    assert purge(box, ids=ids) == 1000
    assert purge(box, limit=1000) == 1000
    assert {part for part in box.state() if not part.startswith("replay")} == {"slot"}
