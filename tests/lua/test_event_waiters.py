"""event_waiters.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.core.ids import member_of
from rmq.kernel.events.scripts import Signalled
from tests.lua.box import Box
from tests.lua.eventing import (
    DATA,
    DAY_MS,
    KEY,
    LIMIT_MS,
    NOTHING,
    event,
    event_keys,
    event_state,
    forget,
    name_of,
    register,
    signal,
)


def test_waiters_are_forgotten_and_the_next_ones_are_returned(box: Box) -> None:
    ids = sorted(box.ids(3), key=member_of)
    names = [name_of(box, id) for id in ids]
    register(box, *ids)
    at, ends, stored = box.clock.now_ms, box.clock.now_ms + LIMIT_MS, event(box)
    signal(box, limit=1)
    box.clock.advance(3)

    for _ in range(2):  # a call that arrives twice
        assert forget(box, ids[0], limit=1) == Signalled(at, DATA, names[1:2])
        assert event_state(box) == {
            "event": (stored, -1),
            "waiters": (dict.fromkeys(names[1:], ends), -1),
            "undelivered": {KEY: at + 8000},
        }


def test_without_waiters_the_event_is_kept_to_the_end_of_its_keeping(box: Box) -> None:
    ids = box.ids(2)
    register(box, *ids)
    at, stored = box.clock.now_ms, event(box)
    signal(box)
    box.clock.advance(DAY_MS / 1000 - 20)

    for _ in range(2):
        assert forget(box, *ids) == Signalled(at, DATA, [])
        assert event_state(box) == {"event": (stored, 20_000)}


def test_an_event_past_its_keeping_ends_with_its_last_waiter(box: Box) -> None:
    (id,) = box.ids()
    register(box, id)
    signal(box, keep_ms=1000)
    box.clock.advance(2)

    assert forget(box, id).waiters == []
    while box.redis.exists(event_keys(box).event):  # 1 ms
        pass
    assert event_state(box) == {}
    assert register(box, id) == NOTHING


def test_without_an_event_waiters_are_forgotten_as_well(box: Box) -> None:
    first, second = box.ids(2)
    register(box, first, second)
    box.redis.zadd(event_keys(box).undelivered, {KEY: 1})
    ends = box.clock.now_ms + LIMIT_MS

    for _ in range(2):
        assert forget(box, first) == NOTHING
        assert event_state(box) == {"waiters": ({name_of(box, second): ends}, DAY_MS + LIMIT_MS)}


def test_a_delivery_that_another_process_continues_is_claimed(box: Box) -> None:
    (id,) = box.ids()
    register(box, id)
    at = box.clock.now_ms
    signal(box)
    box.clock.advance(6)

    assert forget(box) == Signalled(at, DATA, [name_of(box, id)])
    assert event_state(box)["undelivered"] == {KEY: at + 11_000}


@pytest.mark.parametrize(
    ("field", "key", "limit", "count"),
    [
        ("key", b"", 1, 0),
        ("key", bytes(256), 1, 0),
        ("limit", KEY, 0, 0),
        ("limit", KEY, 1001, 0),
        ("waiters", KEY, 1, 1001),
    ],
)
def test_wrong_arguments_change_nothing(
    box: Box, field: str, key: bytes, limit: int, count: int
) -> None:
    register(box, *box.ids(2))
    signal(box)
    before = event_state(box)
    keys = event_keys(box)

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.raw(
            "event_waiters", (keys.event, keys.waiters, keys.undelivered),
            ["", key, limit, *["x"] * count],
        )  # fmt: skip
    assert event_state(box) == before


def test_waiters_are_forgotten_at_maxmemory(tight: Box) -> None:
    first, second = sorted(tight.ids(2), key=member_of)
    register(tight, first, second)
    at, stored = tight.clock.now_ms, event(tight)
    signal(tight)
    tight.redis.config_set("maxmemory", 1)

    assert forget(tight, first).waiters == [name_of(tight, second)]
    assert forget(tight, second) == Signalled(at, DATA, [])
    assert event_state(tight) == {"event": (stored, DAY_MS)}
