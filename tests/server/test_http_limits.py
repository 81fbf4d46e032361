"""Programs that receive over HTTP: limits, streams, rights, and sends that are repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import rmq
from rmq.features.http_consumers import consumers, http
from rmq.server import authentication, guard
from tests.server.http_clients import BASE, Consumer, answer_of, line_of, places
from tests.server.running import PATIENCE_S, ask, get, serving, until
from tests.servers import Server as Redis

STATIC = "0123456789abcdef" * 4


# --- limits --------------------------------------------------------------------------------------


def test_polls_have_a_limit_of_their_own_and_leave_connections_to_others(
    client: rmq.Client, server: Redis, prefix: str, open_polls: Callable[[], int]
) -> None:
    client.topic("orders").open()
    limits = {"polls": 12, "connections_max": 4, "connections_per_address": 4}
    with serving(server.url, prefix, **limits) as running:
        consumer = Consumer(running.url)
        waiting = []
        for n in range(12):
            waiting.append(consumer.begin("receive", {"wait": 20}))
            until(lambda n=n: open_polls() == n + 1, "the poll")

        refused = consumer.ask("receive", {"wait": 20})
        assert (refused.status, refused.body["type"]) == (429, "urn:rmq:error:too-many-polls")
        assert "server.polls" in refused.body["detail"]
        assert int(refused.headers["Retry-After"]) > 0
        assert get(running.url + "/livez")[0] == 200
        assert ask(running.url + BASE).status == 200
        client.topic("orders").send_many([rmq.Outgoing(n) for n in range(12)])
        assert {answer_of(each)[0] for each in waiting} == {200}
        until(lambda: open_polls() == 0, "the end")
        assert consumer.receive(wait=0.1) == []
        for each in waiting:
            each.close()


def test_more_topics_and_leases_than_a_server_receives_for_are_refused(
    client: rmq.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, has_begun = consumers.SharedConsumer.add, threading.Event()

    def add_noted(self: consumers.SharedConsumer, poll: consumers.Poll) -> None:
        add(self, poll)
        has_begun.set()

    monkeypatch.setattr(consumers, "SHARED_MAX", 1)
    monkeypatch.setattr(consumers.SharedConsumer, "add", add_noted)
    client.topic("orders").open()
    consumer = Consumer(url)
    waiting = consumer.begin("receive", {"wait": 20})
    assert has_begun.wait(PATIENCE_S)

    refused = consumer.ask("receive", {"wait": 1, "lease": 7})

    assert (refused.status, refused.body["type"]) == (429, "urn:rmq:error:busy")
    waiting.close()


# --- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settles_elsewhere", [False, True])
def test_a_stream_sends_no_more_than_its_limit_until_messages_are_settled(
    client: rmq.Client,
    url: str,
    other_url: str,
    monkeypatch: pytest.MonkeyPatch,
    settles_elsewhere: bool,
) -> None:
    monkeypatch.setattr(consumers, "FIRST_CHECK_S", 0.2)
    monkeypatch.setattr(consumers, "CHECKS_MAX_S", 0.2)
    client.topic("orders").send_many([rmq.Outgoing(n) for n in range(5)])
    stream = Consumer(url).stream(max_in_flight=2)
    assert (stream.status, stream.headers["Content-Type"]) == (200, "application/x-ndjson")

    found = [line_of(stream), line_of(stream)]

    time.sleep(0.5)  # in which a third message would come
    assert places(client) == {"waiting": 3, "in_flight": 2, "dead": 0}
    settling = Consumer(other_url if settles_elsewhere else url)
    while len(found) < 5:
        assert settling.settle("ack", found[-1:]).status == 200
        found.append(line_of(stream))
        assert places(client)["in_flight"] <= 2
    assert sorted(each["body"] for each in found) == list(range(5))
    stream.close()


def test_a_silent_stream_sends_empty_lines_and_ends_with_its_client(
    client: rmq.Client, url: str, monkeypatch: pytest.MonkeyPatch, open_polls: Callable[[], int]
) -> None:
    monkeypatch.setattr(http, "SILENT_S", 0.1)
    topic = client.topic("orders")
    topic.open()
    stream = Consumer(url).stream()
    assert [stream.readline() for _ in range(4)] == [b"\n"] * 4
    topic.send(1)
    first = line_of(stream)

    stream.close()

    until(lambda: open_polls() == 0, "the end")
    topic.send(2)
    assert [each["body"] for each in Consumer(url).receive(max=9, wait=5)] == [2]
    assert Consumer(url).settle("ack", [first]).status == 200


# --- rights --------------------------------------------------------------------------------------


def test_tokens_of_producers_and_consumers_open_their_verbs_and_topics_alone(
    client: rmq.Client, server: Redis, prefix: str
) -> None:
    admin, texts = client.admin, {}
    for role, topics in (("producer", ["orders", "mail.*"]), ("consumer", ["or*s"])):
        texts[role] = admin.token_create(role, role, topics=topics).text
    texts |= {role: admin.token_create(role, role).text for role in ("viewer", "operator", "admin")}
    for name in ("orders", "mail.eu", "other"):
        client.topic(name).open()
    statuses: dict[str, list[int]] = {}
    with serving(server.url, prefix, token=STATIC) as running:
        for role, text in texts.items():
            mine = {"Authorization": f"Bearer {text}"}
            statuses[role] = [
                Consumer(running.url, topic, text).ask(verb, body).status
                for topic in ("orders", "mail.eu", "other")
                for verb, body in (("messages", {"body": 1}), ("receive", {"wait": 0}))
            ]
            statuses[role] += [
                ask(running.url + path, headers=mine).status for path in (BASE, "/metrics")
            ]
        refused = Consumer(running.url, "other", texts["producer"]).ask("messages", {"body": 1})

    assert statuses == {
        "producer": [201, 403, 201, 403, 403, 403, 403, 403],
        "consumer": [403, 200, 403, 403, 403, 403, 403, 403],
        "viewer": [403, 403, 403, 403, 403, 403, 200, 200],
        "operator": [201, 403, 201, 403, 201, 403, 200, 200],
        "admin": [201, 200, 201, 200, 201, 200, 200, 200],
    }
    assert (refused.body["field"], "mail.*" in refused.body["detail"]) == ("topic", True)


def test_a_revoked_token_ends_its_polls(
    client: rmq.Client,
    server: Redis,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    open_polls: Callable[[], int],
) -> None:
    monkeypatch.setattr(authentication, "KEPT_S", 0.1)
    monkeypatch.setattr(guard, "STREAM_CHECK_S", 0.1)
    token = client.admin.token_create("c", "consumer", topics=["*"]).text
    client.topic("orders").open()
    with serving(server.url, prefix, token=STATIC) as running:
        waiting = Consumer(running.url, token=token).begin("receive", {"wait": 20})
        until(lambda: open_polls() == 1, "the poll")
        client.admin.token_revoke("c")

        assert answer_of(waiting)[0] == 401
        until(lambda: open_polls() == 0, "the end")
    waiting.close()


def test_a_consumer_sees_what_viewers_do_not(
    client: rmq.Client, server: Redis, prefix: str
) -> None:
    token = client.admin.token_create("c", "consumer", topics=["*"]).text
    client.topic("orders").send({"card": 7}, headers={"card": "8"})
    with serving(server.url, prefix, token=STATIC, redact=("card",)) as running:
        (delivery,) = Consumer(running.url, token=token).receive()

    assert (delivery["body"], delivery["headers"]) == ({"card": 7}, {"card": "8"})


# --- a repeated send -----------------------------------------------------------------------------


def test_a_send_with_an_idempotency_key_is_stored_once_and_says_so(
    client: rmq.Client, url: str
) -> None:
    client.topic("orders").open()
    key, consumer = {"Idempotency-Key": "a1"}, Consumer(url)

    first, again = (consumer.ask("messages", {"body": n}, key) for n in range(2))

    assert [first.body["status"], again.body["status"]] == ["stored", "duplicate"]
    assert first.body["id"] == again.body["id"]
    assert [each["body"] for each in consumer.receive(max=9)] == [0]
    both = consumer.ask("messages", {"body": 1, "dedup_key": "b"}, key)
    assert (both.status, both.body["field"]) == (400, "dedup_key")
