"""bury.lua on a real server."""

from __future__ import annotations

import pytest

from rmq import commands
from tests.lua.box import failure


def popped(box) -> tuple[bytes, bytes]:
    """A message that was popped: its id and its record."""
    box.one()
    batch = box.run(commands.pop(box.keys, box.lane(), 1, waits=False))
    return batch.ids[0], batch.records[0]


def test_bury_makes_a_popped_message_a_dead_letter_with_its_record(box):
    id, record = popped(box)
    before = box.state()

    assert box.run(commands.bury(box.keys, id, record, b"not JSON")) == 1

    assert box.changed(before) == {
        ("slot", "buried"): "1",
        ("dead", id): box.clock.now_ms,
        ("records", id): record,
        ("failures", id): failure(0, 1, "u", b"not JSON"),
    }


def test_bury_sent_again_finds_it_dead_and_changes_nothing(box):
    id, record = popped(box)
    box.run(commands.bury(box.keys, id, record, b"first"))
    before = box.state()

    box.clock.advance(1)
    assert box.run(commands.bury(box.keys, id, record, b"second")) == 0

    assert box.state() == before


@pytest.mark.parametrize("place", ["store", "prepare"])
def test_bury_leaves_a_queued_message_alone(box, place):
    id = box.one()
    if place == "prepare":
        box.take_one()
    before = box.state()

    assert box.run(commands.bury(box.keys, id, bytes(8), b"")) == 0

    assert box.state() == before


@pytest.mark.parametrize(("id", "record"), [(b"short", bytes(8)), (bytes(16), b"short")])
def test_bury_refuses_what_is_no_message(box, id, record):
    box.one()
    before = box.state()

    with pytest.raises(Exception, match="RMQARG record"):
        box.run(commands.bury(box.keys, id, record, b""))

    assert box.state() == before


def test_a_buried_message_can_be_redriven(box):
    id, record = popped(box)
    box.run(commands.bury(box.keys, id, record, b""))

    assert box.run(commands.redrive(box.handle, box.keys, [id])) == "1"

    assert box.take_one().id == id
