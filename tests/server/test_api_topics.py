"""`/api/v1`: verbs on whole topics: resize, pauses of sends."""

from __future__ import annotations

import pytest

import rmq
from tests.server.conftest import Ask


def test_a_topic_is_resized_step_by_step(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", slots=1)
    topic.send(1)

    dry = api("/topics/orders/resize", "POST", {"slots": 2, "dry_run": True}).body
    assert (dry["before"], dry["after"], dry["waiting"], dry["pending"]) == (1, 2, 1, 1)
    assert api("/topics/orders").body["resizing"] is None

    begun = api("/topics/orders/resize", "POST", {"slots": 2}).body
    assert (begun["pending"], begun["dry_run"]) == (1, False)
    shown = api("/topics/orders").body
    assert shown["settings"]["slots"] == 2
    assert (shown["resizing"]["before"], shown["resizing"]["pending"]) == (1, 1)

    with topic.consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.ack()
    ended = api("/topics/orders/resize", "POST", {"slots": 2}).body
    assert (ended["pending"], api("/topics/orders").body["resizing"]) == (0, None)


@pytest.mark.parametrize("slots", [3, 0, 1025])
def test_a_number_of_slots_that_cannot_be_is_refused(
    api: Ask, client: rmq.Client, slots: int
) -> None:
    client.topic("orders", slots=2).open()

    refused = api("/topics/orders/resize", "POST", {"slots": slots})

    assert (refused.status, refused.body["field"]) == (400, "slots")
    assert client.admin.settings("orders").slots == 2
    assert api("/topics/none/resize", "POST", {"slots": 2}).status == 404


def test_sends_are_paused_and_resumed_apart_from_receives(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders")
    topic.send(1)

    paused = api("/topics/orders/pause", "POST", {"verb": "send", "by": "me", "why": "move"})
    assert (paused.body["by"], paused.body["why"]) == ("me", "move")
    shown = api("/topics/orders").body
    assert (shown["paused"], shown["sends_paused"]) == (None, paused.body)
    refused = api("/topics/orders/messages", "POST", {"body": 2})
    assert (refused.status, refused.body["type"]) == (409, "urn:rmq:error:conflict")
    assert "move" in refused.body["detail"]
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.ack()

    assert api("/topics/orders/resume", "POST", {"verb": "receive"}).body == {"was": None}
    assert api("/topics/orders/messages", "POST", {"body": 2}).status == 409
    assert api("/topics/orders/resume", "POST", {"verb": "send"}).body["was"] == paused.body
    assert api("/topics/orders/messages", "POST", {"body": 2}).status == 201
    assert api("/topics/orders/pause", "POST", {"verb": "take"}).body["field"] == "verb"


def test_both_pauses_end_at_once(api: Ask, client: rmq.Client) -> None:
    client.topic("orders").open()

    api("/topics/orders/pause", "POST", {"verb": "both", "why": "deploy"})

    shown = api("/topics/orders").body
    assert shown["paused"]["why"] == shown["sends_paused"]["why"] == "deploy"
    assert api("/topics/orders/resume", "POST", {}).body["was"] == shown["paused"]
    shown = api("/topics/orders").body
    assert (shown["paused"], shown["sends_paused"]) == (None, None)


def test_due_counts_are_a_histogram_over_time(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", slots=4)
    topic.send_many([rmq.Outgoing(n, delay=30) for n in range(20)])
    topic.send("far", delay=864_000)
    topic.send("at once")

    found = api("/topics/orders/stats/due")

    assert found.status == 200
    assert found.body["topic"] == "orders"
    counts = found.body["counts"]
    assert (counts[0], counts[-1]) == (
        {"within_s": 0, "messages": 0},
        {"within_s": None, "messages": 1},
    )
    assert [each["messages"] for each in counts[1:-1]] == [20, 0, 0, 0, 0, 0, 0]
    assert api("/topics/none/stats/due").status == 404
