"""A drain suspends messages as a worker does; a signal or the manual clock lets them continue."""

from __future__ import annotations

import pytest

import rmq
from rmq.testing import Broker


@pytest.fixture
def seen(broker: Broker) -> list[object]:
    """What the handler of the topic `orders` gets from its event."""
    seen: list[object] = []

    @broker.client.topic("orders").handler
    def ship(order: int, d: rmq.Delivery) -> None:
        if f"payment:{order}" not in d.events:
            raise rmq.WaitFor(f"payment:{order}", timeout=60)
        event = d.events[f"payment:{order}"]
        seen.append("timed out" if event.timed_out else event.body)

    return seen


def test_a_signal_lets_a_message_continue(broker: Broker, seen: list[object]) -> None:
    broker.client.topic("orders").send(7)

    assert [each.verb for each in broker.drain()] == ["release"]
    assert [each.verb for each in broker.drain()] == []
    assert broker.client.signal("payment:7", "paid").delivered == 1
    assert [each.verb for each in broker.drain()] == ["ack"]
    assert seen == ["paid"]


def test_the_time_limit_ends_with_the_manual_clock(broker: Broker, seen: list[object]) -> None:
    broker.client.topic("orders").send(8)
    broker.drain()
    broker.clock.advance(59)
    assert [each.verb for each in broker.drain()] == []
    broker.clock.advance(2)
    assert [each.verb for each in broker.drain()] == ["ack"]
    assert seen == ["timed out"]


def test_an_early_signal_is_kept(broker: Broker, seen: list[object]) -> None:
    broker.client.signal("payment:9", "paid", keep=3600)
    broker.client.topic("orders").send(9)
    assert [each.verb for each in broker.drain()] == ["release", "ack"]
    assert seen == ["paid"]
