"""Events over HTTP, and the services that deliver what other processes have left."""

from __future__ import annotations

import pytest
import redis

import rmq
from rmq.kernel.core.keys import EventKeys
from rmq.kernel.events import scripts
from tests.server.conftest import Ask
from tests.server.console.fetching import fetch
from tests.server.running import ask, serving, until
from tests.servers import Server as Redis


def suspend(client: rmq.Client, key: str) -> rmq.MessageId:
    """Send a message, and let it wait for an event."""
    topic = client.topic("orders")
    id = topic.send(1).id
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with d:
            raise rmq.WaitFor(key, 3600)
    return id


def test_a_signal_over_http_lets_a_message_continue(api: Ask, client: rmq.Client) -> None:
    id = suspend(client, "payment:7")
    assert api(f"/topics/orders/messages/{id}").body["waits_for"] == "payment:7"

    body = {"key": "payment:7", "body": {"cents": 1999}}
    answer = api("/events", "POST", body)
    assert (answer.status, answer.body) == (200, {"state": "stored", "delivered": 1})
    assert api("/events", "POST", body).body == {"state": "already", "delivered": 0}

    (event,) = api(f"/topics/orders/messages/{id}").body["steps"]
    assert (event["name"], event["state"], event["value"]["text"]) == (
        "payment:7", "event", '{"cents": 1999}',
    )  # fmt: skip
    lines = [line.text for line in client.admin.audit_trail()]
    assert lines == ["key=payment:7, keep=86400: done"] * 2  # without the body


@pytest.mark.parametrize("body", [{"key": ""}, {"key": "k" * 256}, {"key": "k", "keep": 0}, {}])
def test_a_wrong_signal_is_refused(api: Ask, body: dict[str, object]) -> None:
    answer = api("/events", "POST", body)
    assert answer.status in (400, 422)
    assert answer.body["field"] in ("key", "keep")


def test_a_server_shows_and_delivers_what_is_left(
    server: Redis, client: rmq.Client, prefix: str, raw: redis.Redis
) -> None:
    id = suspend(client, "<left>")
    keys = EventKeys(prefix, b"<left>")

    def stored_only():
        return (yield scripts.event_signal(keys, b"", 60_000, 1))

    with serving(server.url, prefix) as running:
        page = fetch(f"{running.url}/console/topics/orders/messages/{id}").text
        assert "waits for event" in page
        assert "&lt;left&gt;" in page
        until(
            lambda: 'rmq_suspended{topic="orders"} 1.0' in str(ask(running.url + "/metrics").body),
            "it was not counted",
        )
        client._transport.run(stored_only())  # this process dies before it delivers the event
        raw.zadd(keys.undelivered, {b"<left>": 1})  # some seconds ago
        until(lambda: client.admin.stats("orders")["suspended"] == 0, "it was not delivered")
