"""Consumers that wait look at few slots: 16 a second, in turn, while they are subscribed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import scripts
from rmq.kernel.transport.steps import LOOKS, POLL_S
from tests.clusters import Cluster
from tests.conftest import Server

IDLE_S = 4.0
SLOTS = 64


class Looks(list[int]):
    """How many slots each call of `next_ready` asked."""

    def a_second(self) -> float:
        return sum(self) / IDLE_S


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    asked, next_ready = Looks(), scripts.next_ready

    def counting(slots: Any, waits: bool, many_topics: bool = False) -> Any:
        asked.append(len(slots))
        return next_ready(slots, waits, many_topics)

    monkeypatch.setattr(scripts, "next_ready", counting)
    return asked


def idle_blocking(url: str, name: str, looks: Looks, slots: int) -> None:
    with rmq.Client(url) as client, client.topic(name, slots=slots).consumer() as consumer:
        assert consumer.receive(wait=1.5) == []
        looks.clear()
        assert consumer.receive(wait=IDLE_S) == []


def idle_async(url: str, name: str, looks: Looks, slots: int) -> None:
    async def idle() -> None:
        async with (
            rmq.AsyncClient(url) as client,
            client.topic(name, slots=slots).consumer() as consumer,
        ):
            assert await consumer.receive(wait=1.5) == []
            looks.clear()
            assert await consumer.receive(wait=IDLE_S) == []

    asyncio.run(idle())


def idle_worker(url: str, name: str, looks: Looks, slots: int) -> None:
    with rmq.Client(url) as client:
        for part in range(4):
            client.topic(f"{name}-{part}", slots=slots // 4).handler()(lambda body: None)
        with rmq.Worker(client):
            time.sleep(1.5)  # it looks at all of them first
            looks.clear()
            time.sleep(IDLE_S)


KINDS = [idle_blocking, idle_async, idle_worker]


@pytest.mark.parametrize("idle", KINDS)
def test_an_idle_consumer_of_a_cluster_looks_at_few_slots(
    cluster: Cluster, name: str, looks: Looks, idle: Callable[..., None]
) -> None:
    idle(cluster.url, name, looks, SLOTS)

    assert 0 < looks.a_second() <= 1.3 * LOOKS / POLL_S


@pytest.mark.parametrize("idle", KINDS)
def test_without_a_subscription_it_looks_at_all_of_them(
    cluster: Cluster,
    name: str,
    looks: Looks,
    idle: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the test above: signals that nobody hears are not trusted."""
    unheard = property(lambda self: False)
    monkeypatch.setattr("rmq.kernel.transport.steps.Subscription.is_heard", unheard)
    monkeypatch.setattr("rmq.kernel.transport.subscription.Listener.is_heard", unheard)

    idle(cluster.url, name, looks, SLOTS)

    assert looks.a_second() >= 0.6 * SLOTS / POLL_S


def test_an_idle_consumer_of_1024_slots_looks_at_few_on_one_server(
    server: Server, name: str, looks: Looks
) -> None:
    idle_blocking(server.url, name, looks, 1024)

    assert 0 < looks.a_second() <= 1.3 * LOOKS / POLL_S


@pytest.fixture
def lost_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wake-up signal is heard; the subscription stands all the same."""
    monkeypatch.setattr(
        "rmq.kernel.transport.subscription.SubscribedConnection.note_reply",
        lambda self, reply, signals, subscription: self.note_life(),
    )


def test_a_message_whose_signal_is_lost_is_found_in_the_turn_of_its_slot(
    cluster: Cluster, name: str, lost_signals: None
) -> None:
    with rmq.Client(cluster.url) as client:
        topic = client.topic(name, slots=SLOTS)
        with topic.consumer() as consumer:
            assert consumer.receive(wait=1.5) == []
            topic.send("found")
            began = time.monotonic()
            (delivery,) = consumer.receive(wait=60)
            delivery.ack()

    assert delivery.body == "found"
    assert time.monotonic() - began < 2 * SLOTS / LOOKS * POLL_S + 2
