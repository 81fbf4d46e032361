"""reject.lua on a real server."""

from __future__ import annotations

import pytest

from tests.lua.box import GONE
from tests.lua.failures import item


@pytest.mark.parametrize("reason", ["r", "u"])
def test_reject_buries_at_once_with_its_reason(box, reason):
    id = box.one()
    lease = box.take_one()
    before = box.state()
    session = box.session()

    assert box.run(box.reject_command([lease], session, reason, b"no")) == "d"

    assert box.changed(before, replay=True) == {
        ("slot", "dead_lettered"): "1",
        ("prepare", id): GONE,
        ("dead", id): box.clock.now_ms,
        ("failures", id): box.failure(0, 1, reason, b"no"),
        (f"replay:{session.name[1:].decode()}",): b"1:d",
    }


def test_reject_tells_how_often_it_was_delivered(box):
    id = box.one()
    items = []
    for _ in range(4):
        box.nack(box.take_one())
        items.insert(0, item("f", box.clock.now_ms))
    box.reject(box.take_one())

    assert box.state()["failures"][id] == box.failure(0, 5, "r", b"why", items=items)


def test_only_the_held_ones_of_a_batch_are_buried(box):
    box.send(3)
    a, b, c = box.take(3)
    box.ack(b)
    before = box.state()

    forged = c._replace(receipt=a.receipt)
    assert box.reject(a, b, forged, a) == "d000"

    assert box.changed(before) == {
        ("slot", "dead_lettered"): "1",
        ("prepare", a.id): GONE,
        ("dead", a.id): box.clock.now_ms,
        ("failures", a.id): box.failure(0, 1, "r", b"why"),
    }


def test_error_is_kept_to_64_kib(box):
    id = box.one()
    box.run(box.reject_command([box.take_one()], box.session(), "r", b"e" * 100_000))

    assert box.state()["failures"][id] == box.failure(0, 1, "r", b"e" * 65_536)


def test_dead_retention_drops_old_dead_letters_whole(make_box):
    box = make_box(dead_retention_ms=10_000)
    old = box.one()
    box.reject(box.take_one())
    box.clock.advance(10)
    new = box.one()
    box.reject(box.take_one())

    state = box.state()
    assert set(state["dead"]) == set(state["records"]) == set(state["failures"]) == {new}
    assert old not in state["records"]
    assert box.counter("dead_dropped") == 1


def test_a_thousand_in_one_call(box):
    given = box.send(1000)

    assert box.reject(*box.take(1000)) == "d" * 1000
    assert set(box.order("dead")) == set(given)
    assert "prepare" not in box.state()


def test_a_call_buries_many_with_few_commands_and_drops_no_more_than_twice_as_many(make_box):
    box = make_box(dead_retention_ms=1000)
    for _ in range(3):
        box.send(200)
        box.reject(*box.take(200))
    box.clock.advance(1)
    box.send(100)
    leases = box.take(100)
    box.redis.config_resetstat()

    assert box.reject(*leases) == "d" * 100

    calls = {name: row["calls"] for name, row in box.redis.info("commandstats").items()}
    assert box.counter("dead_dropped") == 200
    assert calls["cmdstat_hget"] + calls["cmdstat_hmget"] <= 10
    assert calls["cmdstat_zadd"] + calls["cmdstat_hset"] + calls["cmdstat_zrem"] <= 10
