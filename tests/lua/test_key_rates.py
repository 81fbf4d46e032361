"""lib/take/key_limits.lua on a real server: rate of each key. Time moves by the test alone."""

from __future__ import annotations

import pytest

from rmq.kernel.core.delivery_limits import Limits, Rate
from rmq.kernel.core.layout import Layout
from rmq.kernel.topic import scripts
from tests.lua.box import LEASE_MAX_MS
from tests.lua.keyed import rated, send, taken
from tests.lua.test_limits import ask


def test_each_key_has_a_bucket_which_is_written_until_it_is_full(make_box):
    box = rated(make_box, 4)
    a, b, none = send(box, *"aaaaaa"), send(box, *"bb"), send(box, None, None)
    now = box.clock.now_ms

    assert set(taken(box)) == {*a[:4], *b, *none}
    assert box.state()["rates"] == {b"a": now + 1000, b"b": now + 500}
    assert (box.prepare(10).wait_us, ask(box)) == (250_000, 250_000)
    box.clock.advance(0.25)
    assert taken(box) == [a[4]]
    box.clock.advance(0.25)
    assert taken(box) == [a[5]]
    assert box.state()["rates"] == {b"a": now + 1500}, "the bucket of b is full"


LONG = [(7, 1.0), (100, 7.0), (997, 1)]


@pytest.mark.parametrize(
    ("count", "per"),
    [(3, 1.0), (1, 0.003), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
)
def test_rate_is_never_exceeded_and_lags_less_than_a_thousandth(make_box, count, per):
    box = rated(make_box, count, per, burst=5)
    for _ in range(2):
        send(box, *"a" * 1000)
    start, got = box.clock.now_ms, len(taken(box, lease_ms=LEASE_MAX_MS))
    assert got == 5
    for turn in range(150):
        assert ask(box) > 0
        while wait_us := ask(box):
            box.clock.advance(wait_us / 1_000_000)
        allowed = 5 + (box.clock.now_ms - start) * count / (per * 1000)
        leases = box.take(10, lease_ms=LEASE_MAX_MS)
        assert leases, "a token is there when it was promised"
        got += len(leases)
        assert got <= allowed
        assert got > (allowed - 5) * 0.999 + 4, turn


def test_bucket_fills_up_and_not_beyond_the_burst(make_box):
    box = rated(make_box, 10, burst=3)
    send(box, *"a" * 20)
    assert len(taken(box)) == 3
    box.clock.advance(0.2)
    assert len(taken(box)) == 2
    box.clock.advance(3600)
    assert len(taken(box)) == 3


def test_what_is_settled_brings_no_token_and_nobody_looks_for_one(make_box):
    box = rated(make_box, 1)
    send(box, *"a" * 101)
    first = box.take_one()
    assert taken(box) == []

    box.ack(first)
    assert ask(box) == 10_000, "the ack of 100 messages would cost 100 looks"
    box.clock.advance(0.01)
    assert (ask(box), box.prepare(10).wait_us) == (0, 10_000)
    box.clock.advance(0.01)
    assert ask(box) == 980_000


@pytest.mark.fault("F21")
def test_clock_that_is_set_back_empties_the_bucket_of_a_key_and_never_stops_it(make_box):
    box = rated(make_box, 10, burst=3)
    send(box, *"a" * 9, *"b" * 9)
    assert len(taken(box)) == 6
    box.clock.advance(-3600)

    batch = box.prepare(10)
    assert (batch.ids, batch.wait_us) == ([], 100_000)
    assert box.state()["rates"] == dict.fromkeys((b"a", b"b"), box.clock.now_ms + 300)
    box.clock.advance(0.1)
    assert len(taken(box)) == 2


def test_expired_messages_take_no_token(make_box):
    box = make_box(limit=Limits(key_rate=Rate(3, key="tenant")), on_expire="drop")
    send(box, "a", "a", due=0, expires=10)
    box.clock.advance(1)
    send(box, "a")

    assert len(taken(box)) == 1
    assert box.state()["rates"] == {
        b"a": pytest.approx(box.clock.now_ms + 1000 / 3, abs=0.01)
    }  # fmt: skip


@pytest.mark.slow
def test_keys_beyond_a_hundred_thousand_buckets_wait(make_box):
    box = rated(make_box, 1)
    until = box.clock.now_ms + 500
    for start in range(0, 100_000, 10_000):
        box.redis.zadd(box.keys.rates, {f"k{n}": until for n in range(start, start + 10_000)})
    send(box, "a", "k7")

    assert taken(box) == []
    box.clock.advance(1)
    assert len(taken(box)) == 2
    assert {b"a", b"k7"} <= box.state()["rates"].keys()


def test_full_buckets_are_forgotten_some_at_each_take_and_all_by_tidy(make_box):
    box = rated(make_box, 1)
    full_at = box.clock.now_ms + 500
    box.redis.zadd(box.keys.rates, {f"k{n}": full_at for n in range(250)} | {"z": full_at + 1})
    box.clock.advance(0.5)
    send(box, "a", "b")

    assert len(taken(box)) == 2
    assert len(box.state()["rates"]) == 249  # two went for each that came

    replies = [box.run(scripts.tidy(box.keys, 100)) for _ in range(4)]
    assert [reply.more for reply in replies] == [True, True, False, False]
    assert box.state()["rates"].keys() == {b"a", b"b", b"z"}


def test_another_limit_begins_with_full_buckets_and_none_leaves_nothing(make_box):
    box = rated(make_box, 1)
    send(box, *"aaaaa")
    box.prepare(10)
    assert {"held", "limit"} <= box.state()["slot"].keys()
    share = Limits(key_rate=Rate(2, key="tenant")).of_slot(0, 1, Layout(0, 1, 1))
    values = box.settings.for_slot()

    same = scripts.slot(box.handle, box.keys, box.created, values, 1)
    assert box.run(same) == 1
    assert "rates" in box.state()
    box.run(scripts.slot(box.handle, box.keys, box.created, values | {"limit": share}, 2))
    assert "rates" not in box.state()
    assert len(taken(box)) == 2
    box.run(scripts.slot(box.handle, box.keys, box.created, _without(values), 3))
    assert "rates" not in box.state()
    assert not {"held", "limit", "bucket"} & box.state()["slot"].keys()
    assert len(taken(box)) == 2


def _without(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name != "limit"}
