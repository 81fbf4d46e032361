"""Drain runs the handler of each message's type."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.testing import Broker


def test_each_message_goes_to_the_handler_of_its_type(broker: Broker) -> None:
    topic = broker.client.topic("t")
    seen: list[tuple[str, Any]] = []

    @topic.handler(type="a")
    def plain(body: int, d: rmq.Delivery) -> None:
        seen.append(("plain", body))

    @topic.handler(type=("b", "c"), max_runtime=60)
    async def asynchronous(body: int, d: rmq.AsyncDelivery) -> None:
        await d.extend()
        seen.append((f"async {d.type}", body))

    @topic.handler(type="many", batch=10)
    def batched(deliveries: list[rmq.Delivery]) -> None:
        seen.append(("batch", [d.body for d in deliveries]))

    @topic.handler
    def default(body: int) -> None:
        seen.append(("default", body))

    types = ["a", "b", "c", "many", "d", None, "many"]
    topic.send_many([rmq.Outgoing(n, type=kind) for n, kind in enumerate(types)])
    results = broker.drain()

    assert sorted(seen, key=str) == sorted(
        [
            ("plain", 0), ("async b", 1), ("async c", 2), ("batch", [3, 6]), ("default", 4),
            ("default", 5),
        ],
        key=str,
    )  # fmt: skip
    assert {one.body: (one.type, one.verb) for one in results} == {
        n: (kind, "ack") for n, kind in enumerate(types)
    }
    broker.assert_empty()


def test_claims_are_taken_for_the_handlers_that_have_them(broker: Broker) -> None:
    topic = broker.client.topic("t")
    seen: list[Any] = []

    @topic.handler(type="once")
    @rmq.idempotent(rmq.Claims(), key=lambda body: body["key"])
    def once(body: dict) -> None:
        seen.append(body["key"])

    @topic.handler
    def each(body: dict) -> None:
        seen.append("each")

    for kind in ("once", "once", None, None):
        topic.send({"key": "k"}, type=kind)
    broker.drain()

    assert seen == ["k", "each", "each"]


def test_a_type_without_a_handler_waits_and_is_dead_after_the_topics_time(broker: Broker) -> None:
    topic = broker.client.topic("t", unhandled=600)
    topic.handler(type="a")(lambda body: None)
    topic.send(1, type="b")

    soon = broker.drain(advance=599)
    later = broker.drain(advance=2)

    assert {one.verb for one in soon} == {"release"}
    assert 10 < len(soon) < 25, "it comes back less and less often"
    assert [one.verb for one in later if one.verb != "release"] == []
    broker.drain(advance=60)
    (dead,) = broker.dead(topic)
    assert dead.failure is not None
    assert dead.failure.reason == "unhandled"
    assert "messages of type 'b' within 10m" in dead.failure.error
    assert dead.deliveries == 1, "waiting has cost no retry"


def test_a_redriven_message_runs_once_there_is_a_handler(broker: Broker) -> None:
    topic = broker.client.topic("t", unhandled=60)
    topic.handler(type="a")(lambda body: None)
    topic.send(1, type="b")
    broker.drain(advance=300)
    assert len(broker.dead(topic)) == 1

    seen: list[Any] = []
    topic.handler(type="b")(lambda body: seen.append(body))
    broker.client.admin.redrive("t", reason="unhandled", type="b")
    broker.drain()

    assert seen == [1]
    broker.assert_empty()


def test_in_order_the_slot_waits_for_a_handler(broker: Broker) -> None:
    topic = broker.client.topic("t", unhandled=60)
    seen: list[Any] = []
    topic.handler(type="a", ordered=True)(lambda body: seen.append(body))
    for n, kind in enumerate("aba"):
        topic.send(n, type=kind)

    broker.drain(advance=30)
    assert seen == [0]
    broker.drain(advance=120)

    assert seen == [0, 2]
    assert [message.body for message in broker.dead(topic)] == [1]


def test_assert_sent_looks_at_the_type(broker: Broker) -> None:
    topic = broker.client.topic("t")
    topic.send(1, type="a")
    topic.send(1)

    broker.assert_sent(topic, 1, type="a", count=1)
    with pytest.raises(AssertionError, match=r"with body=1, type='b'; found 0(?s:.*)1, type 'a'"):
        broker.assert_sent(topic, 1, type="b")
