"""Groups in a broker: their order, failures and stops, on each kind of server."""

from __future__ import annotations

import rmq
from rmq.testing import Broker


def test_a_drain_handles_the_messages_of_a_group_in_order_past_a_failure(broker: Broker) -> None:
    topic = broker.client.topic("orders", groups=rmq.Groups(), retry=rmq.Levels((10,)))
    handled: list[str] = []

    @topic.handler(ordered=True)
    def handle(step: str, d: rmq.Delivery) -> None:
        handled.append(f"{d.group} {step} {d.attempt}")
        if handled[-1] == "a 0 1":
            raise ValueError("not yet")

    topic.send_many([rmq.Outgoing(str(n), group=group) for n in range(2) for group in "ab"])
    broker.assert_sent("orders", "1", group="a", count=1)
    broker.drain()
    before = list(handled)
    broker.clock.advance(10)
    broker.drain()

    assert sorted(before) == ["a 0 1", "b 0 1", "b 1 1"]
    assert handled[3:] == ["a 0 2", "a 1 1"]


def test_a_dead_letter_holds_its_group_until_it_is_released(broker: Broker) -> None:
    topic = broker.client.topic("orders", groups=rmq.Groups(on_dead="hold"), max_retries=0)
    handled: list[str] = []

    @topic.handler
    def handle(step: str) -> None:
        handled.append(step)
        if step == "a0" and handled.count("a0") == 1:
            raise ValueError("dead")

    topic.send_many([rmq.Outgoing(f"{group}{n}", group=group) for n in range(2) for group in "ab"])
    broker.drain()
    stopped = list(handled)
    admin = broker.client.admin
    admin.redrive("orders")
    broker.drain()
    assert handled == stopped
    admin.group_release("orders", "a")
    broker.drain()

    assert sorted(stopped) == ["a0", "b0", "b1"]
    assert handled[3:] == ["a0", "a1"]
