"""stats.lua on a real server."""

from __future__ import annotations

import os

import pytest

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts
from tests.lua.box import Box
from tests.lua.eventing import deliver, one_suspended
from tests.lua.following import ack_then, follow_up


def stats(box):
    """Run stats twice, and return its reply; check that no key changes."""
    before = box.state()
    found = box.run(scripts.stats(box.keys))
    assert box.run(scripts.stats(box.keys)) == found
    assert box.state() == before
    return found


def test_fresh_slot_counts_nothing(box):
    assert stats(box) == dict.fromkeys(scripts.STATS, 0) | {"now_ms": box.clock.now_ms}


def test_every_family_and_queue_is_counted_where_it_is(box):
    box.one()
    box.nack(box.take_one())
    box.send(2, priority=20)
    box.send(3, due=1000)
    box.send(4, due=60_000)
    box.merge(range_ms=60_000)
    box.clock.advance(3)

    found = stats(box)

    late_ms = found.pop("late_ms")  # ids are made by this machine's clock
    assert late_ms >= 3000  # since the failure
    assert found == dict.fromkeys(set(scripts.STATS) - {"late_ms"}, 0) | {
        "retries": 1, "priority": 2, "due": 3, "later": 5, "records": 11, "merge_windows": 1,
        "accepted": 11, "delivered": 1, "returned": 1,
        "now_ms": box.clock.now_ms,
    }  # fmt: skip


def made(box, *, ago_ms: int, marks: int = 0) -> bytes:
    """Return an id that was made so long ago by the box's clock."""
    (id,) = box.ids(1)
    at_ms = box.clock.now_ms - ago_ms
    return (
        bytes((marks | at_ms >> 40,))
        + (at_ms & (1 << 40) - 1).to_bytes(5, "big")
        + id[6:11]
        + os.urandom(5)
    )


def store(box, id: bytes, **options) -> None:
    assert box.run(box.send_command([id], **options)).codes == ""


def test_a_message_without_a_due_time_waits_since_its_id_was_made(box):
    store(box, made(box, ago_ms=7000), priority=900)
    assert stats(box)["late_ms"] == 7000

    store(box, made(box, ago_ms=9000, marks=0x40), priority=20)  # its sender keeps the id
    assert stats(box)["late_ms"] == 9000

    box.clock.advance(1)
    assert stats(box)["late_ms"] == 10_000


def test_the_oldest_message_is_found_behind_a_dedup_key_and_in_any_of_24_priorities(box):
    for _ in range(2):
        store(box, made(box, ago_ms=0, marks=0x80), priority=20)
    assert stats(box)["late_ms"] == 0  # nothing tells since when they wait
    store(box, made(box, ago_ms=5000), priority=20)
    assert stats(box)["late_ms"] == 5000

    for priority in range(22, 44):
        store(box, made(box, ago_ms=1000), priority=priority)
    store(box, made(box, ago_ms=8000), priority=44)
    assert stats(box)["late_ms"] == 8000
    store(box, made(box, ago_ms=1000), priority=21)  # that of 44 is one too many
    assert stats(box)["late_ms"] == 5000


def test_a_clock_of_a_producer_that_is_ahead_makes_no_message_older_or_younger_than_now(box):
    store(box, made(box, ago_ms=-60_000))
    assert stats(box)["late_ms"] == 0


def test_a_message_that_has_failed_waits_since_then(box):
    store(box, made(box, ago_ms=3_600_000))
    assert stats(box)["late_ms"] == 3_600_000

    box.nack(box.take_one())
    box.clock.advance(2)
    assert (stats(box)["retries"], stats(box)["late_ms"]) == (1, 2000)

    dead = box.take_one()
    box.reject(dead)
    box.clock.advance(5)
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [dead.id]))
    box.clock.advance(1)
    assert (stats(box)["priority"], stats(box)["late_ms"]) == (1, 1000)


@pytest.mark.parametrize("entry", [b"", b"\xff", b"somebody wrote this"])
def test_a_damaged_failure_entry_tells_no_time(box, entry):
    id = made(box, ago_ms=3000)
    store(box, id)

    box.redis.hset(box.keys.failures, member_of(id), entry)

    assert stats(box)["late_ms"] == 3000


def test_a_due_message_that_joined_its_priority_waits_since_it_was_due(box):
    box.send(3, due=1000, priority=50)
    box.clock.advance(2)
    box.take_one()

    box.clock.advance(4)

    assert (stats(box)["priority"], stats(box)["late_ms"]) == (2, 5000)


def test_message_due_this_very_moment_is_due(box):
    box.one(due=1000)
    box.clock.advance(0.999)
    assert (stats(box)["due"], stats(box)["later"]) == (0, 1)
    box.clock.advance(0.001)
    assert (stats(box)["due"], stats(box)["later"], stats(box)["late_ms"]) == (1, 0, 0)


def test_a_suspended_message_is_counted_among_those_that_are_due_later(box):
    one_suspended(box, limit_ms=1000)
    other = one_suspended(box, limit_ms=60_000)
    assert (stats(box)["suspended"], stats(box)["later"]) == (2, 2)

    deliver(box, other)
    box.clock.advance(1)

    found = stats(box)
    assert (found["suspended"], found["later"], found["due"], found["priority"]) == (1, 0, 1, 1)


def test_every_counter_tells_what_was_done(make_box):
    box = make_box(max_length=20, overflow="drop_lowest", on_expire="drop")
    ids = box.send(9, kept=True)
    acked, failed, dead, lapses, *_ = box.take(5, lease_ms=1000)
    box.ack(acked)
    box.nack(failed)
    box.reject(dead)
    box.clock.advance(1)
    box.rollback()
    assert lapses.id in box.order()
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [dead.id]))
    box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), ids[8]))
    box.merge(kept=True)
    box.merge(kept=True)
    box.one(expires=10, priority=900)
    box.clock.advance(1)
    box.prepare()
    box.run(scripts.purge(box.handle, box.keys, box.session(), "store", limit=1))
    waiting = len(box.order())
    box.send(20 - waiting, priority=50)
    box.send(3, priority=51)

    found = stats(box)

    assert {name: found[name] for name in scripts.STATS[15:-4]} == {
        "accepted": 27, "merged": 1, "delivered": 5, "settled": 1, "returned": 3,
        "rolled_back": 2, "dead_lettered": 1, "redriven": 1, "cancelled": 1, "expired": 1,
        "dropped": 3, "purged": 1, "dead_dropped": 0,
        "groups_paused": 0, "groups_held": 0, "pending": 0, "pending_ms": 0,
        "results": 0,
    }  # fmt: skip
    assert found["remembered"] == 3


def test_remembered_ids_are_those_of_both_turns(box):
    for _ in range(2):
        box.one(kept=True)
        box.ack(box.take_one())
        box.clock.advance(60)

    assert stats(box)["remembered"] == 2


def test_pending_follow_ups_are_counted_and_the_oldest_ages(box: Box) -> None:
    box.send(2)
    first, second = box.take(2)
    ack_then(box, [first], follow_up(box, target="a:0"), follow_up(box, target="b:0"))
    box.clock.advance(7)
    ack_then(box, [second], follow_up(box, target="a:0"))
    box.clock.advance(1)

    found = box.stats()

    assert (found["pending"], found["pending_ms"]) == (3, 8000)
