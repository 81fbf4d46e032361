"""topic_resize.lua on a real server, and what `slot` does with a new number of slots."""

from __future__ import annotations

import dataclasses

import pytest
import redis

from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.layout import Layout, Resizing
from rmq.kernel.topic import scripts
from rmq.kernel.topic.scripts import TopicReply
from rmq.kernel.transport.flow.steps import Command
from tests.lua import query
from tests.lua.box import GONE
from tests.lua.crediting import Sleeper

VALUES = {"slots": "4", "layout": "1 1 4", "resizing": "17 1 0"}


def resize(box, revision=0, **values: str) -> Command[TopicReply]:
    return scripts.topic_resize(box.handle, revision, values or VALUES)


def test_fields_are_written_and_the_revision_grows(box):
    before = box.topic_fields()

    reply = box.run(resize(box))

    assert box.topic_fields() == before | VALUES | {"revision": "1"}
    assert (reply.state, reply.kept) == (1, box.topic_fields())


def test_an_empty_value_removes_its_field(box):
    box.run(resize(box))

    box.run(resize(box, 1, resizing=""))

    assert "resizing" not in box.topic_fields()
    assert box.topic_fields()["slots"] == "4"


def test_run_twice_or_after_another_change_nothing_happens(box):
    box.run(resize(box))
    after = box.topic_fields()

    assert box.run(resize(box)).state == 0
    assert box.run(resize(box, 2, slots="8")).state == 0
    assert box.topic_fields() == after


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
    return scripts.slot(box.handle, box.keys, stamp, settings.for_slot(), revision)


def test_slot_gets_the_new_stamp_and_keeps_its_messages(box):
    box.one()
    flying = box.one(priority=200)
    box.take_one()
    before = box.state()

    assert box.run(give(box)) == 1

    assert box.changed(before) == {
        ("slot", "created"): str(int(box.created) + 1), ("slot", "resizes"): "1",
        ("slot", "revision"): "1", ("slot", "upto"): "2", ("slot", "waiting"): "0",
        ("slot", "delivered"): number(box, 1), ("slot", "skipped"): number(box, 1, -1),
    }  # fmt: skip
    assert flying in box.order("prepare")


def test_slot_that_has_the_stamp_is_left_alone(box):
    box.one()
    box.run(give(box))
    before = box.state()

    assert box.twice(lambda: give(box)) == 0
    assert box.twice(lambda: scripts.slot(box.handle, box.keys, box.created, {}, 5)) == -1
    assert box.state() == before


def test_stamp_that_is_older_by_more_than_the_resizes_is_another_topic(box):
    box.one()
    before = box.state()
    stamp = str(int(box.created) + 3).encode()
    values = box.settings.for_slot() | {"resizes": "2"}

    assert box.run(scripts.slot(box.handle, box.keys, stamp, values, 1)) == -1
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
    command = consumer_scripts.prepare(box.keys, session, 2, 30_000, False)
    first = box.run(command)
    box.run(give(box))
    before = box.state()

    again = box.run(command)

    assert (again.ids, again.deadline_s) == (first.ids, first.deadline_s)
    assert box.state() == before


# --- delivery numbers ----------------------------------------------------------------------------


