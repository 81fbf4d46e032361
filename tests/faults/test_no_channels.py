"""A Redis user without channels, the default since Redis 7: everything works, waits end later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.transport.single.subscription import SubscriptionRefused
from tests.integration.driven import connect
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server

ALLOWED = ("+@all", "~rmq:*", "resetchannels")


@pytest.fixture
def url(each_server: Server) -> Iterator[str]:
    """The address of a user who may use all keys of RMQ, and no channel."""
    with each_server.raw() as raw:
        raw.execute_command("ACL", "SETUSER", "app", "reset", "on", ">pw", *ALLOWED)
    yield each_server.url.replace("redis://", "redis://app:pw@")
    with each_server.raw() as raw:
        raw.execute_command("ACL", "DELUSER", "app")


@pytest.fixture(params=["sync", "async"])
def app(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(SubscriptionRefused, "logged", False)
    with connect(request.param, url, retry_for=1) as made:
        yield made


def sleeping(each_server: Server, name: str) -> None:
    """Wait until a consumer has noted that it sleeps."""
    with each_server.raw() as raw:
        wait_for(
            lambda: int(raw.hget(f"rmq:{{{name}_0}}:slot", "waiting") or 0) != 0, "nobody sleeps"
        )


def test_a_send_while_a_consumer_sleeps_is_stored_and_wakes_it_late(
    each_server: Server, app: Any, name: str
) -> None:
    topic = app.topic(name)
    topic.open()
    got: list[Any] = []
    with rmq.Client(each_server.url) as other:
        consumer = other.topic(name).consumer()
        thread = threading.Thread(target=lambda: got.extend(consumer.receive(wait=30)))
        thread.start()
        sleeping(each_server, name)

        sent = topic.send("x")

        thread.join(PATIENCE_S)
        assert sent.status == "stored"
        assert [one.body for one in got] == ["x"]
        consumer.close()


def test_a_nack_while_a_consumer_sleeps_is_reported_as_done_and_costs_one_retry(
    each_server: Server, app: Any, name: str
) -> None:
    topic = app.topic(name, retry="immediate")
    topic.send("x")
    with topic.consumer() as consumer, rmq.Client(each_server.url) as other:
        (delivery,) = consumer.receive()
        got: list[Any] = []
        waiting = other.topic(name).consumer()
        thread = threading.Thread(target=lambda: got.extend(waiting.receive(wait=30)))
        thread.start()
        sleeping(each_server, name)

        delivery.nack(delay=0)

        thread.join(PATIENCE_S)
        assert delivery.is_settled
        assert [one.attempt for one in got] == [2]
        waiting.close()


def test_a_consumer_that_may_not_listen_looks_once_a_second_and_says_so_once(
    app: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = app.topic(name)
    with caplog.at_level(logging.WARNING, "rmq"):
        for number in range(2):
            with topic.consumer() as consumer:
                topic.send(number, delay=0.3)
                (delivery,) = consumer.receive(wait=30)
                assert delivery.body == number
                delivery.ack()

    told = [line for line in caplog.messages if "SUBSCRIBE" in line]
    assert len(told) == 1
    assert "ACL SETUSER <user> '&rmq:*'" in told[0]


def test_a_consumer_listens_again_once_the_acl_is_repaired(
    each_server: Server, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SubscriptionRefused, "RETRY_S", 0.0)
    with rmq.Client(url) as client, client.topic(name).consumer() as consumer:
        assert consumer.receive(wait=0.05) == []
        assert isinstance(consumer._flows.state.subscription.connection, SubscriptionRefused | None)
        with each_server.raw() as raw:
            raw.execute_command("ACL", "SETUSER", "app", "&rmq:*")

        for _ in range(3):
            assert consumer.receive(wait=0.05) == []

        held = consumer._flows.state.subscription.connection
        assert held is not None
        assert not isinstance(held, SubscriptionRefused)


def test_a_client_tells_whether_it_may_wake_consumers(app: Any, each_server: Server) -> None:
    assert app.can_wake() is False
    with rmq.Client(each_server.url) as other:
        assert other.can_wake() is True


def test_a_wrong_password_is_no_question_of_channels(each_server: Server, name: str) -> None:
    url = each_server.url.replace("redis://", "redis://nobody:wrong@")
    with rmq.Client(url) as client, pytest.raises(rmq.ConfigurationError, match="access"):
        client.topic(name).consumer().receive(wait=0.1)
