"""Programs that receive and settle messages over HTTP: leases, receipts, bodies."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import rmq
from rmq.features.http_consumers import receipts
from rmq.server.protocol import LimitedProtocol
from tests.server.http_clients import BASE, Consumer, answer_of, places
from tests.server.running import ask, serving, until
from tests.servers import Server as Redis

# --- leases and receipts -------------------------------------------------------------------------


def test_a_message_is_received_under_a_lease_and_settled_at_another_server(
    client: rmq.Client, url: str, other_url: str
) -> None:
    topic = client.topic("orders")
    sent = topic.send({"n": 1}, headers={"h": "v"}, type="paid", priority=20)

    (delivery,) = Consumer(url).receive(lease=60)

    assert places(client) == {"waiting": 0, "in_flight": 1, "dead": 0}
    assert delivery["id"] == str(sent.id)
    shown = ("body", "encoding", "type", "headers", "priority", "attempt", "group", "due")
    assert [delivery[name] for name in shown] == [
        {"n": 1}, "json", "paid", {"h": "v"}, 20, 1, None, None,
    ]  # fmt: skip
    settled = Consumer(other_url).settle("ack", [delivery])
    assert (settled.status, settled.body) == (200, {"settled": 1, "lost": []})
    assert client.admin.stats("orders")["settled"] == 1
    assert places(client) == {"waiting": 0, "in_flight": 0, "dead": 0}
    assert topic.get(sent.id) is None


def test_a_receipt_is_valid_after_its_server_has_stopped(
    client: rmq.Client, server: Redis, prefix: str, url: str
) -> None:
    client.topic("orders").send(1)
    with serving(server.url, prefix) as stopped:
        (delivery,) = Consumer(stopped.url).receive()

    assert places(client)["in_flight"] == 1
    assert Consumer(url).settle("ack", [delivery]).status == 200


def test_each_verb_does_what_it_does_in_python(client: rmq.Client, url: str) -> None:
    topic = client.topic("orders", retry="immediate", max_retries=4)
    sent = topic.send(1)
    consumer = Consumer(url)
    attempts = []
    for verb, options in (
        ("nack", {"error": "no"}),
        ("release", {}),
        ("reject", {"reason": "bad"}),
    ):
        (delivery,) = consumer.receive()
        attempts.append((delivery["attempt"], delivery["retries_left"]))
        assert consumer.settle(verb, [delivery], **options).body == {"settled": 1, "lost": []}

    assert attempts == [(1, 4), (2, 3), (2, 3)]
    dead = topic.get(sent.id)
    assert dead is not None
    assert dead.failure is not None
    assert (dead.queue, dead.failure.error) == ("dead", "bad")
    assert [each.error for each in dead.attempts] == ["bad", "no"]


def test_a_nack_and_a_release_wait_for_their_delay(
    client: rmq.Client, url: str, clock: Any
) -> None:
    client.topic("orders").send_many([rmq.Outgoing(n) for n in range(2)])
    consumer = Consumer(url)
    failed, given = consumer.receive(max=2)
    consumer.settle("nack", [failed], delay=30)
    consumer.settle("release", [given], delay=60)

    assert consumer.receive() == []
    clock.advance(31)
    assert [each["id"] for each in consumer.receive(max=2)] == [failed["id"]]
    clock.advance(31)
    assert [each["id"] for each in consumer.receive(max=2)] == [given["id"]]


def test_an_extended_lease_has_a_new_receipt_and_the_former_one_is_void(
    client: rmq.Client, url: str, other_url: str, clock: Any
) -> None:
    client.topic("orders").send(1)
    (delivery,) = Consumer(url).receive(lease=10)

    extended = Consumer(other_url).settle("extend", [delivery], lease=600).body["extended"]

    assert [each["former"] for each in extended] == [delivery["receipt"]]
    assert extended[0]["deadline"] > delivery["deadline"]
    clock.advance(300)
    client.admin.rollback("orders")
    assert Consumer(url).settle("ack", [delivery]).status == 409
    assert Consumer(url).settle("ack", extended).status == 200


def test_an_extend_tells_that_the_cancellation_of_a_message_was_requested(
    client: rmq.Client, url: str
) -> None:
    topic = client.topic("orders")
    sent = topic.send(1)
    (delivery,) = Consumer(url).receive()
    topic.cancel(sent.id, running=True)

    (extended,) = Consumer(url).settle("extend", [delivery]).body["extended"]

    assert extended["cancelled"] is True


def test_a_lease_that_has_ended_is_told_and_its_message_comes_again(
    client: rmq.Client, url: str, clock: Any
) -> None:
    client.topic("orders", retry="immediate").send(1)
    consumer = Consumer(url)
    (late,) = consumer.receive(lease=5)
    clock.advance(10)
    client.admin.rollback("orders")

    refused = consumer.settle("ack", [late])

    assert (refused.status, refused.body["type"]) == (409, "urn:rmq:error:lease-lost")
    assert refused.body["field"] == "receipts"
    (again,) = consumer.receive()
    assert (again["id"], again["attempt"]) == (late["id"], 2)
    partly = consumer.settle("ack", [late, again])
    assert (partly.status, partly.body) == (200, {"settled": 1, "lost": [late["receipt"]]})


def test_a_repeated_ack_settles_nothing_twice(client: rmq.Client, url: str) -> None:
    client.topic("orders").send_many([rmq.Outgoing(n) for n in range(3)])
    consumer = Consumer(url)
    found = consumer.receive(max=3)

    assert consumer.settle("ack", [*found, *found]).body == {"settled": 3, "lost": []}
    assert consumer.settle("ack", found).status == 409
    assert client.admin.stats("orders")["settled"] == 3


def test_the_result_and_the_batch_of_a_message_end_with_an_ack_over_http(
    client: rmq.Client, url: str
) -> None:
    topic = client.topic("orders")
    with client.batch("b", then=(topic, rmq.Outgoing("all", type="end"))) as batch:
        batch.send(topic, 1, keep_result=60)
    consumer = Consumer(url)
    (member,) = consumer.receive()
    consumer.settle("ack", [member])

    state = topic.result(member["id"]).read()
    assert state.outcome is not None
    assert state.outcome.outcome == "succeeded"
    (callback,) = consumer.receive(wait=5)
    assert (callback["body"], callback["type"]) == ("all", "end")


@pytest.mark.parametrize("change", ["first", "middle", "last", "cut", "longer", "empty", "text"])
def test_a_receipt_that_was_not_signed_is_refused_and_nothing_is_done(
    client: rmq.Client, url: str, change: str
) -> None:
    client.topic("orders").send(1)
    consumer = Consumer(url)
    (good,) = consumer.receive()
    text = good["receipt"]
    other = {"A": "B"}
    middle = len(text) // 2
    changed = {
        "first": other.get(text[0], "A") + text[1:],
        "middle": text[:middle] + other.get(text[middle], "A") + text[middle + 1 :],
        "last": text[:-1] + other.get(text[-1], "A"),
        "cut": text[:-4], "longer": text + "AAAA", "empty": "=", "text": "not a receipt \u00e9",
    }[change]  # fmt: skip

    refused = consumer.ask("ack", {"receipts": [text, changed]})

    assert (refused.status, refused.body["type"]) == (400, "urn:rmq:error:bad-receipt")
    assert (refused.body["field"], "number 2" in refused.body["detail"]) == ("receipts", True)
    assert places(client)["in_flight"] == 1
    assert consumer.settle("ack", [good]).status == 200


def test_a_receipt_of_another_topic_or_another_prefix_is_refused(
    client: rmq.Client, server: Redis, url: str
) -> None:
    client.topic("orders").send(1)
    client.topic("mail").open()
    (delivery,) = Consumer(url).receive()

    refused = Consumer(url, "mail").settle("ack", [delivery])

    assert (refused.status, refused.body["type"]) == (400, "urn:rmq:error:bad-receipt")
    assert "of another topic" in refused.body["detail"]
    with (
        rmq.Client(server.url, prefix="elsewhere") as elsewhere,
        serving(server.url, "elsewhere") as foreign,
    ):
        elsewhere.topic("orders").open()
        assert Consumer(foreign.url).settle("ack", [delivery]).status == 400
    assert Consumer(url).settle("ack", [delivery]).status == 200


def test_after_a_change_of_the_secret_servers_accept_the_receipts_of_both(
    client: rmq.Client, server: Redis, prefix: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic("orders").send_many([rmq.Outgoing(n) for n in range(2)])
    (former,) = Consumer(url).receive()
    with server.raw() as raw:
        raw.set(f"{prefix}:server_secret", "another")
    monkeypatch.setattr(receipts, "UNKNOWN_S", 0.0)
    with serving(server.url, prefix) as started_later:
        (newer,) = Consumer(started_later.url).receive()

    assert Consumer(url).settle("ack", [newer]).status == 200
    assert Consumer(url).settle("ack", [former]).status == 200


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "body", "shown"),
    [
        ("json", {"a": [1, None, "\u00e9"]}, ({"a": [1, None, "\u00e9"]}, "json", "json")),
        ("json", None, (None, "json", "json")),
        ("msgpack", {"a": 1.5}, ({"a": 1.5}, "json", "json")),
        ("bytes", b"\x00\xff", (base64.b64encode(b"\x00\xff").decode(), "base64", "bytes")),
        ("msgpack", {1: 2}, (base64.b64encode(b"\x81\x01\x02").decode(), "base64", "msgpack")),
        ("msgpack", [b"x"], (base64.b64encode(b"\x91\xc4\x01x").decode(), "base64", "msgpack")),
    ],
)
def test_a_body_is_json_if_json_can_express_it_and_else_base64(
    client: rmq.Client, url: str, codec: str, body: Any, shown: tuple[Any, str, str]
) -> None:
    client.topic("orders", codec=codec).send(body)

    (delivery,) = Consumer(url).receive()

    assert (delivery["body"], delivery["encoding"], delivery["codec"]) == shown


def test_a_compressed_body_is_json_and_numbers_keep_their_digits(
    client: rmq.Client, server: Redis, prefix: str, url: str
) -> None:
    client.topic("packed", codec=rmq.Compressed(above=1)).send({"a": "x" * 500})
    assert Consumer(url, "packed").receive()[0]["body"] == {"a": "x" * 500}

    sent = b'{"body": 1.10000000000000000000000000001, "id": "%s"}'
    id = client.topic("orders").new_id()
    path = f"{url}{BASE}/orders/messages"
    assert ask(path, "POST", sent % str(id).encode(), {"Content-Type": "application/json"})
    client.topic("orders").send(12345678901234567890123)
    found = Consumer(url).receive(max=2)
    assert 12345678901234567890123 in [each["body"] for each in found]


# --- waiting -------------------------------------------------------------------------------------


def test_a_poll_waits_for_a_message_and_polls_get_messages_in_their_order(
    client: rmq.Client, url: str, open_polls: Callable[[], int]
) -> None:
    topic = client.topic("orders")
    topic.open()
    consumer = Consumer(url)
    waiting = []
    for n in range(3):
        waiting.append(consumer.begin("receive", {"wait": 20}))
        until(lambda n=n: open_polls() == n + 1, "the poll")

    topic.send_many([rmq.Outgoing(n) for n in range(3)])

    answers = [answer_of(each) for each in waiting]
    assert [(status, len(body["deliveries"])) for status, body in answers] == [(200, 1)] * 3
    assert sorted(body["deliveries"][0]["body"] for _, body in answers) == [0, 1, 2]
    until(lambda: open_polls() == 0, "the end")
    for each in waiting:
        each.close()


def test_a_poll_without_a_message_ends_with_an_empty_list(client: rmq.Client, url: str) -> None:
    client.topic("orders").open()
    began = time.monotonic()

    assert Consumer(url).receive(wait=0.3) == []

    assert time.monotonic() - began >= 0.3


def test_polls_with_other_leases_get_their_own(client: rmq.Client, url: str, clock: Any) -> None:
    client.topic("orders", lease=30).send_many([rmq.Outgoing(n) for n in range(2)])
    consumer = Consumer(url)
    (short,) = consumer.receive(lease=2, wait=5)
    (long,) = consumer.receive(wait=5)
    clock.advance(10)
    client.admin.rollback("orders")

    assert consumer.settle("ack", [short]).status == 409
    assert consumer.settle("ack", [long]).status == 200


def test_a_client_that_disconnects_while_it_waits_gets_no_message(
    client: rmq.Client, url: str, open_polls: Callable[[], int]
) -> None:
    topic = client.topic("orders")
    topic.open()
    consumer = Consumer(url)
    waiting = consumer.begin("receive", {"wait": 20})
    until(lambda: open_polls() == 1, "the poll")
    waiting.close()
    until(lambda: open_polls() == 0, "the end")

    topic.send(1)

    (delivery,) = consumer.receive(wait=5)
    assert delivery["attempt"] == 1  # it may have been handed over, and released, before


def abandoned(client: rmq.Client, url: str) -> dict[str, int]:
    """A client leaves while a large reply is written to it; what becomes of the message."""
    topic = client.topic("orders", codec="bytes", max_body=12_000_000, max_retries=3)
    topic.send(bytes(8_000_000))  # more than the buffers of the connection hold
    waiting = Consumer(url).begin("receive", {"wait": 20, "lease": 600})
    waiting.recv(1000)
    waiting.close()
    with suppress(AssertionError):
        until(lambda: places(client)["in_flight"] == 0, "the release", 3)
    return places(client)


def test_a_client_that_disconnects_before_its_reply_is_written_costs_no_retry(
    client: rmq.Client, url: str
) -> None:
    assert abandoned(client, url) == {"waiting": 1, "in_flight": 0, "dead": 0}

    with client.topic("orders").consumer() as consumer:
        (delivery,) = consumer.receive()
    assert (delivery.attempt, delivery.retries_left) == (1, 3)


def test_a_server_that_did_not_look_whether_a_reply_is_written_would_be_noticed(
    client: rmq.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def careless(self: Any, wait_s: float) -> bool:
        return True

    monkeypatch.setattr(LimitedProtocol, "written", careless)

    assert abandoned(client, url) == {"waiting": 0, "in_flight": 1, "dead": 0}


def test_a_server_that_stops_ends_its_polls_at_once_and_keeps_the_leases(
    client: rmq.Client, server: Redis, prefix: str, url: str, open_polls: Callable[[], int]
) -> None:
    topic = client.topic("orders")
    topic.send(1)
    with serving(server.url, prefix) as running:
        consumer = Consumer(running.url)
        (delivery,) = consumer.receive()
        waiting = consumer.begin("receive", {"wait": 20})
        stream = consumer.stream()
        until(lambda: open_polls() == 2, "the poll and the stream")
        began = time.monotonic()

    assert answer_of(waiting) == (200, {"deliveries": []})
    assert stream.read().strip() == b""
    assert time.monotonic() - began < 10
    assert Consumer(url).settle("ack", [delivery]).status == 200
    waiting.close()


def test_a_topic_that_does_not_exist_is_told_and_is_not_created(
    client: rmq.Client, url: str
) -> None:
    for verb, body in (("receive", {}), ("stream", {}), ("ack", {"receipts": ["x"]})):
        refused = Consumer(url, "none").ask(verb, body)
        assert refused.status == (400 if verb == "ack" else 404), refused
    assert client.admin.topics() == []


def test_an_outage_of_redis_is_told_to_polls_and_ends_streams(
    own_server: Redis, prefix: str, open_polls: Callable[[], int]
) -> None:
    with rmq.Client(own_server.url, prefix=prefix) as client:
        client.topic("orders").open()
    with serving(own_server.url, prefix) as running:
        consumer = Consumer(running.url)
        waiting, stream = consumer.begin("receive", {"wait": 20}), consumer.stream()
        until(lambda: open_polls() == 2, "the poll and the stream")
        own_server.kill()

        status, body = answer_of(waiting)
        assert stream.read().strip() == b""  # a whole answer: the stream has an end

    assert (status, body["type"]) == (503, "urn:rmq:error:unavailable")
    waiting.close()
