from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.errors import InvalidType, InvalidValue, SettingsMismatch
from rmq.testing import Broker
from tests.servers import Server


@pytest.fixture
def shop(client: rmq.Client) -> rmq.Client:
    """A program's own client, of another Redis."""
    return client


def test_topic_of_the_program_sends_to_the_broker_and_then_home_again(
    broker: Broker, shop: rmq.Client, name: str
) -> None:
    topic = shop.topic(name, slots=2)
    home = topic.send("home")
    url = shop.url

    with broker.adopting(shop) as same:
        assert same is shop
        assert shop.url == broker.client.url
        topic.send("away")
        assert topic.get(home.id) is None
        assert shop.admin.stats(name)["accepted"] == 1
        assert [one.body for one in broker.sent(topic)] == ["away"]
        with topic.consumer() as consumer:
            assert [one.body for one in consumer.receive()] == ["away"]

    assert shop.url == url
    found = topic.get(home.id)
    assert found is not None
    assert found.body == "home"
    assert [one.body for one in shop.admin.peek(name)] == ["home"]


def test_topic_is_made_with_the_settings_that_the_program_names(
    broker: Broker, shop: rmq.Client, name: str
) -> None:
    topic = shop.topic(name, slots=2, lease=17)
    assert topic.open()
    with broker.adopting(shop):
        assert topic.open()
        assert topic.settings.lease_ms == 17_000
        with pytest.raises(SettingsMismatch):
            shop.topic(name, slots=3).open()
    assert topic.settings.slots == 2
    assert topic.open() is False


def test_topic_opened_first_inside_is_fresh_outside(
    broker: Broker, shop: rmq.Client, name: str
) -> None:
    topic = shop.topic(name)
    with broker.adopting(shop):
        topic.send(1)
        new = shop.topic(name + "-new")
        new.send(1)
    assert topic.open()
    assert new.open()


def test_handlers_of_the_test_do_not_stay(broker: Broker, shop: rmq.Client, name: str) -> None:
    topic = shop.topic(name)
    for _ in range(2):
        with broker.adopting(shop):

            @topic.handler()
            def handle(body: int) -> None: ...

            topic.send(1)
            assert [one.verb for one in broker.drain(name)] == ["ack"]
    assert not shop._handlers.by_topic


def test_lifespans_of_the_test_do_not_stay(broker: Broker, shop: rmq.Client) -> None:
    with broker.adopting(shop):

        @shop.lifespan
        def life() -> Iterator[None]:
            yield

        assert shop._handlers.lifespans
    assert not shop._handlers.lifespans


def test_error_in_the_block_puts_everything_back(
    broker: Broker, shop: rmq.Client, name: str
) -> None:
    topic, url = shop.topic(name), shop.url
    with pytest.raises(KeyError), broker.adopting(shop):
        raise KeyError
    assert shop.url == url
    topic.send(1)
    assert len(shop.admin.peek(name)) == 1


def test_broker_that_ends_first_puts_its_clients_back(shop: rmq.Client) -> None:
    url = shop.url
    broker = Broker().__enter__()
    adoption = broker.adopting(shop)
    with adoption:
        broker.__exit__()
        assert shop.url == url
    assert shop.url == url


def test_clients_that_cannot_reach_their_redis_are_adopted_too(broker: Broker) -> None:
    shop = rmq.Client("redis://127.0.0.1:1/0", retry_for=0)
    topic = shop.topic("orders")
    with broker.adopting(shop):
        topic.send(1)
        broker.assert_sent(topic, 1)
    with pytest.raises(rmq.Unavailable):
        topic.send(1)


def test_twice_and_other_things_are_refused(broker: Broker, shop: rmq.Client) -> None:
    with broker.adopting(shop), pytest.raises(InvalidValue, match="already"):
        broker.adopting(shop).enter()
    with pytest.raises(InvalidType):
        broker.adopting("redis://localhost")  # type: ignore[arg-type]


async def test_async_client_goes_and_comes_back(broker: Broker, server: Server, name: str) -> None:
    async with rmq.AsyncClient(server.url) as shop:
        topic = shop.topic(name)
        home = await topic.send("home")
        async with broker.adopting(shop):
            await topic.send("away")
            assert [one.body for one in broker.sent(topic)] == ["away"]
            assert await topic.get(home.id) is None
        assert (await topic.get(home.id)).body == "home"  # type: ignore[union-attr]
        with pytest.raises(InvalidValue, match="async with"), broker.adopting(shop):
            pass


def test_async_client_in_loops_of_the_test(broker: Broker) -> None:
    shop = rmq.AsyncClient("redis://127.0.0.1:1/0", retry_for=0)
    topic = shop.topic("orders")
    seen: list[Any] = []

    @topic.handler()
    async def handle(body: str) -> None:
        seen.append(body)
        if body == "first":
            await topic.send("second")

    with broker.adopting(shop):
        asyncio.run(topic.send("first"))
        asyncio.run(topic.send("third"))
        assert [one.verb for one in broker.drain()] == ["ack"] * 3
    assert sorted(seen) == ["first", "second", "third"]


def test_targets_of_follow_ups_are_those_of_the_broker_inside_only(
    broker: Broker, shop: rmq.Client, name: str
) -> None:
    topic, target = shop.topic(name), f"{name}-next"

    def follow(count: int) -> None:
        topic.send_many([rmq.Outgoing(n) for n in range(count)])
        with topic.consumer() as consumer:
            for delivery in consumer.receive(count):
                delivery.ack(then=[(target, rmq.Outgoing(delivery.body))])

    with rmq.Client(shop.url) as another:
        another.topic(target, slots=8).open()
        follow(5)
        with broker.adopting(shop):
            broker.client.topic(target).open()
            follow(9)
            assert len(broker.sent(target)) == 9
            assert broker.dead(name) == []
        follow(5)
        assert another.admin.stats(target)["accepted"] == 10
