"""Requests to cancel deliveries, read from slots of which a master is away."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.errors import Unavailable
from rmq.kernel.consumer.cancel_requests import find_requested
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.delivery.inner_delivery import BatchOrigin, InnerDelivery
from rmq.kernel.transport.flow.steps import Pipeline


def delivery(slot: int) -> InnerDelivery:
    origin = BatchOrigin(SlotKeys("rmq", "orders", slot), 1, 16, float("inf"))
    return InnerDelivery(origin, bytes(16), 1_790_000_000_016.0, b"", 1, None)


def find(deliveries: list[InnerDelivery], *replies: Any) -> Any:
    flow = find_requested(deliveries)
    try:
        step = next(flow)
        assert isinstance(step, Pipeline)
        assert all(command.fails_fast for command in step.commands), "receives wait for the reply"
        assert len(step.commands) == len(replies)
        flow.send(list(replies))
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a second round trip")


def test_requests_of_all_slots_are_read_in_one_round_trip() -> None:
    first, second, third = (delivery(slot) for slot in (0, 1, 1))
    assert find([first, second, third], [b"16"], [None, b"16"]) == ([first, third], True)
    assert find([first], [b"17"]) == ([], True), "a request for another delivery of the message"
    assert find([]) == ([], True)


def test_a_slot_whose_master_is_away_is_skipped_and_reported() -> None:
    away = Unavailable("away")
    away._repeat_for = 1.0
    first, second = delivery(0), delivery(1)
    assert find([first, second], away, [b"16"]) == ([second], False)
    assert find([first, second], away, away) == ([], False)
    with pytest.raises(Unavailable):
        find([first, second], Unavailable("all of Redis"), [b"16"])
