"""get.lua on a real server."""

from __future__ import annotations

from rmq.kernel.topic import scripts
from rmq.kernel.topic.scripts import QueueMember
from tests.lua.box import ordered, stored, timed
from tests.lua.eventing import LIMIT_MS, OVER, deliver, item, one_suspended, wait_of


def get(box, id):
    """Run get twice, and return its reply; check that no key changes."""
    before = box.state()
    found = box.twice(lambda: scripts.get(box.keys, id))
    assert box.state() == before
    return found


def test_waiting_message_is_found_with_its_whole_score(box):
    plain, later = box.one(priority=1_048_575, body=bytes(range(256))), box.one(due=5000)
    due = box.clock.now_ms + 5000

    assert get(box, plain) == QueueMember(
        "store", plain, ordered(1_048_575, 1),
        stored(1, bytes(range(256)), priority=1_048_575), b"", 2,
    )  # fmt: skip
    assert get(box, later) == QueueMember(
        "store", later, timed(due, False), stored(2, due=due), b"", 2
    )


def test_message_in_flight_is_found_with_its_receipt(box):
    id = box.one()
    lease = box.take_one()

    assert get(box, id) == QueueMember("prepare", id, lease.receipt, lease.record, b"", 1)


def test_dead_letter_is_found_with_what_it_died_of(box):
    id = box.one()
    box.reject(box.take_one())
    died = box.clock.now_ms
    entry = box.failure(0, 1, "r", b"why")

    assert get(box, id) == QueueMember("dead", id, died, stored(1, priority=100), entry, 1)


def test_retry_is_found_with_what_it_failed_of(box):
    id = box.one()
    box.nack(box.take_one(), told=b"\0boom")
    entry = box.failure(16, 1, "f", b"\0boom")

    assert get(box, id).failure == entry


def test_settled_and_unknown_messages_are_not_found(box):
    id = box.one()
    box.ack(box.take_one())

    assert get(box, id) is None
    assert get(box, box.ids()[0]) is None
    assert get(box, b"") is None


def test_message_without_a_record_is_found(box):
    id = box.one()
    box.break_record(id, None)

    assert get(box, id) == QueueMember("store", id, ordered(100, 1), b"", b"", 1)


def test_suspended_message_is_found_with_its_wait_and_then_with_its_event(box):
    id = one_suspended(box)
    now, wait = box.clock.now_ms, wait_of(box)

    assert get(box, id) == QueueMember(
        "store", id, timed(now + LIMIT_MS, True), stored(1, priority=100), b"", 1,
        wait=wait,
    )  # fmt: skip
    deliver(box, id)
    event = item(box.clock.now_ms)
    found = get(box, id)
    assert (found.steps, found.wait[:1]) == (event, OVER)
