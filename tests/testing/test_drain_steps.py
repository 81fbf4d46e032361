"""A drain runs steps as a worker does; the manual clock brings the next attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest

import rmq
from rmq.testing import Broker


@pytest.fixture
def orders(broker: Broker) -> rmq.Topic:
    return broker.client.topic("orders", retry=rmq.Levels((30,)), max_retries=1)


def test_the_next_attempt_gets_the_value_of_a_step(broker: Broker, orders: rmq.Topic) -> None:
    calls: list[str] = []

    @orders.handler
    def book(order: int, d: rmq.Delivery) -> None:
        payment = d.step("charge", lambda: calls.append("charge") or f"p{order}")
        calls.append(payment)
        if d.attempt == 1:
            raise OSError("the mail server is away")
        d.step("mail", calls.append, "mail")

    orders.send(7)

    assert [each.verb for each in broker.drain()] == ["nack"]
    assert calls == ["charge", "p7"]
    broker.clock.advance(30)
    assert [each.verb for each in broker.drain()] == ["ack"]
    assert calls == ["charge", "p7", "p7", "mail"]


def test_the_next_attempt_continues_at_the_cursor(broker: Broker, orders: rmq.Topic) -> None:
    pages: list[int] = []

    @orders.handler
    async def read(count: int, d: rmq.AsyncDelivery) -> None:
        for page in range(await d.saved or 0, count):
            pages.append(page)
            if len(pages) == 3:
                raise OSError("away")
            await d.save(page + 1)

    sent = orders.send(4)
    broker.drain()
    assert pages == [0, 1, 2]
    found = orders.get(sent.id)
    assert found is not None
    (cursor,) = found.steps
    assert (cursor.state, cursor.value) == ("cursor", 2)
    assert broker.clock.now - cursor.at < timedelta(milliseconds=1)

    broker.drain(advance=30)
    assert pages == [0, 1, 2, 2, 3]
    assert orders.get(sent.id) is None
