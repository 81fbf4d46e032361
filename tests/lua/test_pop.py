"""pop.lua on a real server."""

from __future__ import annotations

import pytest

from rmq import commands
from tests.lua.box import GONE, failure, ordered, stored


def command(box, lane, limit=1, waits=False):
    return commands.pop(box.keys, lane, limit, waits)


def pop(box, limit=1):
    return box.run(command(box, box.lane(), limit))


def settled(box) -> str:
    return f"settled{box.clock.now_ms // box.settings.dedup_window_ms % 2}"


def test_pop_settles_what_it_hands_over_and_leaves_no_trace_but_its_id(box):
    id = box.one(body=b"hello")
    before = box.state()

    batch = pop(box)

    assert batch == commands.Batch(
        0, False, 0, 1, 1, b"", [id], [stored(1, b"hello", priority=100)]
    )
    assert box.changed(before) == {
        ("slot", "delivered"): "1",
        ("slot", "takes"): "1",
        ("slot", "settled"): "1",
        ("slot", "settled_turn"): str(box.clock.now_ms // 60_000),
        ("store", id): GONE,
        ("records", id): GONE,
        (settled(box), id): True,
    }


def test_pop_sent_again_hands_over_the_very_same_batch(box):
    box.send(5, body=bytes(range(256)))
    lane = box.lane()

    batch = box.twice(lambda: command(box, lane, 3))

    assert len(batch.ids) == 3
    lane.number += 1
    assert len(box.run(command(box, lane, 3)).ids) == 2


def test_replay_of_a_pop_is_forgotten_after_a_minute(box):
    box.one()
    lane = box.lane()
    box.run(command(box, lane))

    left = box.redis.pttl(box.keys.replay_stem + lane.name)

    assert 50_000 < left <= 60_000


def test_pop_of_nothing_changes_nothing(box):
    box.one(due=5000)
    before = box.state()

    assert pop(box) == commands.Batch(5_000_000, False, 0, 1, 1, b"", [], [])
    assert box.state() == before


def test_popped_id_is_a_duplicate_inside_the_window(box):
    box.one()
    (id,) = pop(box).ids

    assert box.run(box.send_command([id])).letters == "d"


def test_without_a_dedup_window_nothing_is_remembered(make_box):
    box = make_box(dedup_window_ms=0)
    box.one()
    pop(box)

    assert {k for k in box.state() if not k.startswith("replay")} == {"slot"}


def test_pop_goes_in_the_order_of_prepare(box):
    retry = box.one(priority=1000)
    box.nack(box.take_one())
    low, high = box.one(priority=17), box.one(priority=1_048_575)
    due = box.one(due=100)
    joins = box.one(due=100, priority=500)
    box.clock.advance(1)

    batch = pop(box, 10)

    assert batch.ids == [due, high, joins, low, retry]
    assert batch.lefts == bytes([16, 16, 16, 16, 15])
    assert "failures" not in box.state()


def test_one_pop_in_five_looks_at_retries_first(box):
    retried = box.one()
    box.nack(box.take_one())
    box.send(10)
    box.redis.hset(box.keys.slot, "takes", 0)

    assert [pop(box).ids[0] for _ in range(5)][4] == retried


def test_pop_clears_the_merge_index(box):
    box.merge()
    box.clock.advance(5)
    pop(box)

    assert "merge" not in box.state()
    assert box.merge()[1].letter == "s"


def test_expired_message_is_buried_and_not_popped(box):
    id = box.one(expires=1000)
    box.clock.advance(1)
    before = box.state()

    assert pop(box).ids == []

    assert box.changed(before) == {
        ("slot", "buried"): "1",
        ("store", id): GONE,
        ("dead", id): box.clock.now_ms,
        ("failures", id): failure(0, 0, "x"),
    }


def test_missing_record_is_named_and_nothing_moves(box):
    _, broken = box.send(2)
    box.redis.hdel(box.keys.records, broken)
    before = box.state()

    with pytest.raises(Exception, match=r"RMQRECORD .*records"):
        pop(box, 2)

    assert box.state() == before


def test_pop_tells_of_lapsed_leases_and_leaves_them_alone(box):
    box.one()
    lease = box.take_one(lease_ms=1000)
    box.clock.advance(1)

    batch = pop(box)

    assert batch.lapsed
    assert box.state()["prepare"] == {lease.id: lease.receipt}


def test_a_thousand_in_one_pop_in_order(box):
    given = box.send(1000, priority=1_048_575)

    assert pop(box, 1000).ids == given
    assert "store" not in box.state()
    assert "records" not in box.state()


def test_what_joined_but_was_not_popped_keeps_its_place(box):
    joins = box.one(due=10, priority=50)
    box.one(priority=60)
    box.clock.advance(1)
    pop(box)

    assert box.state()["store"] == {joins: ordered(50, 2)}
