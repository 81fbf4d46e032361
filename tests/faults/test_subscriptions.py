"""A subscription moves to a new master, and one that is half-open is made anew."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from bench.soak.proxy import Proxy, between
from rmq.kernel.transport.flow.steps import POLL_S, AwaitSignal, Flow, Subscription
from rmq.kernel.transport.single import subscription
from tests.conftest import any_binary
from tests.faults.connections import drive, proxy
from tests.integration.test_hand_over import credits_in
from tests.patience import PATIENCE_S, asleep, wait_for
from tests.property.driver import Driver
from tests.servers import Server, free_port

__all__ = ["drive", "proxy"]  # fixtures


def test_a_waiting_consumer_moves_its_subscription_to_the_new_master(name: str) -> None:
    old, new = Server(any_binary()), Server(any_binary())
    got: list[Any] = []
    try:
        with (
            between(old.port) as proxy,
            old.raw() as raw,
            new.raw() as successor,
            rmq.Client(proxy.url, retry_for=PATIENCE_S) as client,
            rmq.Client(new.url) as producer,
        ):
            consumer = client.topic(name).consumer()
            client.topic(name).open()
            thread = threading.Thread(
                target=lambda: got.extend(consumer.receive(1, wait=2 * PATIENCE_S)), daemon=True
            )
            thread.start()
            asleep(old, name)
            successor.replicaof("127.0.0.1", str(old.port))
            wait_for(lambda: successor.exists(f"rmq:{{{name}_0}}:slot"))
            successor.replicaof("NO", "ONE")
            raw.replicaof("127.0.0.1", str(free_port()))  # and it hears nothing from its successor
            proxy.target = new.port

            asleep(new, name)  # it listens there
            producer.topic(name).send("here")
            thread.join(PATIENCE_S)
    finally:
        old.stop()
        new.stop()
    assert [one.body for one in got] == ["here"]


def test_a_subscription_that_cannot_be_made_has_done_nothing(drive: Callable[..., Driver]) -> None:
    def listening() -> Flow[set[int]]:
        heard: set[int] = yield AwaitSignal(Subscription(b"rmq:wake:t"), 0)
        return heard

    driver = drive(f"redis://127.0.0.1:{free_port()}/0", retry_for=0.1)
    run = driver.client._transport.run
    done = driver.loop.run_until_complete if driver.loop is not None else lambda value: value

    with pytest.raises(rmq.Unavailable, match="nothing was done"):
        done(run(listening()))


@pytest.fixture(params=["sync", "async"])
def waiting(
    request: pytest.FixtureRequest, proxy: Proxy, ours: Server, name: str
) -> Iterator[list[Any]]:
    """A consumer that notes bodies and attempts of what it got, until it gets None."""
    got: list[Any] = []

    def work() -> None:
        with rmq.Client(proxy.url) as client, client.topic(name).consumer(lease=600) as consumer:
            while True:
                for one in consumer.receive(10, wait=PATIENCE_S):
                    one.ack()
                    if one.body is None:
                        return
                    got.append((one.body, one.attempt))

    async def work_async() -> None:
        async with (
            rmq.AsyncClient(proxy.url) as client,
            client.topic(name).consumer(lease=600) as consumer,
        ):
            while True:
                for one in await consumer.receive(10, wait=PATIENCE_S):
                    await one.ack()
                    if one.body is None:
                        return
                    got.append((one.body, one.attempt))

    target = work if request.param == "sync" else lambda: asyncio.run(work_async())
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    asleep(ours, name)
    yield got
    with rmq.Client(ours.url) as client:
        client.topic(name).send(None)
    thread.join(PATIENCE_S)


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "PING_S", 0.3)
    monkeypatch.setattr(subscription, "PONG_S", 0.3)


def test_a_half_open_subscription_is_noticed_and_made_anew(
    quick_pings: None, waiting: list[Any], proxy: Proxy, ours: Server, name: str
) -> None:
    with rmq.Client(ours.url) as producer:
        assert proxy.unsubscribe() == 1
        asleep(ours, name, 2)  # the server still believes in the old one

        for number in range(3):
            wait_for(lambda: credits_in(ours, name) == [1])
            producer.topic(name).send(number)  # which hands it over to who listens
            wait_for(lambda: waiting[number:])  # noqa: B023
        assert waiting == [(0, 1), (1, 1), (2, 1)]


def test_a_half_open_subscription_that_nobody_asks_is_never_noticed(
    monkeypatch: pytest.MonkeyPatch, proxy: Proxy, ours: Server, name: str
) -> None:
    """The control of the test above: without the question there is one subscription for good."""
    monkeypatch.setattr(subscription, "PING_S", 3600.0)
    with rmq.Client(proxy.url) as client:
        consumer = client.topic(name).consumer()
        thread = threading.Thread(
            target=lambda: consumer.receive(1, wait=2 * PATIENCE_S), daemon=True
        )
        thread.start()
        asleep(ours, name)
        assert proxy.unsubscribe() == 1
        thread.join(3)
        assert thread.is_alive()
        with ours.raw() as raw:
            (heard,) = raw.pubsub_numsub(*raw.pubsub_channels(f"*{name}*:wake"))
        assert heard[1] == 1
        consumer._interrupt()
        thread.join(PATIENCE_S)


def test_a_subscription_that_answers_is_kept(
    quick_pings: None, waiting: list[Any], ours: Server, name: str
) -> None:
    with ours.raw() as raw:
        pings = raw.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
        subscribed = raw.info("commandstats")["cmdstat_subscribe"]["calls"]
        wait_for(lambda: raw.info("commandstats")["cmdstat_ping"]["calls"] >= pings + 5)
        assert raw.info("commandstats")["cmdstat_subscribe"]["calls"] == subscribed


def test_the_questions_of_an_idle_consumer_are_few() -> None:
    assert 1 / POLL_S + 1 / subscription.PING_S <= 1.1
