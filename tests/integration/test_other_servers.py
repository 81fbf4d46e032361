"""Servers without some commands, and proxies before a cluster that look like one server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import hiredis
import pytest
import redis

import rmq
from rmq.kernel.transport.connections.pool import AsyncPool, Pool
from rmq.kernel.transport.hash_slots import hash_slot
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.single.subscription import SubscriptionRefused
from tests.conftest import any_binary
from tests.integration.driven import both_clients, connect
from tests.patience import PATIENCE_S
from tests.servers import OLDEST_SUPPORTED, Server, engines

MISSING = ("HELLO", "SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE", "PUBLISH", "WAIT")
SLOTS = 4


class PoorServer(Server):
    """A server whose operator has taken commands away."""

    def __init__(self) -> None:
        binary = any_binary()
        is_oldest = binary == engines().get(OLDEST_SUPPORTED)
        missing = [one for one in MISSING if not (is_oldest and one == "SSUBSCRIBE")]  # it has none
        renamed = [word for command in missing for word in ("--rename-command", command, "")]
        super().__init__(binary, *renamed)

    def raw(self, **options: object) -> redis.Redis:
        return super().raw(protocol=2, **options)


@pytest.fixture(scope="module")
def poor() -> Iterator[Server]:
    made = PoorServer()
    yield made
    made.stop()


@both_clients
def test_a_server_without_subscribe_is_polled_and_that_is_said(
    poor: Server, kind: str, name: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(SubscriptionRefused, "logged", False)
    with connect(kind, poor.url) as client, caplog.at_level(logging.WARNING, "rmq"):
        topic = client.topic(name, slots=SLOTS)
        for number in range(2):
            topic.send(number, delay=0.1)
            with topic.consumer() as consumer:
                (delivery,) = consumer.receive(wait=PATIENCE_S)
                assert delivery.body == number
                delivery.ack()
        assert client.can_wake() is False

    (told,) = [line for line in caplog.messages if "SUBSCRIBE" in line]
    assert "up to 1 s late. It has no such command" in told
    assert "ACL" not in told


def test_a_worker_works_with_a_server_without_subscribe(poor: Server, name: str) -> None:
    handled: SimpleQueue[int] = SimpleQueue()
    with rmq.Client(poor.url) as client:
        topic = client.topic(name, slots=SLOTS)
        topic.handler(handled.put)
        with rmq.Worker(client):
            topic.send_many([rmq.Outgoing(n) for n in range(20)])
            assert {handled.get(timeout=PATIENCE_S) for _ in range(20)} == set(range(20))


def test_errors_of_missing_commands_say_what_to_do(poor: Server, name: str) -> None:
    with (
        rmq.Client(poor.url) as client,
        pytest.raises(rmq.ConfigurationError, match="has no WAIT; use 'memory'"),
    ):
        client.topic(name).send(1, durability=rmq.Replicated(1, 0.1))
    with (
        rmq.Client(f"{poor.url}?protocol=3") as client,
        pytest.raises(rmq.ConfigurationError, match="Leave protocol=3 out of the URL"),
    ):
        client.topic(name).send(1)


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the server refuse calls of several hash slots, as a proxy does; their scripts."""
    refused: list[str] = []
    names = {script_loader.load(name).sha.encode(): name for name in script_loader.names()}

    def refusal(packed: bytes) -> Any:
        reader = hiredis.Reader()
        reader.feed(packed)
        words: Any = reader.gets()
        if (
            words[0] != b"EVALSHA"
            or len({hash_slot(key) for key in words[3 : 3 + int(words[2])]}) < 2
        ):
            return None
        refused.append(names[words[1]])
        return [redis.exceptions.ClusterCrossSlotError("Keys in request don't hash to one slot")]

    sync, tasks = Pool.exchange, AsyncPool.exchange

    def exchange(self: Pool, packed: bytes, count: int, late: bool = False) -> Any:
        return refusal(packed) or sync(self, packed, count, late)

    async def exchange_async(self: AsyncPool, packed: bytes, count: int, late: bool = False) -> Any:
        return refusal(packed) or await tasks(self, packed, count, late)

    monkeypatch.setattr(Pool, "exchange", exchange)
    monkeypatch.setattr(AsyncPool, "exchange", exchange_async)
    return refused


@both_clients
def test_behind_a_proxy_that_routes_by_hash_tag_a_topic_of_several_slots_works(
    server: Server, kind: str, name: str, proxied: list[str]
) -> None:
    with connect(kind, server.url) as client:
        topic = client.topic(name, slots=SLOTS)
        topic.open()
        with topic.consumer() as consumer:
            assert consumer.receive(wait=0.05) == []
            sender = threading.Timer(0.3, send_one, (server.url, name))  # while it sleeps
            sender.start()
            (delivery,) = consumer.receive(wait=PATIENCE_S)
            sender.join()
            assert consumer.ack([delivery]) == []
    assert set(proxied) == {"next_ready"}


def send_one(url: str, name: str) -> None:
    with rmq.Client(url) as client:
        client.topic(name).send("x")
