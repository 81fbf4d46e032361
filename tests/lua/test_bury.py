"""bury.lua on a real server."""

from __future__ import annotations

import pytest

from rmq import commands
from tests.lua.box import failure


def popped(box):
    """A message that was popped: its id and record."""
    box.one(body=b"\xff unreadable")
    batch = box.run(commands.pop(box.keys, box.lane(), 1, False))
    return batch.ids[0], batch.records[0]


def command(box, id, record, told=b"why"):
    return commands.bury(box.keys, id, record, told)


def test_popped_message_becomes_a_dead_letter_whole(box):
    id, record = popped(box)
    before = box.state()

    assert box.run(command(box, id, record)) == 1

    assert box.changed(before, replay=True) == {
        ("slot", "buried"): "1",
        ("records", id): record,
        ("dead", id): box.clock.now_ms,
        ("failures", id): failure(0, 1, "u", b"why"),
    }


def test_run_again_it_finds_the_message_dead_and_changes_nothing(box):
    id, record = popped(box)
    box.run(command(box, id, record))
    before = box.state()

    assert box.twice(lambda: command(box, id, record, b"another error")) == 0
    assert box.state() == before


def test_message_that_is_in_a_queue_is_not_touched(box):
    waiting, later = box.one(priority=17), box.one(due=5000)
    box.send(2)
    flying, dead = box.take(2)
    box.reject(dead)
    before = box.state()

    for id in (waiting, later, flying.id, dead.id):
        assert box.run(command(box, id, b"a forged record")) == 0
    assert box.state() == before


def test_buried_message_can_be_sent_back(box):
    id, record = popped(box)
    box.run(command(box, id, record))

    assert box.run(commands.redrive(box.handle, box.keys, [id])) == "1"
    lease = box.take_one()
    assert (lease.id, lease.record, lease.left) == (id, record, 16)


def test_error_is_kept_to_64_kib(box):
    id, record = popped(box)
    box.run(command(box, id, record, b"e" * 100_000))

    assert box.state()["failures"][id] == failure(0, 1, "u", b"e" * 65_536)


def test_dead_retention_drops_old_dead_letters_whole(make_box):
    box = make_box(dead_retention_ms=10_000)
    for _ in range(2):
        id, record = popped(box)
        box.run(command(box, id, record))
        box.clock.advance(10)

    state = box.state()
    assert set(state["dead"]) == set(state["records"]) == set(state["failures"]) == {id}
    assert box.counter("dead_dropped") == 1


@pytest.mark.parametrize(("id", "record"), [(b"short", b"r" * 20), (b"i" * 16, b"1234567")])
def test_id_or_record_of_a_wrong_size_is_refused(box, id, record):
    before = box.state()

    with pytest.raises(Exception, match="RMQARG record"):
        box.run(command(box, id, record))

    assert box.state() == before
