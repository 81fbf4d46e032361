"""event_checks.lua on a real server: which messages are registered with their event, and when."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.core.ids import member_of
from rmq.kernel.events.scripts import event_checks
from tests.lua.box import GONE, Box
from tests.lua.eventing import KEY, LIMIT_MS, checks, deliver, one_suspended, suspend, wait_at

MINUTES_5 = 300_000


def test_a_suspended_message_is_returned_at_once_and_then_after_5_s(box: Box) -> None:
    id = one_suspended(box)
    now = box.clock.now_ms
    before = box.state()
    assert before["waits"] == {id: now}
    expected = checks(box)

    assert [(each.member, each.key, each.until_ms) for each in expected] == [
        (member_of(id), KEY, now + LIMIT_MS)
    ]
    assert box.changed(before) == {("waits", id): now + 5000}
    assert checks(box) == []
    box.clock.advance(4.999)
    assert checks(box) == []
    box.clock.advance(0.001)
    assert checks(box) == expected


def test_a_registered_message_is_returned_after_5_min_and_then_after_twice_the_time(
    box: Box,
) -> None:
    id = one_suspended(box, limit_ms=10**9)
    began = box.clock.now_ms
    for waited, then in ((0, 300), (300, 600), (600, 1200), (1200, 2400)):
        assert box.clock.now_ms == began + waited * 1000
        assert [check.member for check in checks(box)] == [member_of(id)]

        assert checks(box, id) == []
        assert checks(box, id) == []  # a call that arrives twice
        assert box.state()["waits"] == {id: began + then * 1000}
        box.clock.advance(then - waited - 0.001)
        assert checks(box) == []
        box.clock.advance(0.001)


def test_the_first_messages_by_time_are_returned_up_to_the_limit(box: Box) -> None:
    ids = []
    for _ in range(3):
        ids.append(one_suspended(box))
        box.clock.advance(1)

    assert [check.member for check in checks(box, limit=2)] == [member_of(id) for id in ids[:2]]
    assert [check.member for check in checks(box, limit=2)] == [member_of(ids[2])]
    assert checks(box, limit=0) == []


def test_messages_that_no_longer_wait_are_removed(box: Box) -> None:
    registered, due, got, settled = (one_suspended(box) for _ in range(4))
    deliver(box, registered, got, settled)
    box.ack(*[lease for lease in box.take(3) if lease.id == settled])
    now = box.clock.now_ms
    for id in (registered, got, settled):
        box.redis.zadd(box.keys.waits, {member_of(id): now - 1})
    before = box.state()

    assert [check.member for check in checks(box, registered)] == [member_of(due)]
    changed = box.changed(before)
    assert changed == {("waits", due): now + 5000} | {
        ("waits", id): GONE for id in (registered, got, settled)
    }


def test_a_message_in_flight_is_not_returned_but_planned(box: Box) -> None:
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    box.take_one()

    assert checks(box) == []
    assert box.state()["waits"] == {id: box.clock.now_ms + 5000}


def test_a_message_that_waits_again_is_registered_for_its_new_event(box: Box) -> None:
    id = one_suspended(box)
    checks(box)
    checks(box, id)
    deliver(box, id)
    suspend(box, box.take_one(), key=b"other", limit_ms=7000)

    (found,) = checks(box)
    assert (found.member, found.key) == (member_of(id), b"other")
    assert found.until_ms == box.clock.now_ms + 7000


def test_a_wait_that_began_after_the_registered_one_is_not_planned(box: Box) -> None:
    id = one_suspended(box)
    registered = checks(box)
    deliver(box, id)
    suspend(box, box.take_one(), key=b"other")
    before = box.state()

    box.run(event_checks(box.keys, registered, 0))
    assert box.changed(before) == {}
    assert [each.key for each in checks(box)] == [b"other"]


def test_500_messages_of_one_call(box: Box) -> None:
    ids = box.send(600)
    suspend(box, *box.take(600))

    first = checks(box)
    assert len(first) == 500
    rest = checks(box, *[id for id in ids if member_of(id) in {check.member for check in first}])
    assert {check.member for check in [*first, *rest]} == {member_of(id) for id in ids}
    assert len(first) + len(rest) == 600


@pytest.mark.parametrize(
    ("field", "args"),
    [
        ("limit", ["-1"]),
        ("limit", ["501"]),
        ("members", ["1", *[b"x" * 13] * 501]),
        ("id", ["1", b"x" * 12]),
    ],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, args: list[object]) -> None:
    one_suspended(box)
    before = box.state()
    keys = (box.keys.slot, box.keys.store, box.keys.bodies, box.keys.waits)

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.raw("event_checks", keys, ["", *args])
    assert box.changed(before) == {}


def test_messages_are_planned_at_maxmemory(tight: Box) -> None:
    id = one_suspended(tight)
    tight.redis.config_set("maxmemory", 1)

    assert len(checks(tight)) == 1
    assert checks(tight, id) == []
    assert tight.state()["waits"] == {id: tight.clock.now_ms + MINUTES_5}
    assert wait_at(id)[1] in tight.state()["bodies"]
