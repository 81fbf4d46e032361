"""Redis has forgotten scripts, is away or frozen: a typed error in time, and nothing lost."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

import rmq
from rmq.kernel.transport.connections.operations import Operations
from rmq.kernel.transport.single.server_commands import ServerCommands
from tests.integration.driven import connect
from tests.patience import PATIENCE_S
from tests.servers import Server


def test_forgotten_scripts_are_loaded_again(api: Any, name: str, server: Server) -> None:
    topic = api.topic(name, slots=4)
    with server.raw() as redis, topic.consumer() as consumer:
        for n in range(5):
            redis.script_flush()
            topic.send_many([rmq.Outgoing(n, slot_basis=str(k)) for k in range(10)])
            redis.script_flush()
            batch = consumer.receive(100)
            redis.script_flush()
            assert consumer.ack(batch) == []
    assert api.admin.stats(name)["settled"] == 50


def test_scripts_forgotten_as_soon_as_they_are_loaded_are_loaded_once_more(
    api: Any, name: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, flushes = ServerCommands._load, 0

    def load_and_flush(self: ServerCommands, script: Any) -> Operations[None]:
        nonlocal flushes
        yield from load(self, script)
        if flushes < 4:
            flushes += 1
            with server.raw() as redis:
                redis.script_flush()

    topic = api.topic(name, slots=4)
    topic.send_many([rmq.Outgoing(k, slot_basis=str(k)) for k in range(10)])
    with topic.consumer() as consumer:
        batch = consumer.receive(100)
        with server.raw() as redis:
            redis.script_flush()
        monkeypatch.setattr(ServerCommands, "_load", load_and_flush)

        assert consumer.ack(batch) == []

    assert flushes == 4
    assert api.admin.stats(name)["settled"] == 10


def test_a_redis_that_is_away_is_reported_in_time_and_comes_back(
    kind: str, own_server: Server
) -> None:
    with connect(kind, own_server.url, retry_for=0.5) as api:
        topic = api.topic("orders")
        topic.send("x")
        consumer = topic.consumer()
        own_server.kill()

        started = time.monotonic()
        with pytest.raises(rmq.StorageError, match=r"redis://127.0.0.1:\d+/0"):
            topic.send("y")
        with pytest.raises(rmq.Unavailable, match="Check that Redis runs there"):
            consumer.receive()
        assert time.monotonic() - started < PATIENCE_S

        own_server.start()
        assert topic.send("z").status == "stored"
        assert [d.body for d in consumer.receive(10)] in (["x", "z"], ["x", "y", "z"])


def test_leaving_a_consumer_while_redis_is_away_tells_the_first_error(
    kind: str, own_server: Server
) -> None:
    with connect(kind, own_server.url, retry_for=0.2) as api:
        topic = api.topic("orders")
        topic.send("x")
        with pytest.raises(ZeroDivisionError), topic.consumer() as consumer:  # noqa: PT012
            (d,) = consumer.receive()
            own_server.kill()
            with d:
                1 / 0  # noqa: B018
        own_server.start()
        with pytest.raises(rmq.StorageError), topic.consumer() as consumer:  # noqa: PT012
            topic.send("y")
            assert len(consumer.receive()) == 1
            own_server.kill()


def test_a_server_that_never_answers_is_given_up(kind: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with pytest.raises(rmq.StorageError), connect(kind, url, retry_for=0.2, timeout=0.3) as api:
            api.ping()
