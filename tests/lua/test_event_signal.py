"""event_signal.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.core.keys import TYPES
from rmq.kernel.events.scripts import Signalled
from tests.lua.box import Box, case
from tests.lua.eventing import (
    DATA,
    DAY_MS,
    KEY,
    LIMIT_MS,
    event,
    event_keys,
    event_state,
    name_of,
    register,
    signal,
)


def test_the_first_signal_stores_the_event_and_later_ones_change_nothing(box: Box) -> None:
    at, stored = box.clock.now_ms, event(box)

    assert signal(box) == Signalled(at, DATA, [], is_new=True)
    assert event_state(box) == {"event": (stored, DAY_MS)}

    for _ in range(2):
        box.clock.advance(5)
        assert signal(box, b"\x01[8]", keep_ms=1000) == Signalled(at, DATA, [])
    assert event_state(box)["event"][0] == stored
    assert box.redis.pttl(event_keys(box).event) <= DAY_MS - 10_000  # counted from the signal


def test_an_event_that_waiters_have_not_got_does_not_expire(box: Box) -> None:
    ids = box.ids(3)
    register(box, *ids)
    at, ends = box.clock.now_ms, box.clock.now_ms + LIMIT_MS
    names = sorted(name_of(box, id) for id in ids)

    reply = signal(box, limit=2)

    assert reply == Signalled(at, DATA, names[:2], is_new=True)
    left = {
        "event": (event(box), -1),
        "waiters": (dict.fromkeys(names, ends), -1),
        "undelivered": {KEY: at + 5000},
    }
    assert event_state(box) == left
    box.clock.advance(2)
    assert signal(box, b"", limit=500) == Signalled(at, DATA, names)
    assert event_state(box) == left | {"undelivered": {KEY: at + 7000}}


def test_an_event_may_have_no_body_and_at_most_256_kib(box: Box) -> None:
    assert signal(box, b"", key=b"empty").data == b""
    assert event_state(box, b"empty")["event"][0] == event(box, b"")
    largest = b"\x01" + bytes(256 * 1024)
    assert signal(box, largest, key=b"large").data == largest


def test_a_key_whose_event_has_expired_may_be_signalled_again(box: Box) -> None:
    signal(box)
    box.redis.delete(event_keys(box).event)
    box.clock.advance(1)

    assert signal(box, b"") == Signalled(box.clock.now_ms, b"", [], is_new=True)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("key", {"key": b""}),
        ("key", {"key": bytes(256)}),
        ("data", {"data": bytes(256 * 1024 + 2)}),
        ("keep_ms", {"keep_ms": 0}),
        ("keep_ms", {"keep_ms": 315_576_000_001}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 1001}),
    ],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, given: dict[str, object]) -> None:
    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        signal(box, **given)  # type: ignore[arg-type]
    assert event_state(box, given.get("key", KEY)) == {}  # type: ignore[arg-type]


def test_a_wrong_type_of_a_key_stops_the_first_write(box: Box) -> None:
    for place in ("event", "waiters", "undelivered"):
        with case(place):
            keys = event_keys(box, place.encode())
            key = getattr(keys, place)
            assert TYPES[place] != "list"
            box.redis.rpush(key, "another's")
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                signal(box, key=place.encode())
            names = {getattr(keys, name) for name in ("event", "waiters", "undelivered")}
            assert {name for name in names if box.redis.exists(name)} == {key}
            box.redis.delete(key)


def test_at_maxmemory_a_signal_is_refused_as_a_whole(tight: Box) -> None:
    register(tight, *tight.ids(2))
    before = event_state(tight)
    tight.redis.config_set("maxmemory", 1)

    for _ in range(2):
        with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
            signal(tight)
    assert event_state(tight) == before
    tight.redis.config_set("maxmemory", 0)
    assert len(signal(tight).waiters) == 2
