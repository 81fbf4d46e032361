"""cancel.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.messages import scripts
from rmq.kernel.core import ids
from tests.lua.box import GONE


def cancel(box, id):
    return box.run(scripts.cancel(box.handle, box.keys, box.session(), id))


def test_cancel_removes_a_waiting_message_whole_and_remembers_its_id(box):
    id, other = box.send(2, kept=True)
    before = box.state()
    session = box.session()

    assert box.run(scripts.cancel(box.handle, box.keys, session, id)) == "cancelled"

    assert box.changed(before, replay=True) == {
        ("slot", "cancelled"): "1",
        ("slot", "settled_turn"): str(box.clock.now_ms // 60_000),
        ("store", id): GONE,
        ("records", id): GONE,
        (box.settled_set(), id): True,
        (f"replay:{session.name[1:].decode()}",): b"1:cancelled",
    }
    assert box.order() == [other]
    assert box.run(box.send_command([id])).letters == "d"


def test_cancel_frees_the_dedup_key_of_a_message(box):
    id = ids.derive(b"k", box.keys.index, 0)
    box.run(box.send_command([id]))

    assert cancel(box, id) == "cancelled"

    assert box.run(box.send_command([id])).letters == ""


def test_cancel_of_a_retry_clears_its_failure(box):
    id = box.one(kept=True)
    box.nack(box.take_one())

    assert cancel(box, id) == "cancelled"
    assert {k for k in box.state() if not k.startswith("replay")} == {"slot", box.settled_set()}


def test_cancel_of_a_merge_window_clears_the_index(box):
    id, _ = box.merge()
    other, _ = box.merge(key=b"other")

    assert cancel(box, id) == "cancelled"
    assert set(box.state()["merge"]) == {b"other"}
    assert box.state()["merge"][b"other"][:16] == other


def test_cancel_of_an_older_window_leaves_the_index_to_the_newer(box):
    older, _ = box.merge(body=b"x" * 90, mode="collect", most=150)
    newer, _ = box.merge(body=b"x" * 90, mode="collect", most=150)

    assert cancel(box, older) == "cancelled"
    assert box.state()["merge"][b"key"][:16] == newer


@pytest.mark.parametrize("kept", [None, b"", b"\x06short", b"\x07" + bytes(7), b"\x04" + bytes(8)])
def test_message_whose_record_is_missing_or_cut_short_can_be_cancelled(box, kept):
    id = box.one()
    box.break_record(id, kept)

    assert cancel(box, id) == "cancelled"
    assert box.order() == []
    assert "records" not in box.state()


def test_without_a_dedup_window_the_id_is_not_remembered(make_box):
    box = make_box(dedup_window_ms=0)
    cancel(box, box.one())

    assert {k for k in box.state() if not k.startswith("replay")} == {"slot"}
