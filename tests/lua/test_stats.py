"""stats.lua on a real server."""

from __future__ import annotations

from rmq.protocol import commands


def stats(box):
    """Run stats twice, and return its reply; check that no key changes."""
    before = box.state()
    found = box.run(commands.stats(box.keys))
    assert box.run(commands.stats(box.keys)) == found
    assert box.state() == before
    return found


def test_fresh_slot_counts_nothing(box):
    assert stats(box) == dict.fromkeys(commands.STATS, 0) | {"now_ms": box.clock.now_ms}


def test_every_family_and_queue_is_counted_where_it_is(box):
    box.one()
    box.nack(box.take_one())
    box.send(2, priority=20)
    box.send(3, due=1000)
    box.send(4, due=60_000)
    box.merge(range_ms=60_000)
    box.clock.advance(3)

    found = stats(box)

    assert found == dict.fromkeys(commands.STATS, 0) | {
        "retries": 1, "priority": 2, "due": 3, "later": 5, "records": 11, "merge_windows": 1,
        "late_ms": 2000, "accepted": 11, "delivered": 1, "returned": 1,
        "now_ms": box.clock.now_ms,
    }  # fmt: skip


def test_message_due_this_very_moment_is_due(box):
    box.one(due=1000)
    box.clock.advance(0.999)
    assert (stats(box)["due"], stats(box)["later"]) == (0, 1)
    box.clock.advance(0.001)
    assert (stats(box)["due"], stats(box)["later"], stats(box)["late_ms"]) == (1, 0, 0)


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
    box.run(commands.redrive(box.handle, box.keys, box.session(), [dead.id]))
    box.run(commands.cancel(box.keys, box.session(), ids[8]))
    box.merge(kept=True)
    box.merge(kept=True)
    box.one(expires=10, priority=900)
    box.clock.advance(1)
    box.prepare()
    box.run(commands.purge(box.keys, box.session(), "store", limit=1))
    waiting = len(box.order())
    box.send(20 - waiting, priority=50)
    box.send(3, priority=51)

    found = stats(box)

    assert {name: found[name] for name in commands.STATS[15:-1]} == {
        "accepted": 27, "merged": 1, "delivered": 5, "settled": 1, "returned": 3,
        "rolled_back": 2, "buried": 1, "redriven": 1, "cancelled": 1, "expired": 1,
        "dropped": 3, "purged": 1, "dead_dropped": 0,
    }  # fmt: skip
    assert found["remembered"] == 3


def test_remembered_ids_are_those_of_both_turns(box):
    for _ in range(2):
        box.one(kept=True)
        box.ack(box.take_one())
        box.clock.advance(60)

    assert stats(box)["remembered"] == 2
