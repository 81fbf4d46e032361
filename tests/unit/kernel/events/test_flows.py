"""Events of which one server is away: the others go on."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.errors import Unavailable
from rmq.kernel.core.keys import EVENT_SLOTS, SlotKeys
from rmq.kernel.events import flows
from rmq.kernel.events.scripts import Check, Signalled
from rmq.kernel.transport.flow.steps import Pipeline

SLOT = SlotKeys("rmq", "orders", 0)
AWAY = Unavailable("away")
NOT_YET = Signalled(0, b"", [])


def check(member: bytes, key: bytes) -> Check:
    return Check(member, b"w" + bytes(12) + key)


def test_a_message_is_not_planned_if_the_server_of_its_event_is_away() -> None:
    first, second = check(b"a" * 13, b"one"), check(b"b" * 13, b"two")
    flow = flows.register("rmq", SLOT)
    next(flow)
    step: Any = flow.send([first, second])
    assert isinstance(step, Pipeline)

    again: Any = flow.send([AWAY, NOT_YET])

    assert again.script.name == "event_checks"
    assert [b"b" * 13 in arg for arg in again.args[2:]] == [True]
    with pytest.raises(StopIteration):
        flow.send([])


def test_events_of_other_servers_are_delivered_before_the_error_is_raised() -> None:
    flow = flows.deliver_pending("rmq")
    step = next(flow)
    assert isinstance(step, Pipeline)
    pages: list[Any] = [[] for _ in range(EVENT_SLOTS)]
    pages[3], pages[5] = AWAY, [b"key"]

    asked: Any = flow.send(pages)
    assert asked.script.name == "event_waiters"
    with pytest.raises(Unavailable):
        flow.send(NOT_YET)
