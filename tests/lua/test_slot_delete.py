"""slot_delete.lua on a real server."""

from __future__ import annotations

from rmq.kernel.topic.scripts import SlotDeleteReply, slot_delete
from tests.lua.eventing import one_suspended
from tests.lua.furnished import furnish

# Admin.topic_delete finds these. Schedules are among them: a deletion that is undone keeps them.
BY_NAME = (
    "query:",
    "querylog:",
    "querymarks:",
    "stage:",
    "replay:",
    "claim:",
    "schedules",
    "schedule_times",
)


def held(box):
    counts = [box.redis.zcard(key) for key in (box.keys.store, box.keys.prepare, box.keys.dead)]
    counts[0] += box.redis.zcard(box.keys.pending)  # they wait for another slot
    return counts


def test_slot_goes_with_all_its_messages_and_every_key_but_those_found_by_name(box):
    furnish(box)
    counts = held(box)
    by_name = {name: v for name, v in box.state().items() if name.startswith(BY_NAME)}
    assert all(counts)

    reply = box.run(slot_delete(box.keys, box.created, sum(counts)))

    assert reply == SlotDeleteReply(1, *counts)
    assert box.state() == by_name
    assert box.run(slot_delete(box.keys, box.created, 0)) == SlotDeleteReply(1, 0, 0, 0), (
        "run again"
    )
    assert box.state() == by_name


def test_slot_that_holds_more_than_was_allowed_stays_as_it_is(box):
    furnish(box)
    before, counts = box.state(), held(box)

    for most in (None, 0, sum(counts) - 1):
        assert box.twice(
            lambda most=most: slot_delete(box.keys, box.created, most)
        ) == SlotDeleteReply(0, *counts)
    assert box.state() == before


def test_empty_slot_goes_where_no_message_may(box):
    box.one()
    box.ack(box.take_one())

    assert box.run(slot_delete(box.keys, box.created, 0)) == SlotDeleteReply(1, 0, 0, 0)
    assert set(box.state()) == set()


def test_slot_of_a_newer_topic_stays_and_one_of_an_older_goes(box):
    box.one()
    before, created = box.state(), int(box.created)

    assert box.twice(lambda: slot_delete(box.keys, b"%d" % (created - 1), 9)).state == -1
    assert box.state() == before
    assert box.run(slot_delete(box.keys, b"%d" % (created + 1), 9)).state == 1
    assert box.state() == {}


def test_suspended_messages_are_deleted_with_their_waits(box):
    one_suspended(box)

    assert box.run(slot_delete(box.keys, box.created, 0)) == SlotDeleteReply(0, 1, 0, 0)
    assert box.run(slot_delete(box.keys, box.created, 1)) == SlotDeleteReply(1, 1, 0, 0)
    assert box.state() == {}
