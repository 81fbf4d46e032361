"""Types of messages, from the send to the dead letter."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import rmq
from rmq.errors import InvalidType, InvalidValue
from tests.integration.driven import both_clients


def test_a_type_is_on_the_delivery_and_on_the_message_and_is_no_header(api: Any, name: str) -> None:
    topic = api.topic(name)
    sent = topic.send({"id": 1}, type="order.refunded", headers={"lang": "en"})

    message = topic.get(sent.id)
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1)
        seen = (delivery.type, dict(delivery.headers), dict(delivery.marks), delivery.body)
        consumer.ack([delivery])

    assert (message.type, message.headers) == ("order.refunded", {"lang": "en"})
    assert seen == (
        "order.refunded", {"lang": "en"}, {"rmq-type": "order.refunded"}, {"id": 1},
    )  # fmt: skip


@both_clients
def test_send_many_mixes_types(api: Any, name: str) -> None:
    topic = api.topic(name)
    types = [None, "a", "b", "a", None] * 8
    topic.send_many(
        rmq.Outgoing(n, type=message_type, delay=0 if n % 2 else None)
        for n, message_type in enumerate(types)
    )

    with topic.consumer() as consumer:
        found = {d.body: d.type for d in consumer.receive(100)}

    assert found == dict(enumerate(types))


@pytest.mark.parametrize("size", [10, 5_000, 40_000])
@both_clients
def test_one_send_and_many_store_a_typed_message_alike(
    api: Any, name: str, raw: redis.Redis, size: int
) -> None:
    topic = api.topic(name, codec="bytes")
    body = b"b" * size
    sent = topic.send(body, type="a.b", priority=200)
    (other,) = topic.send_many([rmq.Outgoing(body, type="a.b", priority=200)])

    stored = list(raw.hgetall(f"rmq:{{{name}_0}}:records").values())
    assert len({record[:4] for record in stored}) == 1
    assert len({len(record) for record in stored}) == 1
    assert raw.hlen(f"rmq:{{{name}_0}}:bodies") == (2 if size == 40_000 else 0)
    for each in (sent, other):
        message = topic.get(each.id)
        assert (message.type, message.body, message.priority) == ("a.b", body, 200)


def test_a_message_without_a_type_has_none(api: Any, name: str) -> None:
    topic = api.topic(name)
    sent = topic.send(1)

    assert topic.get(sent.id).type is None
    with topic.consumer() as consumer:
        assert consumer.receive(1)[0].type is None


@pytest.mark.parametrize("merge", ["first", "last", "collect"])
def test_messages_of_two_types_do_not_merge(api: Any, name: str, merge: Any) -> None:
    topic = api.topic(name)
    options = {"merge_key": "k", "time_range": 60, "merge": merge}
    results = [topic.send(n, type=kind, **options) for n, kind in enumerate("aabb")]
    results.append(topic.send(4, **options))

    statuses = [result.status for result in results]
    messages = [topic.get(results[n].id) for n in (0, 2, 4)]

    assert statuses == ["stored", "merged", "stored", "merged", "stored"]
    assert [(message.type, message.merge_key) for message in messages] == [
        ("a", "k"), ("b", "k"), (None, "k"),
    ]  # fmt: skip
    bodies = {"first": [0, 2, 4], "last": [1, 3, 4], "collect": [[0, 1], [2, 3], [4]]}
    assert [message.body for message in messages] == bodies[merge]


@pytest.mark.parametrize(
    ("given", "error"), [("", InvalidValue), ("a b", InvalidValue), (7, InvalidType)]
)
def test_what_is_no_type_is_not_sent(api: Any, name: str, given: Any, error: Any) -> None:
    topic = api.topic(name)
    topic.open()
    for options in ({}, {"headers": {"a": "b"}}, {"merge_key": "k", "time_range": 1}):
        with pytest.raises(error, match="type: "):
            topic.send(1, type=given, **options)

    assert api.admin.peek(name) == []


def test_a_merge_key_does_not_begin_as_stored_ones_do(api: Any, name: str) -> None:
    with pytest.raises(InvalidValue, match="merge_key: it begins with NUL"):
        api.topic(name).send(1, merge_key="\0a\0k", time_range=1)


@both_clients
def test_dead_letters_are_redriven_and_purged_by_type(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send_many(rmq.Outgoing(n, type=kind) for n, kind in enumerate(["a", "b", None]))
    with topic.consumer() as consumer:
        consumer.reject(consumer.receive(3), "why")

    redriven = api.admin.redrive(name, type="a")
    purged = api.admin.purge(name, "dead", type="b")

    assert (redriven.matched, redriven.sent, purged) == (1, 1, 1)
    assert [message.type for message in api.admin.peek(name)] == ["a"]
    assert [message.type for message in api.admin.peek(name, queue="dead")] == [None]
    with pytest.raises(InvalidValue, match="type: "):
        api.admin.redrive(name, type="a b")


def test_staged_messages_keep_their_type(api: Any, name: str) -> None:
    topic = api.topic(name)
    stage = topic.stage()
    stage.push([rmq.Outgoing(1, type="a"), rmq.Outgoing(2)])
    topic.publish([stage.staged])

    with topic.consumer() as consumer:
        assert [(d.body, d.type) for d in consumer.receive(2)] == [(1, "a"), (2, None)]
