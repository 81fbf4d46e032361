"""set_priority.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.messages import scripts
from tests.lua.box import handed_back, ordered, stored, timed


def command(box, id, priority):
    return scripts.set_priority(box.keys, box.session(), id, priority)


def set_priority(box, id, priority):
    return box.run(command(box, id, priority))


@pytest.mark.parametrize("priority", [17, 255, 256, 65_535, 65_536, 1_048_575])
def test_message_joins_its_new_priority_as_the_newest(box, priority):
    id = box.one(priority=900, body=b"hello")
    other = box.one(priority=priority)
    before = box.state()

    assert set_priority(box, id, priority) == "changed"

    assert box.changed(before) == {
        ("slot", "order"): "3",
        ("store", id): ordered(priority, 3),
        ("records", id): stored(1, b"hello", priority=priority),
    }
    assert box.drained() == [other, id]


def test_timed_message_keeps_its_time_and_competes_when_due(box):
    id = box.one(due=5000)
    due = box.clock.now_ms + 5000

    assert set_priority(box, id, 30) == "changed"

    assert box.state()["store"] == {id: timed(due, True)}
    assert box.state()["records"] == {id: stored(1, due=due, priority=30)}
    high, low = box.one(priority=31), box.one(priority=29)
    box.clock.advance(5)
    assert box.drained() == [high, id, low]


def test_timed_message_that_was_due_and_handed_back_joins_the_priority(box):
    id = box.one(due=1000)
    box.clock.advance(1)
    box.release(box.take_one())
    assert box.score(id) == handed_back(0)

    assert set_priority(box, id, 30) == "changed"

    assert box.state()["store"] == {id: ordered(30, 1)}


def test_delayed_retry_keeps_its_time_and_what_it_has_left(box):
    id = box.one()
    box.nack(box.take_one(), wait_ms=5000)

    set_priority(box, id, 30)

    assert box.score(id) == timed(box.clock.now_ms + 5000, True)


def test_retry_keeps_its_place_among_the_retries(box):
    id = box.one()
    box.nack(box.take_one())
    before = box.state()

    assert set_priority(box, id, 30) == "changed"

    assert box.changed(before) == {("records", id): stored(1, priority=30)}
