"""next_ready.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.consumer import scripts


@pytest.fixture
def pair(make_box):
    """A topic of two slots; the box looks at the first one."""
    return make_box(slots=2)


def ask(box, waits=False):
    return box.run(scripts.next_ready(box.handle.slots, waits))


def whole(box):
    return box.state(0), box.state(1)


def test_each_slot_tells_when_it_next_has_work_and_nothing_changes(pair):
    assert ask(pair) == [-1, -1]
    pair.one(due=5000)
    before = whole(pair)

    assert ask(pair) == [5_000_000, -1]
    pair.clock.advance(4.5)
    assert ask(pair) == [500_000, -1]
    pair.clock.advance(1)
    assert ask(pair) == [0, -1]
    assert whole(pair) == before


def test_what_may_be_taken_at_once_is_now(pair):
    pair.one(priority=17)
    assert ask(pair) == [0, -1]
    pair.nack(pair.take_one())
    assert ask(pair) == [0, -1]


def test_lease_counts_until_its_deadline(pair):
    pair.one()
    pair.take_one(lease_ms=9000)
    pair.one(due=60_000)

    assert ask(pair) == [9_000_000, -1]
    pair.clock.advance(9)
    assert ask(pair) == [0, -1]


def test_microseconds_of_the_clock_count(pair):
    pair.one(due=5000)
    pair.clock.now_us += 250
    pair.clock.advance(0)

    assert ask(pair) == [4_999_750, -1]


def test_waiting_is_noted_where_there_is_nothing_and_at_most_every_100_seconds(pair):
    pair.one()
    assert ask(pair, waits=True) == [0, -1]
    first, second = whole(pair)
    assert "waiting" not in first["slot"]
    until = str(pair.clock.now_ms + 300_000)
    assert second["slot"]["waiting"] == until

    before = whole(pair)
    for _ in range(2):
        pair.clock.advance(50)
        ask(pair, waits=True)
        assert whole(pair) == before
    pair.clock.advance(0.1)
    ask(pair, waits=True)
    assert whole(pair)[1]["slot"]["waiting"] == str(pair.clock.now_ms + 300_000)


def test_run_twice_it_changes_nothing_more(pair):
    ask(pair, waits=True)
    before = whole(pair)

    assert ask(pair, waits=True) == [-1, -1]
    assert whole(pair) == before


@pytest.mark.parametrize("place", ["slot", "store", "prepare"])
@pytest.mark.parametrize("index", [0, 1])
def test_wrong_type_in_any_slot_is_an_error_and_nothing_changes(pair, place, index):
    key = getattr(pair.handle.slots[index], place)
    pair.redis.delete(key)
    pair.redis.set(key, "x")
    before = whole(pair)

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ask(pair, waits=True)

    assert whole(pair) == before


def test_vanished_slot_is_named_and_nothing_changes(pair):
    pair.redis.delete(pair.handle.slots[1].slot)
    before = whole(pair)

    with pytest.raises(redis.ResponseError, match=r"RMQGONE .*_1}:slot"):
        ask(pair, waits=True)

    assert whole(pair) == before


def test_as_many_slots_as_a_topic_may_have(make_box):
    box = make_box(slots=1024)

    assert ask(box) == [-1] * 1024


def test_keys_that_are_not_three_for_each_slot_are_refused(pair):
    keys = pair.handle.slots[0]

    with pytest.raises(redis.ResponseError, match="RMQARG keys"):
        pair.raw("next_ready", [keys.slot, keys.store], [b"", 0])


def test_with_a_stamp_for_each_slot_one_that_is_gone_does_not_hide_the_others(pair):
    pair.one(priority=17)
    gone, kept = pair.handle.slots[1], pair.handle.slots[0]
    many = scripts.next_ready([gone, kept], waits=True, many_topics=True)
    assert pair.run(many) == [-1, 0]

    pair.redis.delete(gone.slot)
    before = whole(pair)

    assert pair.run(many) == [-2, 0]
    assert whole(pair) == before


def test_the_number_of_stamps_must_be_that_of_the_slots(pair):
    command = scripts.next_ready(pair.handle.slots, waits=False, many_topics=True)
    command.args.append(b"one too many")

    with pytest.raises(redis.ResponseError, match="created"):
        pair.run(command)
