"""Consumers that wait look at few slots: 16 a second, in turn, while they are subscribed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import scripts
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.steps import POLL_S, SLOTS_PER_POLL
from rmq.kernel.transport.single.blocking import Listener
from tests.clusters import Cluster
from tests.conftest import Server

IDLE_S = 4.0
SLOTS = 64
LEASE_S = 2.0


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

    assert 0 < looks.a_second() <= 1.3 * SLOTS_PER_POLL / POLL_S


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
    monkeypatch.setattr("rmq.kernel.transport.flow.steps.Subscription.is_active", unheard)
    monkeypatch.setattr("rmq.kernel.transport.single.blocking.Listener.is_active", unheard)

    idle(cluster.url, name, looks, SLOTS)

    assert looks.a_second() >= 0.6 * SLOTS / POLL_S


def test_an_idle_consumer_of_1024_slots_looks_at_few_on_one_server(
    server: Server, name: str, looks: Looks
) -> None:
    idle_blocking(server.url, name, looks, 1024)

    assert 0 < looks.a_second() <= 1.3 * SLOTS_PER_POLL / POLL_S


@pytest.fixture
def lost_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wake-up signal is heard; the subscription stands all the same."""
    monkeypatch.setattr(
        "rmq.kernel.transport.single.subscription.SubscribedConnection.note_reply",
        lambda self, reply, signals, subscription: None,
    )
    wait = Listener.wait
    monkeypatch.setattr(Listener, "wait", lambda self, seconds: wait(self, seconds)[:0])


BOUND_S = 2 * SLOTS / SLOTS_PER_POLL * POLL_S + 2  # the turn of each slot comes twice in this time


Scene = Callable[[Any, Any], None]  # gets a topic and receive(wait), which gives bodies and acks


def play_blocking(url: str, name: str, scene: Scene) -> None:
    with rmq.Client(url) as client:
        topic = client.topic(name, slots=SLOTS)
        with topic.consumer() as consumer:

            def receive(wait: float) -> list[Any]:
                batch = consumer.receive(wait=wait)
                consumer.ack(batch)
                return [delivery.body for delivery in batch]

            scene(topic, receive)


def play_async(url: str, name: str, scene: Scene) -> None:
    with rmq.Client(url) as client, asyncio.Runner() as runner:
        async_client = rmq.AsyncClient(url)
        consumer = async_client.topic(name, slots=SLOTS).consumer()

        async def receive(wait: float) -> list[Any]:
            batch = await consumer.receive(wait=wait)
            await consumer.ack(batch)
            return [delivery.body for delivery in batch]

        try:
            topic = client.topic(name, slots=SLOTS)
            scene(topic, lambda wait: runner.run(receive(wait)))
        finally:
            runner.run(consumer.close())
            runner.run(async_client.close())


def play_worker(url: str, name: str, scene: Scene) -> None:
    bodies: SimpleQueue[Any] = SimpleQueue()

    def receive(wait: float) -> list[Any]:
        try:
            return [bodies.get(timeout=wait)]
        except Empty:
            return []

    with rmq.Client(url) as client:
        topic = client.topic(name, slots=SLOTS)
        topic.handler()(bodies.put)
        with rmq.Worker(client):
            scene(topic, receive)


PLAYS = [play_blocking, play_async, play_worker]


def seconds_until(receive: Callable[[float], list[Any]], body: object, wait_s: float) -> float:
    """Receive until this body comes; return after how many seconds."""
    began = time.monotonic()
    while body not in receive(max(0.01, began + wait_s - time.monotonic())):
        assert time.monotonic() < began + wait_s, f"{body!r} was not found in {wait_s:g} s"
    return time.monotonic() - began


@pytest.mark.parametrize("play", PLAYS)
def test_a_message_whose_signal_is_lost_is_found_in_the_turn_of_its_slot(
    cluster: Cluster, name: str, lost_signals: None, play: Callable[..., None]
) -> None:
    def scene(topic: Any, receive: Callable[[float], list[Any]]) -> None:
        assert receive(1.5) == []
        topic.send("found")
        assert seconds_until(receive, "found", 60) < BOUND_S

    play(cluster.url, name, scene)


@pytest.mark.parametrize("play", PLAYS)
def test_it_is_found_also_beside_a_slot_that_always_has_messages(
    cluster: Cluster, name: str, lost_signals: None, play: Callable[..., None]
) -> None:
    # A consumer finds a message whenever it is called; a worker receives by itself, without end.
    pause_s = 0.0 if play is play_worker else 0.01

    def scene(topic: Any, receive: Callable[[float], list[Any]]) -> None:
        assert receive(1.5) == []
        for _ in range(50):
            topic.send("busy", slot_basis="a slot")
        seconds_until(receive, "busy", 60)
        topic.send("found", slot_basis="another slot")
        until = time.monotonic() + BOUND_S
        while "found" not in receive(1):
            topic.send("busy", slot_basis="a slot")
            time.sleep(pause_s)
            assert time.monotonic() < until, "only the slot that has messages is looked at"

    assert slot_of(b"a slot", SLOTS) != slot_of(b"another slot", SLOTS)
    play(cluster.url, name, scene)


@pytest.mark.parametrize("play", [play_blocking, play_async])
def test_a_lease_that_another_consumer_took_and_lost_is_found_in_the_turn_of_its_slot(
    cluster: Cluster, name: str, lost_signals: None, play: Callable[..., None]
) -> None:
    def scene(topic: Any, receive: Callable[[float], list[Any]]) -> None:
        assert receive(1.5) == []
        topic.send("lost")
        (taken,) = other.receive(wait=0)  # and it dies
        assert taken.body == "lost"
        assert seconds_until(receive, "lost", 60) < LEASE_S + BOUND_S

    with rmq.Client(cluster.url) as client:
        other = client.topic(name, slots=SLOTS).consumer(lease=LEASE_S)
        play(cluster.url, name, scene)
