"""lib/take/room_in.lua on a real server: rate and concurrency of a slot. The test moves time."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.consumer import scripts
from rmq.kernel.core.delivery_limits import Concurrency, Limits, Rate
from rmq.kernel.core.layout import Layout
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua import keyed
from tests.lua.box import LEASE_MAX_MS, Box

QUERY = scripts.QueryLease("a" * 32, "me", 60_000, 60_000)


def rated(make_box: Any, count: int, per: float = 1.0, burst: int | None = None) -> Box:
    return make_box(limit=Limits(rate=Rate(count, per, burst)))  # type: ignore[no-any-return]


def bounded(make_box: Any, count: int, **given: Any) -> Box:
    return make_box(limit=Limits(concurrency=Concurrency(count)), **given)  # type: ignore[no-any-return]


def ask(box: Box, waits: bool = False) -> int:
    (wait_us,) = box.run(scripts.next_ready([box.keys], waits))
    return int(wait_us)


# --- rate ----------------------------------------------------------------------------------------


def test_take_gets_the_burst_and_writes_the_bucket_and_what_any_take_writes(make_box):
    box = rated(make_box, 4)
    ids = box.send(6)
    before, now = box.state(), box.clock.now_ms

    batch = box.prepare(10)

    assert batch.ids == ids[:4]
    changed = box.changed(before)
    assert changed.pop(("slot", "bucket")) == f"{now}:4"
    assert {place for place in changed if place[0] == "slot"} == {
        ("slot", "delivered"), ("slot", "takes")
    }  # fmt: skip
    assert set(box.state()["store"]) == set(ids[4:])
    assert set(box.state()["prepare"]) == set(ids[:4])


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("known", [True, False])
def test_next_message_comes_with_its_token_and_not_a_moment_before(make_box, limit, known):
    box = rated(make_box, 4)
    box.send(6)
    box.prepare(4)

    for _ in range(2):
        assert (box.prepare(limit, session=box.session(known)).wait_us, ask(box)) == (250_000,) * 2
        box.clock.advance(0.249)
        batch = box.prepare(limit, session=box.session(known))
        assert (batch.ids, batch.wait_us) == ([], 1000)
        box.clock.advance(0.001)
        assert ask(box) == 0
        assert len(box.prepare(limit, session=box.session(known)).ids) == 1


@pytest.mark.parametrize(
    ("count", "per"),
    [
        (3, 1.0),
        (1, 0.003),
        (997, 1),
        pytest.param(7, 1.0, marks=pytest.mark.slow),
        pytest.param(100, 7.0, marks=pytest.mark.slow),
    ],
)
def test_rate_is_exact_over_a_long_time_whatever_the_fraction(make_box, count, per):
    """As many as the rate allows, to the message: a fraction that is lost would add up."""
    box = rated(make_box, count, per, burst=5)
    box.send(1000)
    box.send(1000)
    start, taken = box.clock.now_ms, len(box.take(10, lease_ms=LEASE_MAX_MS))
    assert taken == 5

    for turn in range(400):
        wait_us = ask(box)
        assert wait_us > 0
        box.clock.advance(wait_us / 1_000_000)
        assert ask(box) == 0, "a token is there when it was promised"
        if turn % 7 == 0:
            box.clock.advance(0.001 * (turn % 3))
        allowed = 5 + (box.clock.now_ms - start) * count // round(per * 1000)
        taken += len(box.take(10, lease_ms=LEASE_MAX_MS))
        assert taken == allowed


def test_bucket_fills_up_and_not_beyond_the_burst(make_box):
    box = rated(make_box, 10, burst=3)
    box.send(20)
    assert len(box.prepare(10).ids) == 3
    box.clock.advance(0.2)
    assert len(box.prepare(10).ids) == 2
    box.clock.advance(3600)

    assert len(box.prepare(10).ids) == 3
    assert len(box.prepare(10).ids) == 0


def test_reply_of_the_take_says_when_the_next_token_comes(make_box):
    box = rated(make_box, 10, burst=3)
    box.send(3)

    assert box.prepare(10).wait_us == 30_000_000, "nothing waits: the leases end"
    box.clock.advance(10)
    box.send(4)
    assert box.prepare(10).wait_us == 100_000
    box.clock.advance(0.1)
    assert box.prepare(10).wait_us == 19_900_000


@pytest.mark.parametrize("step", [0.01, 3600])
@pytest.mark.fault("F21")
def test_clock_that_is_set_back_empties_the_bucket_and_never_stops_the_slot(make_box, step):
    box = rated(make_box, 10, burst=3)
    box.send(9)
    box.prepare(10)
    before = box.state()
    box.clock.advance(-step)

    assert (box.stats()["held"], box.prepare(10).wait_us) == (6, 100_000)
    assert box.changed(before) == {("slot", "bucket"): f"{box.clock.now_ms}:3"}
    box.clock.advance(0.099)
    assert (box.prepare(10).ids, ask(box)) == ([], 1000)
    box.clock.advance(0.001)
    assert len(box.prepare(10).ids) == 1


@pytest.mark.parametrize("made", [rated, keyed.rated])
@pytest.mark.fault("F21")
def test_rate_is_not_exceeded_by_steps_back(make_box, made):
    box = made(make_box, 10, 60)
    keyed.send(box, *"a" * 100)
    taken = 0
    for _ in range(20):
        box.clock.advance(0.5)
        taken += len(box.prepare(100).ids)
        box.clock.advance(-0.01)
        taken += len(box.prepare(100).ids)

    assert 10 <= taken <= 10 + 20 * 0.5 / 6


def test_retry_takes_a_token_and_costs_no_more_retries(make_box):
    box = rated(make_box, 1)
    box.one()
    box.nack(box.take_one())

    assert box.take() == []
    box.clock.advance(1)
    assert box.take_one().left == 15


def test_what_must_wait_keeps_its_order_and_its_retries(make_box):
    box = rated(make_box, 10, burst=1)
    low, high = box.send(3), box.send(3, priority=900)
    due = box.one(due=50)
    got = []
    for _ in range(7):
        got += [lease.id for lease in box.take(10)]
        box.clock.advance(0.1)

    assert got == [high[0], due, *high[1:], *low]


def test_messages_that_expired_take_no_token(make_box):
    box = make_box(limit=Limits(rate=Rate(1)), on_expire="drop")
    box.send(3, expires=10)
    box.clock.advance(1)
    live = box.one()

    while not (batch := box.prepare(1)).ids:
        assert batch.wait_us == 0
    assert batch.ids == [live]


def test_messages_that_expired_beside_live_ones_take_no_token(make_box):
    box = make_box(limit=Limits(rate=Rate(3)), on_expire="drop")
    box.send(2, expires=10)
    box.clock.advance(1)
    live = box.one()

    assert box.prepare(3).ids == [live]
    assert box.state()["slot"]["bucket"] == f"{box.clock.now_ms}:1"


def test_repeated_take_takes_no_token(make_box):
    box = rated(make_box, 2)
    box.send(3)
    session = box.session()
    first = box.prepare(1, session=session)
    before = box.state()

    assert box.prepare(1, session=session).ids == first.ids
    assert box.state() == before


def test_sleeper_on_a_token_is_not_noted_for_sends_and_on_an_empty_slot_it_is(make_box):
    box = rated(make_box, 1)
    box.send(2)
    box.prepare(1)
    before = box.state()

    box.prepare(1, waits=True)
    ask(box, waits=True)
    assert box.state() == before, "a send brings no token"

    box.clock.advance(1)
    box.prepare(1)
    assert box.order() == []
    box.prepare(1, waits=True)
    assert box.state()["slot"]["waiting"] == str(box.clock.now_ms + 300_000)


def test_query_obeys_the_rate(make_box):
    box = rated(make_box, 2)
    box.send(5)

    assert box.run(queries_scripts.query_take(box.keys, QUERY, 0, 10)).held == 2
    assert box.run(queries_scripts.query_take(box.keys, QUERY, 2, 10)).held == 0
    box.clock.advance(0.5)
    assert box.run(queries_scripts.query_take(box.keys, QUERY, 2, 10)).held == 1


# --- concurrency ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 10])
def test_no_more_are_in_flight_than_the_limit_and_nothing_else_is_written(make_box, limit):
    box = bounded(make_box, 3)
    ids = box.send(5)
    while box.take(limit):
        pass
    before = box.state()

    assert set(before["prepare"]) == set(ids[:3])
    batch = box.prepare(limit, lease_ms=9000)
    assert (batch.ids, batch.wait_us) == ([], 30_000_000)
    assert ask(box) == 30_000_000
    assert box.state() == before
    assert "bucket" not in before["slot"]


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_what_settles_makes_room_and_wakes_who_waits_for_it(make_box, verb):
    box = bounded(make_box, 2)
    box.send(4)
    first, _ = box.take(2)
    box.prepare(1, waits=True)
    assert box.state()["slot"]["blocked"] == str(box.clock.now_ms + 300_000)
    assert "waiting" not in box.state()["slot"], "sends do not wake it in vain"
    heard = box.redis.pubsub()
    heard.subscribe(box.handle.channel)
    assert heard.get_message(timeout=1)["type"] == "subscribe"
    box.one()
    assert heard.get_message(timeout=0.05) is None

    getattr(box, verb)(first)

    assert heard.get_message(timeout=1)["data"] == b"%d" % box.index
    assert "blocked" not in box.state()["slot"]
    assert len(box.take(10)) == 1
    heard.close()


def test_next_ready_notes_who_waits_for_room(make_box):
    box = bounded(make_box, 1)
    box.send(2)
    box.prepare(1)

    assert ask(box, waits=True) == 30_000_000
    assert box.state()["slot"]["blocked"] == str(box.clock.now_ms + 300_000)


def test_share_of_a_consumer_that_died_comes_back_with_its_leases(make_box):
    box = bounded(make_box, 2)
    box.send(4)
    dead = box.take(2, lease_ms=5000)
    assert box.take(1) == []
    box.clock.advance(5)

    batch = box.prepare(1)
    assert (batch.ids, batch.expired) == ([], scripts.LEASES_EXPIRED)
    assert ask(box) == 0, "work for a consumer: a rollback"
    assert box.rollback().retried == 2

    again = box.take(10)
    assert len(again) == 2
    assert box.ack(*dead) == "00"
    assert box.take(1) == [], "a lease that was lost frees no room twice"


def test_batch_in_order_is_as_large_as_the_room(make_box):
    box = bounded(make_box, 3)
    ids = box.send(5)

    first = box.take(10, ordered=True)
    assert [lease.id for lease in first] == ids[:3]
    assert box.take(10, ordered=True) == []
    box.prepare(10, ordered=True, waits=True)
    box.ack(first[0])
    assert "blocked" in box.state()["slot"], "a slot in order waits for the whole batch"
    box.ack(*first[1:])
    assert "blocked" not in box.state()["slot"]
    assert [lease.id for lease in box.take(10, ordered=True)] == ids[3:]


def test_query_counts_with_what_it_holds_and_its_settle_wakes(make_box):
    box = bounded(make_box, 3)
    box.send(5)
    box.take(1)

    assert box.run(queries_scripts.query_take(box.keys, QUERY, 0, 10)).held == 2
    assert box.take(1) == []
    box.prepare(1, waits=True)
    box.run(queries_scripts.query_settle(box.handle, box.keys, QUERY, 0, 2, 10))
    assert "blocked" not in box.state()["slot"]
    assert len(box.take(10)) == 2


# --- both, and the slot --------------------------------------------------------------------------


def test_both_limits_hold(make_box):
    box = make_box(limit=Limits(Rate(10, burst=2), Concurrency(3)))
    box.send(9)
    first = box.take(9)
    assert (len(first), box.prepare(9).wait_us) == (2, 100_000)
    box.clock.advance(5)
    assert len(box.take(9)) == 1, "there is room for one"
    assert box.prepare(9).wait_us == 25_000_000, "the first lease ends"
    box.ack(*first)
    assert len(box.take(9)) == 1, "there is one token left"


def test_stats_count_what_a_limit_holds_back(make_box):
    box = make_box(limit=Limits(Rate(10, burst=4), Concurrency(3)))
    box.send(9)
    box.one(due=60_000)
    assert box.stats()["held"] == 6
    leases = box.take(2)
    assert box.stats()["held"] == 6
    box.take(1)
    assert box.stats()["held"] == 6
    box.ack(*leases)
    assert box.stats()["held"] == 5, "room for two, and one token"
    box.clock.advance(1)
    assert box.stats()["held"] == 4


@pytest.mark.parametrize("fresh", [True, False])
def test_another_limit_begins_with_a_full_bucket_and_wakes(make_box, fresh):
    box = rated(make_box, 4)
    box.send(20)
    box.prepare(10)
    heard = box.redis.pubsub()
    heard.subscribe(box.handle.channel)
    assert heard.get_message(timeout=1)["type"] == "subscribe"
    before = box.state()
    share = Limits(rate=Rate(5 if fresh else 4)).of_slot(0, 1, Layout(0, 1, 1))
    values = box.settings.for_slot() | {"limit": share}

    assert box.run(topic_scripts.slot(box.handle, box.keys, box.created, values, 1)) == 1

    changed = box.changed(before)
    assert changed.pop(("slot", "revision")) == "1"
    if fresh:
        assert changed == {
            ("slot", "limit"): share, ("slot", "bucket"): None, ("slot", "waiting"): "0"
        }  # fmt: skip
        assert heard.get_message(timeout=1)["type"] == "message"
        assert len(box.prepare(10).ids) == 5
    else:
        assert changed == {}
        assert heard.get_message(timeout=0.05) is None
    heard.close()


def test_limit_is_taken_off(make_box):
    box = rated(make_box, 1)
    box.send(20)
    box.prepare(10)
    values = {k: v for k, v in box.settings.for_slot().items() if k != "limit"}

    box.run(topic_scripts.slot(box.handle, box.keys, box.created, values, 1))

    assert not {"limit", "bucket"} & box.state()["slot"].keys()
    assert len(box.prepare(10).ids) == 10


def test_slots_share_a_limit(make_box):
    box = make_box(slots=3, limit=Limits(Rate(10, burst=4), Concurrency(5)))
    fields = [box.state(index)["slot"]["limit"] for index in range(3)]

    assert fields == ["10:3000:2:2", "10:3000:1:2", "10:3000:1:1"]


@pytest.mark.parametrize("limit", ["4 a second", "1:1000:1:0:1:1000", "0:0:0:0:tenant"])
def test_limit_that_cannot_be_read_stops_every_take_and_nothing_changes(make_box, limit):
    box = rated(make_box, 4)
    box.one()
    box.redis.hset(box.keys.slot, "limit", limit)
    before = box.state()

    calls = [lambda: box.prepare(1), box.stats]
    if " " in limit:
        calls.append(lambda: ask(box))  # of limits for each key it reads the note alone
    for call in calls:
        with pytest.raises(Exception, match="limit"):
            call()

    assert box.state() == before
