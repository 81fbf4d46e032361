"""topic_resize.lua on a real server, and what `slot` does with a new number of slots."""

from __future__ import annotations

import dataclasses

import pytest
import redis

from rmq.core.layout import Layout, Resizing
from rmq.protocol import commands
from rmq.protocol.commands import TopicReply
from rmq.protocol.steps import Command
from tests.lua.box import GONE

VALUES = {"slots": "4", "layout": "1 1 4", "resizing": "17 1 0"}


def fields(box):
    return {k.decode(): v.decode() for k, v in box.redis.hgetall(box.handle.key).items()}


def resize(box, revision=0, **values: str) -> Command[TopicReply]:
    return commands.topic_resize(box.handle, revision, values or VALUES)


def test_fields_are_written_and_the_revision_grows(box):
    before = fields(box)

    reply = box.run(resize(box))

    assert fields(box) == before | VALUES | {"revision": "1"}
    assert (reply.state, reply.kept) == (1, fields(box))


def test_an_empty_value_removes_its_field(box):
    box.run(resize(box))

    box.run(resize(box, 1, resizing=""))

    assert "resizing" not in fields(box)
    assert fields(box)["slots"] == "4"


def test_run_twice_or_after_another_change_nothing_happens(box):
    box.run(resize(box))
    after = fields(box)

    assert box.run(resize(box)).state == 0
    assert box.run(resize(box, 2, slots="8")).state == 0
    assert fields(box) == after


def test_topic_of_another_stamp_or_none_or_being_deleted_is_left_alone(box):
    box.run(commands.topic_close(box.handle, box.created, True))
    before = fields(box)

    assert box.run(resize(box)).state == -1
    assert fields(box) == before
    box.redis.delete(box.handle.key)
    assert box.run(resize(box)).state == -1
    assert not box.redis.exists(box.handle.key)


# --- the slots after it --------------------------------------------------------------------------


def give(box, resizes=1, held=False, revision=1, delivered_from=0):
    """Give the slot its stamp after so many resizes."""
    resizing = Resizing(17, 1, (1,)) if held else None
    settings = dataclasses.replace(
        box.settings,
        slots=2,
        layout=Layout(resizes, box.settings.slots, 2, resizing, delivered_from),
    )
    stamp = str(int(box.created) + resizes).encode()
    return commands.slot(box.handle, box.keys, stamp, settings.for_slot(), revision)


def test_slot_gets_the_new_stamp_and_keeps_its_messages(box):
    box.one()
    flying = box.one(priority=200)
    box.take_one()
    before = box.state()

    assert box.run(give(box)) == 1

    assert box.changed(before) == {
        ("slot", "created"): str(int(box.created) + 1), ("slot", "resizes"): "1",
        ("slot", "revision"): "1", ("slot", "upto"): "2", ("slot", "waiting"): "0",
    }  # fmt: skip
    assert flying in box.order("prepare")


def test_slot_that_has_the_stamp_is_left_alone(box):
    box.one()
    box.run(give(box))
    before = box.state()

    assert box.twice(lambda: give(box)) == 0
    assert box.twice(lambda: commands.slot(box.handle, box.keys, box.created, {}, 5)) == -1
    assert box.state() == before


def test_stamp_that_is_older_by_more_than_the_resizes_is_another_topic(box):
    box.one()
    before = box.state()
    stamp = str(int(box.created) + 3).encode()
    values = box.settings.for_slot() | {"resizes": "2"}

    assert box.run(commands.slot(box.handle, box.keys, stamp, values, 1)) == -1
    assert box.state() == before


def test_what_is_sent_or_taken_by_the_former_stamp_is_refused(box):
    box.one()
    box.run(give(box))
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        box.one()
    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        box.take_one()
    assert box.state() == before


def test_what_is_in_flight_is_settled_by_the_former_stamp(box):
    box.one()
    lease = box.take_one()
    box.run(give(box))

    assert box.ack(lease) == "1"
    assert not box.order("prepare")


def test_send_that_is_repeated_after_the_resize_gets_its_first_answer(box):
    command = box.send_command(box.ids(2))
    first = box.run(command)
    box.run(give(box))
    before = box.state()

    assert box.run(command) == first
    assert box.state() == before


def test_take_that_is_repeated_after_the_resize_gets_its_first_answer(box):
    box.send(2)
    session = box.session()
    command = commands.prepare(box.keys, session, 2, 30_000, False)
    first = box.run(command)
    box.run(give(box))
    before = box.state()

    again = box.run(command)

    assert (again.ids, again.deadline_s) == (first.ids, first.deadline_s)
    assert box.state() == before


# --- delivery numbers ----------------------------------------------------------------------------


def test_slot_that_opens_goes_on_from_the_largest_number_of_the_slots_that_it_awaited(box):
    box.run(give(box, held=True))
    before = box.state()

    assert box.run(give(box, revision=2, delivered_from=5000)) == 1

    assert box.changed(before) == {
        ("slot", "delivered"): "6144", ("slot", "skipped"): "6144",
        ("slot", "delivered_from"): "5000", ("slot", "revision"): "2",
        ("slot", "paused"): GONE,
    }  # fmt: skip
    after = box.state()
    assert box.twice(lambda: give(box, revision=2, delivered_from=5000)) == 0
    assert box.state() == after


def test_slot_that_is_created_later_goes_on_from_there_too(box):
    box.redis.delete(box.keys.slot)

    assert box.run(give(box, delivered_from=2048)) == 1

    slot = box.state()["slot"]
    assert (slot["delivered"], slot["skipped"]) == ("2048", "2048")


def test_slot_whose_numbers_are_larger_keeps_them(box):
    box.one()
    box.take_one()
    box.run(give(box, held=True))
    before = box.state()

    assert box.run(give(box, revision=2, delivered_from=1)) == 1

    assert box.changed(before) == {
        ("slot", "delivered_from"): "1", ("slot", "revision"): "2", ("slot", "paused"): GONE,
    }  # fmt: skip


def test_numbers_that_no_delivery_has_are_not_counted(box):
    box.one()
    box.take_one()
    box.run(give(box, delivered_from=5000))

    assert box.run(commands.stats(box.keys))["delivered"] == 1


@pytest.mark.parametrize("options", [{"priority": 900}, {"due": 1}])
def test_deliveries_in_flight_keep_receipts_and_places_when_the_numbers_go_on(box, options):
    ids = [box.one(**options) for _ in range(4)]
    box.clock.advance(1)
    leases = box.take(4, ordered=True)
    box.run(give(box, delivered_from=5001))

    assert box.ack(leases[0]) == "1"
    box.nack(*leases[:0:-1])

    assert (box.order() if "due" in options else box.order()[::-1]) == ids[1:]
