"""nack.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.retry import ROCKETMQ_LEVELS_S, Exponential, Levels
from tests.lua.box import GONE, ordered, timed
from tests.lua.failures import head, item


def waits(box, leases) -> list[int]:
    """How long each message waits now, ms; 0 for one that waits for nothing."""
    scores = [box.score(lease.id) for lease in leases]
    return [int(s) - box.clock.now_ms if s >= 1e12 else 0 for s in scores]


def test_nack_gives_back_as_a_retry_and_keeps_the_record(box):
    id = box.one()
    lease = box.take_one()
    before = box.state()
    session = box.session()

    assert box.run(box.nack_command([lease], session, told=b"boom")) == "r"

    assert box.changed(before, replay=True) == {
        ("slot", "returned"): "1",
        ("prepare", id): GONE,
        ("store", id): ordered(16, 1),
        ("failures", id): box.failure(16, 1, "f", b"boom"),
        (f"replay:{session.name[1:].decode()}",): b"1:r",
    }


def test_nack_sent_again_after_the_message_was_taken_leaves_the_new_lease_alone(box):
    box.one()
    lease = box.take_one()
    session = box.session()
    box.run(box.nack_command([lease], session))
    again = box.take_one()
    before = box.state()

    assert box.run(box.nack_command([lease], session)) == "r"
    assert box.state() == before
    assert again.left == 15


def test_message_is_delivered_seventeen_times_and_then_dead(box):
    id = box.one()
    lefts, items = [], []
    letters = ""
    while lease := box.take():
        lefts.append(lease[0].left)
        before = box.state()
        letters += box.nack(lease[0], told=b"try %d" % len(lefts))
        items.insert(0, item("f", box.clock.now_ms, 6, b"try %d" % len(lefts)))

    assert lefts == list(range(16, -1, -1))
    assert letters == "r" * 16 + "d"
    assert box.changed(before) == {
        ("slot", "dead_lettered"): "1",
        ("prepare", id): GONE,
        ("dead", id): box.clock.now_ms,
        ("failures", id): box.failure(0, 17, "f", b"try 17", items=items[1:]),
    }


@pytest.mark.parametrize("retries", [0, 1, 2, 16])
def test_number_of_deliveries_is_one_more_than_the_retries(make_box, retries):
    box = make_box(max_retries=retries)
    id = box.one()
    count = 0
    while lease := box.take():
        count += 1
        box.nack(lease[0])

    assert count == retries + 1
    assert box.order("dead") == [id]
    assert box.state()["failures"][id][:3] == head(0, retries + 1, "f")


@pytest.mark.parametrize("retries", [1, 16])
def test_delayed_retries_count_the_same(make_box, retries):
    box = make_box(max_retries=retries, retry=Exponential(base=1, cap=600, jitter=0))
    id = box.one(priority=900)
    count = 0
    while "dead" not in box.state():
        lease = box.take_one()
        count += 1
        assert lease.left == retries + 1 - count
        box.nack(lease)
        box.clock.advance(600)

    assert count == retries + 1
    assert box.order("dead") == [id]


def test_retries_keep_the_order_in_which_they_failed(box):
    box.send(3)
    a, b, c = box.take(3)
    box.nack(b, a)
    box.nack(c)

    assert box.drained() == [b.id, a.id, c.id]


def test_exponential_without_jitter_climbs_the_ladder_exactly(make_box):
    box = make_box(retry=Exponential(base=1, cap=60, jitter=0))
    id = box.one()
    found = []
    for _ in range(1, 17):
        lease = box.take_one()
        box.nack(lease)
        found += waits(box, [lease])
        assert box.score(id) == timed(box.clock.now_ms + found[-1], True)
        box.clock.advance(found[-1] / 1000)

    assert found == [min(60_000, 1000 << n) for n in range(16)]


def test_levels_are_climbed_exactly(make_box):
    box = make_box(retry=Levels())
    box.one()
    found = []
    for _ in range(16):
        lease = box.take_one()
        box.nack(lease)
        found += waits(box, [lease])
        box.clock.advance(found[-1] / 1000)

    assert found == [seconds * 1000 for seconds in ROCKETMQ_LEVELS_S]


def test_last_level_repeats(make_box):
    box = make_box(retry=Levels((1, 2)))
    box.one()
    found = []
    for _ in range(4):
        lease = box.take_one()
        box.nack(lease)
        found += waits(box, [lease])
        box.clock.advance(10)

    assert found == [1000, 2000, 2000, 2000]


@pytest.mark.parametrize(("jitter", "low"), [(1.0, 0), (0.5, 4000), (0.1, 7200)])
def test_jitter_leaves_its_share_of_the_wait_to_chance(make_box, jitter, low):
    box = make_box(retry=Exponential(base=8, cap=8, jitter=jitter))
    box.send(500)
    leases = box.take(500)

    box.nack(*leases)

    found = waits(box, leases)
    assert low <= min(found) < low + 0.1 * (8000 - low)
    assert 8000 - 0.1 * (8000 - low) < max(found) <= 8000
    assert abs(sum(found) / 500 - (low + 8000) / 2) < 0.1 * (8000 - low)


def test_handlers_own_wait_goes_before_the_policy(make_box):
    box = make_box(retry=Exponential(base=8, cap=8, jitter=1))
    box.send(2)
    a, b = box.take(2)

    box.nack(a, wait_ms=1234)
    box.nack(b, wait_ms=0)

    assert box.score(a.id) == timed(box.clock.now_ms + 1234, True)
    assert box.score(b.id) == ordered(16, 1)


def test_wait_of_ten_years_is_the_most(box):
    box.send(2)
    a, b = box.take(2)
    assert box.nack(a, wait_ms=315_576_000_000) == "r"
    assert waits(box, [a]) == [315_576_000_000]
    before = box.state()

    with pytest.raises(Exception, match="RMQARG wait_ms"):
        box.nack(b, wait_ms=315_576_000_001)

    assert box.state() == before


def test_only_the_held_ones_of_a_batch_go_back_and_only_once(box):
    box.send(3)
    a, b, c = box.take(3)
    box.ack(b)
    before = box.state()

    assert box.nack(a, b, c, a) == "r0r0"

    assert box.changed(before) == {
        ("slot", "returned"): "2",
        ("prepare", a.id): GONE,
        ("prepare", c.id): GONE,
        ("store", a.id): ordered(16, 1),
        ("store", c.id): ordered(16, 2),
        ("failures", a.id): box.failure(16, 1, "f", b"why"),
        ("failures", c.id): box.failure(16, 1, "f", b"why"),
    }


def test_each_message_keeps_its_own_error_and_at_most_64_kib_of_it(box):
    box.send(2)
    leases = box.take(2)
    made = box.nack_command(leases, box.session())
    made.args[-2:] = [b"\0\xff" * 40_000, b""]

    box.run(made)

    failures = box.state()["failures"]
    assert failures[leases[0].id] == box.failure(16, 1, "f", (b"\0\xff" * 40_000)[:65_536])
    assert failures[leases[1].id] == box.failure(16, 1, "f")


def test_dead_retention_drops_old_dead_letters_and_counts_them(make_box):
    box = make_box(max_retries=0, dead_retention_ms=10_000)
    old = box.send(12)
    box.nack(*box.take(12))
    box.clock.advance(10)
    new = box.one()
    before = box.state()

    assert box.nack(box.take_one()) == "d"

    dead = box.state()["dead"]
    assert len(dead) == 3  # ten at a time
    assert new in dead
    assert set(dead) <= {*old, new}
    gone = set(old) - set(dead)
    state = box.state()
    assert set(state["records"]) == set(state["failures"]) == set(dead)
    assert box.counter("dead_dropped") == len(gone) == 10
    assert set(before["dead"]) == set(old)


def test_without_dead_retention_nothing_is_ever_dropped(make_box):
    box = make_box(max_retries=0)
    box.send(12)
    box.nack(*box.take(12))
    box.clock.advance(10**9)
    box.one()
    box.nack(box.take_one())

    assert len(box.order("dead")) == 13


def test_nack_wakes_who_waits(box):
    box.one()
    lease = box.take_one()
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)
    subscription = box.redis.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(box.handle.channel)
    subscription.get_message(timeout=1)

    box.nack(lease)

    assert subscription.get_message(timeout=5)["data"] == b"0"
    assert box.counter("waiting") == 0
    subscription.close()


def test_a_thousand_in_one_call(box):
    given = box.send(1000)
    leases = box.take(1000)

    assert box.nack(*leases) == "r" * 1000
    assert [lease.id for lease in box.take(1000)] == given


def test_a_thousand_die_in_one_call(make_box):
    box = make_box(max_retries=0)
    given = box.send(1000)

    assert box.nack(*box.take(1000)) == "d" * 1000
    assert set(box.order("dead")) == set(given)
