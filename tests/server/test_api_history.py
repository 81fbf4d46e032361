"""The acked messages of a history over HTTP: pages, cursors, lost messages, and what is hidden."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
import redis

import rmq
from rmq.kernel.core.keys import SlotKeys
from tests.conftest import Clock
from tests.server.conftest import Ask

PATH = "/topics/orders/history"
SMALL = rmq.History(keep=60, max_bytes=1 << 20)


def acked(client: rmq.Client, bodies: list[Any], **options: Any) -> rmq.Topic:
    """Send messages of a topic with a history, and ack each of them by itself."""
    topic = client.topic("orders", history=rmq.History(keep="1h", max_bytes="64MiB"), **options)
    settle(topic, bodies)
    return topic


def settle(topic: rmq.Topic, bodies: list[Any]) -> None:
    topic.send_many([rmq.Outgoing(body, headers={"k": "v"}, type="row") for body in bodies])
    with topic.consumer() as consumer:
        for _ in bodies:
            consumer.ack(consumer.receive(1, wait=1))


def texts(page: Any) -> list[str]:
    return [message["body"]["text"] for message in page["messages"]]


def fill(topic: rmq.Topic, count: int) -> None:
    """Ack messages of 250 kB, of which a small history keeps only the last ones."""
    settle(topic, ["x" * 250_000] * count)


def test_pages_have_each_acked_message_once_and_the_last_cursor_continues(
    api: Ask, client: rmq.Client
) -> None:
    topic = acked(client, list(range(5)), slots=2)

    first = api(f"{PATH}?limit=3").body
    second = api(f"{PATH}?limit=3&cursor={first['cursor']}").body
    assert (len(first["messages"]), first["is_last"]) == (3, False)
    assert (len(second["messages"]), second["is_last"]) == (2, True)
    assert sorted(texts(first) + texts(second)) == list("01234")
    rest = f"{PATH}?cursor={second['cursor']}"
    assert (api(rest).body["messages"], api(rest).body["is_last"]) == ([], True)
    settle(topic, ["new"])
    assert texts(api(rest).body) == ["new"]

    message = api(rest).body["messages"][0]
    stored = topic.history.read().messages[-1]
    assert {**message, "body": None, "acked_at": None} == {
        "id": str(stored.id), "slot": stored.slot, "entry": stored.entry, "acked_at": None,
        "body": None, "type": "row", "group": None, "priority": stored.priority,
        "headers": {"k": "v"}, "unreadable": "",
    }  # fmt: skip
    assert message["acked_at"].startswith(f"{stored.acked_at:%Y-%m-%dT%H:%M:%S}")
    slots = [api(f"{PATH}?slot={slot}").body["messages"] for slot in (0, 1)]
    assert [{each["slot"] for each in found} for found in slots] == [{0}, {1}]


def test_times_of_acks_select_messages(api: Ask, client: rmq.Client, clock: Clock) -> None:
    topic = acked(client, [0])
    for n in (1, 2):
        clock.advance(60)
        settle(topic, [n])
    at = quote(topic.history.read().messages[1].acked_at.isoformat())

    assert texts(api(f"{PATH}?since={at}").body) == ["1", "2"]
    assert texts(api(f"{PATH}?until={at}").body) == ["0"]


def test_messages_that_were_removed_before_they_were_read_are_an_error(
    api: Ask, client: rmq.Client
) -> None:
    topic = client.topic("orders", slots=2, history=SMALL)
    topic.open()
    begin = api(PATH).body["cursor"]
    fill(topic, 12)

    lost = api(f"{PATH}?cursor={begin}")
    assert (lost.status, lost.body["type"]) == (410, "urn:rmq:error:history-lost")
    assert lost.body["docs"].endswith("errors.md#historylost")
    assert "skip_lost=true" in lost.body["detail"]
    found = api(f"{PATH}?cursor={begin}&skip_lost=true&limit=500").body
    kept = {str(message.id) for message in topic.history.read(limit=500).messages}
    assert {each["id"] for each in found["messages"]} == kept
    assert 2 <= len(kept) < 12
    assert api(f"{PATH}?cursor={found['cursor']}").body["messages"] == []


@pytest.mark.parametrize(
    "position",
    ["", {"0": "x"}, {"0": "1"}, {"0": "1-"}, {"0": f"{1 << 64}-0"}, {"0": f"1-{1 << 64}"},
     {"0": 7}, {"x": "1-0"}, [0, "1-0"], None],
    ids=str,
)  # fmt: skip
def test_a_cursor_that_no_page_returned_is_refused(
    api: Ask, client: rmq.Client, position: Any
) -> None:
    acked(client, [1])
    cursor = base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")

    for junk in (cursor, "%25", cursor[:-1] + "!"):
        refused = api(f"{PATH}?cursor={junk}")
        assert (refused.status, refused.body["field"]) == (400, "cursor")


def test_a_cursor_behind_all_acks_finds_nothing(api: Ask, client: rmq.Client) -> None:
    acked(client, [1])
    most = (1 << 64) - 1
    position = json.dumps({"0": f"{most}-{most}", "9": "1-0"}).encode()

    page = api(f"{PATH}?cursor={base64.urlsafe_b64encode(position).decode()}").body
    assert (page["messages"], page["is_last"]) == ([], True)


def test_wrong_requests_are_refused(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("orders", slots=101)
    topic.open()
    none = api(PATH)
    assert (none.status, none.body["type"]) == (400, "urn:rmq:error:invalid")
    assert "keeps no history" in none.body["detail"]
    client.admin.topic_set("orders", history=SMALL)
    settle(topic, [1])

    for query, field in (
        ("", "slot"), ("slot=101", "slot"), ("limit=501", "limit"), ("slot=0&since=now", "since"),
        ("slot=0&since=2026-01-01T00:00:00", "since"), ("slot=0&skip_lost=perhaps", "skip_lost"),
    ):  # fmt: skip
        refused = api(f"{PATH}?{query}")
        assert (refused.status, refused.body["field"]) == (400, field), query
    assert api("/topics/other/history").body["type"] == "urn:rmq:error:topic-not-found"
    pages = [api(f"{PATH}?slot={slot}").body for slot in range(101)]
    assert sum(len(page["messages"]) for page in pages) == 1


def test_a_cursor_of_100_slots_is_accepted(api: Ask, client: rmq.Client) -> None:
    topic = acked(client, list(range(9)), slots=100)
    since = quote(topic.history.state().oldest.isoformat())  # type: ignore[union-attr]

    first = api(f"{PATH}?since={since}&limit=5").body
    second = api(f"{PATH}?since={since}&cursor={first['cursor']}").body
    assert sorted(texts(first) + texts(second)) == list("012345678")


def test_a_large_body_is_cut_and_a_damaged_record_is_shown(
    api: Ask, client: rmq.Client, prefix: str, raw: redis.Redis
) -> None:
    topic = acked(client, ["x" * 100_000])
    keys = SlotKeys(prefix, "orders", 0)
    member = topic.history.read().messages[0].id.member
    raw.xadd(keys.acked, {b"m": member + (4).to_bytes(4, "big") + b"\xffbad"})

    cut, damaged = api(PATH).body["messages"]
    assert (cut["body"]["is_truncated"], len(cut["body"]["text"])) == (True, 65_536)
    assert (damaged["body"]["kind"], damaged["headers"], damaged["type"]) == ("base64", {}, None)
    assert damaged["unreadable"]