def number(box, delivered, more=0, at=0):
    """The number from which a slot goes on: the clock, or `at`, in steps of 2048."""
    return str(delivered - 2048 * ((delivered - (at or box.clock.now_us)) // 2048) + more)


def test_slot_that_opens_goes_on_from_the_largest_number_of_the_slots_that_it_awaited(box):
    box.run(give(box, held=True))
    before = box.state()
    ahead = box.clock.now_us + 3_600_000_000  # of a master whose clock is ahead

    assert box.run(give(box, revision=2, delivered_from=ahead)) == 1

    delivered = number(box, int(before["slot"]["delivered"]), at=ahead)
    assert int(delivered) >= ahead
    assert box.changed(before) == {
        ("slot", "delivered"): delivered, ("slot", "skipped"): delivered,
        ("slot", "delivered_from"): str(ahead), ("slot", "revision"): "2",
        ("slot", "paused"): GONE,
    }  # fmt: skip
    after = box.state()
    assert box.twice(lambda: give(box, revision=2, delivered_from=ahead)) == 0
    assert box.state() == after


def test_slot_that_is_created_later_goes_by_the_clock_too(box):
    box.redis.delete(box.keys.slot)

    assert box.run(give(box)) == 1

    slot = box.state()["slot"]
    assert (slot["delivered"], slot["skipped"]) == (number(box, 0), number(box, 0))


def test_slot_whose_numbers_are_ahead_of_the_clock_keeps_them(box):
    box.run(give(box, held=True))
    box.clock.advance(-3600)
    before = box.state()

    assert box.run(give(box, revision=2, delivered_from=1)) == 1

    assert box.changed(before) == {
        ("slot", "delivered_from"): "1", ("slot", "revision"): "2", ("slot", "paused"): GONE,
    }  # fmt: skip


@pytest.mark.parametrize("way", ["prepare", "query", "hand-over"])
def test_a_later_delivery_has_a_larger_number_in_whichever_slot_of_a_resized_topic(make_box, way):
    """A slot has delivered much and then nothing for an hour; the other one goes on."""
    busy, quiet = make_box(index=1, slots=2), make_box(index=0, slots=2)
    newest = 0
    for box in (busy, quiet):
        box.redis.hset(box.keys.slot, "delivered", 70_000 if box is busy else 0)
        box.run(give(box))
        box.handle.open_with(box.settings, str(int(box.created) + 1).encode())
        box.keys = box.handle.slots[box.index]
    for box in (busy, quiet, busy, busy, quiet):
        box.clock.advance(0.005)
        counted = box.run(scripts.stats(box.keys))["delivered"]

        numbers = deliver_two(box, way)

        assert numbers == [numbers[0], numbers[0] + 1]
        assert newest < numbers[0] <= box.clock.now_us + 1
        newest = numbers[1]
        assert box.run(scripts.stats(box.keys))["delivered"] == counted + 2


def deliver_two(box, way):
    """Deliver two messages; their numbers, which their receipts have, too."""
    if way == "hand-over":
        sleeper = Sleeper(box)
        sleeper.offer(limit=5)
        sleeper.heard()
        box.send(2)
        leases = sleeper.taken()
        sleeper.close()
    elif way == "prepare":
        box.send(2)
        leases = box.take(2)
    else:
        box.send(2)
        known = int(box.state().get(f"query:{query.RUN}", {}).get(b"tail", 0))
        query.take(box, known)
        last = int(box.state()["slot"]["delivered"])
        scores = {score for _, score in box.redis.zscan_iter(box.keys.prepare)}
        page = int(box.state()[f"query:{query.RUN}"][b"page"])
        assert scores == {query.receipt(last - 1, page=page)}
        box.redis.delete(box.keys.prepare)
        return [last - 1, last]
    assert box.ack(*leases) == "11"
    return [lease.delivery for lease in leases]


def test_numbers_that_no_delivery_has_are_not_counted(box):
    box.one()
    box.take_one()
    box.run(give(box))

    assert box.run(scripts.stats(box.keys))["delivered"] == 1


@pytest.mark.parametrize("options", [{"priority": 900}, {"due": 1}])
def test_deliveries_in_flight_keep_receipts_and_places_when_the_numbers_go_on(box, options):
    ids = [box.one(**options) for _ in range(4)]
    box.clock.advance(1)
    leases = box.take(4, ordered=True)
    box.run(give(box, delivered_from=box.clock.now_us + 5001))

    assert box.ack(leases[0]) == "1"
    box.nack(*leases[:0:-1])

    assert (box.order() if "due" in options else box.order()[::-1]) == ids[1:]
