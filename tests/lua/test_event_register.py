"""event_register.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.events.scripts import Signalled
from tests.lua.box import Box
from tests.lua.eventing import (
    DATA,
    DAY_MS,
    LIMIT_MS,
    NOTHING,
    event_keys,
    event_state,
    name_of,
    near,
    register,
    signal,
)


def test_messages_become_waiters_until_a_day_after_their_time_limit(box: Box) -> None:
    first, second, third = box.ids(3)
    now = box.clock.now_ms
    expected = {name_of(box, id): now + LIMIT_MS for id in (first, second)}

    for _ in range(2):  # a call that arrives twice
        assert register(box, first, second) == NOTHING
        assert event_state(box) == {"waiters": (expected, LIMIT_MS + DAY_MS)}

    assert register(box, third, until_ms=now + 1000) == NOTHING
    assert event_state(box) == {
        "waiters": (expected | {name_of(box, third): now + 1000}, LIMIT_MS + DAY_MS)
    }
    register(box, first, until_ms=now + 10 * DAY_MS)
    assert near(box.redis.pttl(event_keys(box).waiters)) == 11 * DAY_MS


def test_a_time_limit_that_has_ended_is_kept_for_the_rest_of_its_day(box: Box) -> None:
    (id,) = box.ids()
    register(box, id, until_ms=box.clock.now_ms - DAY_MS // 2)

    assert event_state(box)["waiters"][1] == DAY_MS // 2


def test_an_event_that_was_signalled_before_is_returned_and_nothing_is_added(box: Box) -> None:
    signal(box)
    at = box.clock.now_ms
    before = event_state(box)
    box.clock.advance(1)

    for _ in range(2):
        assert register(box, *box.ids(2)) == Signalled(at, DATA, [])
    assert event_state(box) == before


def test_waiters_whose_time_limit_ended_a_day_ago_are_removed_by_the_thousand(box: Box) -> None:
    keys, now = event_keys(box), box.clock.now_ms
    old, recent = now - DAY_MS, now - DAY_MS + 1
    box.redis.zadd(keys.waiters, {b"old:%d" % n: old for n in range(1500)})
    box.redis.zadd(keys.waiters, {b"recent": recent})
    (id,) = box.ids()

    counts = []
    for _ in range(3):
        register(box, id)
        counts.append(box.redis.zcard(keys.waiters))

    assert counts == [502, 2, 2]
    assert set(event_state(box)["waiters"][0]) == {b"recent", name_of(box, id)}


@pytest.mark.parametrize(
    ("field", "args"),
    [
        ("messages", []),
        ("messages", [b"t:0:" + bytes(13)]),
        ("messages", [b"t:0:" + bytes(13), 1] * 501),
        ("name", [b"t:0:" + bytes(12), 1]),
        ("name", [b"t:0:" + bytes(14), 1]),
        ("name", [b"t:x:" + bytes(13), 1]),
        ("name", [b"t 1:0:" + bytes(13), 1]),
        ("name", [b":0:" + bytes(13), 1]),
        ("until_ms", [b"t:0:" + bytes(13), "-1"]),
    ],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, args: list[object]) -> None:
    keys = event_keys(box)

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.raw("event_register", (keys.event, keys.waiters), ["", *args])
    assert event_state(box) == {}


def test_at_maxmemory_no_waiter_is_added_and_an_event_is_still_returned(tight: Box) -> None:
    signal(tight)
    tight.redis.config_set("maxmemory", 1)

    assert register(tight, *tight.ids()).data == DATA
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        register(tight, *tight.ids(), key=b"other")
    assert event_state(tight, b"other") == {}
