"""A consumer remembers what it has to hand back, and nothing else: bodies can be large."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import flows as consumer_flow
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for


def deliveries_in_memory(name: str) -> int:
    gc.collect()
    return sum(
        isinstance(thing, InnerDelivery) and thing.origin.keys.topic == name
        for thing in gc.get_objects()
    )


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release", "ack_receipts"])
@both_clients
def test_a_settled_delivery_can_be_freed_while_its_consumer_lives(
    api: Any, name: str, verb: str
) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(20)])
    settle = {
        "ack": lambda some: consumer.ack(some),
        "nack": lambda some: consumer.nack(some, delay=60),
        "reject": lambda some: consumer.reject(some, "no"),
        "release": lambda some: consumer.release(some, delay=60),
        "ack_receipts": lambda some: consumer.ack_receipts([d.receipt for d in some]),
    }[verb]

    with topic.consumer() as consumer:
        batch = consumer.receive(20)
        assert deliveries_in_memory(name) == 20
        slow = batch.pop()  # one that is still at work keeps none of the others
        settle(batch)
        del batch
        assert deliveries_in_memory(name) == 1
        settle([slow])
        del slow
        assert deliveries_in_memory(name) == 0


@pytest.mark.parametrize("verb", ["ack", "extend"])
def test_a_delivery_whose_lease_was_lost_can_be_freed(
    api: Any, name: str, clock: Clock, verb: str
) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send_many([rmq.Outgoing(n) for n in range(20)])

    with topic.consumer(lease=1) as consumer:
        batch = consumer.receive(20)
        clock.advance(5)
        topic.consumer(mode="at_most_once").receive(20)
        lost = getattr(consumer, verb)(batch)
        assert len(lost) == 20
        del batch, lost
        assert deliveries_in_memory(name) == 0


def test_deliveries_that_nobody_settled_are_forgotten_once_their_leases_have_long_lapsed(
    api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_flow, "TIDY_FROM", 10)
    monkeypatch.setattr(consumer_flow, "FORGET_S", -3600.0)  # as if an hour had gone by
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(100)])

    with topic.consumer(lease=60) as consumer:
        for _ in range(20):
            consumer.receive(5)
        assert deliveries_in_memory(name) <= 25


@both_clients
def test_a_delivery_that_was_dropped_unsettled_is_still_handed_back(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(300)])

    with topic.consumer() as consumer:
        for _ in range(30):
            consumer.receive(10)  # more than are kept without a look for lapsed ones

    stats = api.admin.stats(name)
    assert (stats["priority"], stats["in_flight"]) == (300, 0)
    assert {m.deliveries for m in api.admin.peek(name, 300)} == {0}


def test_a_delivery_acked_by_its_receipt_is_settled(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send("once")

    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert consumer.ack_receipts([d.receipt]) == []

        assert d.is_settled
        with pytest.raises(rmq.AlreadySettled):
            d.ack()


@both_clients
def test_a_worker_lets_go_of_deliveries_that_are_done(scene: Scene, api: Any, name: str) -> None:
    topic = api.topic(name)
    done: list[int] = []

    def work(d: Any) -> Any:
        done.append(d.body)
        yield 0.0

    scene.handle(topic, work, prefetch=10)
    topic.send_many([rmq.Outgoing(n) for n in range(200)])
    with scene.working(heartbeat="thread"):
        wait_for(lambda: api.admin.stats(name)["settled"] == 200)
        # Threads that wait for more may still hold what they had last.
        wait_for(lambda: deliveries_in_memory(name) <= 40)

    assert sorted(done) == list(range(200))
