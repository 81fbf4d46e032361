"""Large bodies pass the scripts by: what a caller sends and receives is what it always was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import scripts
from tests.integration.driven import both_clients, connect
from tests.servers import Server

LARGE = "x" * 40_000


def bodies(server: Server, name: str, slot: int = 0) -> list[bytes]:
    with server.raw() as redis:
        return list(redis.hvals(f"rmq:{{{name}_{slot}}}:bodies"))


@both_clients
def test_a_large_body_stands_beside_its_record_and_goes_with_it(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name)
    consumer = topic.consumer()

    topic.send(LARGE)
    assert [len(body) for body in bodies(server, name)] == [len(LARGE) + 2]
    (delivery,) = consumer.receive()
    assert delivery.body == LARGE
    consumer.ack([delivery])

    assert bodies(server, name) == []


@pytest.mark.parametrize(
    ("sizes", "apart"),
    [
        ([32_767], 0),
        ([32_768], 1),
        ([4096] * 8, 8),
        ([4096] * 7 + [4095] * 9, 0),
        ([4096] * 8 + [4095] * 9, 8),
        ([100] * 900, 0),
    ],
)
def test_bodies_of_4_kib_stand_apart_where_a_call_has_32_kib_of_them(
    api: Any, name: str, server: Server, sizes: list[int], apart: int
) -> None:
    topic = api.topic(name, codec="bytes")
    sent = [bytes([n % 256]) * size for n, size in enumerate(sizes)]

    topic.send_many(map(rmq.Outgoing, sent))

    assert len(bodies(server, name)) == apart
    received = []
    with topic.consumer() as consumer:
        while batch := consumer.receive(1000, wait=0):
            received += [delivery.body for delivery in batch]
            consumer.ack(batch)
    assert received == sent


def test_every_option_of_a_send_goes_with_a_large_body(api: Any, name: str) -> None:
    topic = api.topic(name, slots=2, codec=rmq.Compressed("json", above=100_000))
    topic.send(LARGE, headers={"a": "b"}, priority=900, slot_basis="k", expires=60)
    topic.send([LARGE], dedup_key="once", slot_basis="k")
    again = topic.send([LARGE, 2], dedup_key="once", slot_basis="k")
    topic.send(LARGE, delay=60, slot_basis="k")

    first, second = topic.consumer().receive(10)

    assert again.status == "duplicate"
    assert (first.body, first.headers, first.priority) == (LARGE, {"a": "b"}, 900)
    assert second.body == [LARGE]
    assert api.admin.stats(name)["later"] == 1


def test_whoever_looks_sees_the_body(api: Any, name: str) -> None:
    topic = api.topic(name, slots=3)
    ids = [topic.send([n, LARGE], slot_basis=str(n)).id for n in range(5)]
    topic.send("small")

    peeked = api.admin.peek(name, 10)

    assert sorted(len(message.body) for message in peeked) == [2] * 5 + [5]
    assert topic.get(ids[3]).body == [3, LARGE]


def test_a_query_reads_large_bodies(api: Any, name: str) -> None:
    topic = api.topic(name, codec="bytes")
    sent = [b"%03d" % n + LARGE.encode() for n in range(20)]
    topic.send_many(map(rmq.Outgoing, sent))
    query = topic.query("0" * 32, "here")
    ends = query.take({}, 100)

    blocks = list(query.read(0, 0, ends[0]))

    assert [record[8:] for block in blocks for record in block.records] == sent


def test_a_body_that_somebody_removed_sends_its_message_to_the_dead_queue(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name)
    topic.send(LARGE)
    topic.send("small")
    with server.raw() as redis:
        redis.delete(f"rmq:{{{name}_0}}:bodies")
    (seen, _) = api.admin.peek(name, 10)
    assert "its large body is missing" in seen.unreadable

    (delivery,) = topic.consumer().receive(10)

    assert delivery.body == "small"
    (dead,) = api.admin.peek(name, 10, "dead")
    assert "its large body is missing" in dead.failure.error


def test_a_wrong_type_at_the_key_of_the_bodies_is_named_and_nothing_is_lost(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name)
    topic.send(LARGE)
    key = f"rmq:{{{name}_0}}:bodies"
    consumer = topic.consumer()
    with server.raw() as redis:
        redis.rename(key, key + "-kept")
        redis.set(key, "somebody was here")

        with pytest.raises(rmq.ScriptFailed, match=r"bodies.*a string, RMQ keeps a hash"):
            topic.send(LARGE)
        with pytest.raises(rmq.RMQError, match="bodies"):
            consumer.receive()

        redis.rename(key + "-kept", key)
    with topic.consumer() as other:
        assert other.receive() == [], "the first consumer's take is not answered yet"
    (delivery,) = consumer.receive()  # it hands back first what the failed take had leased
    assert delivery.body == LARGE
    assert api.admin.stats(name)["accepted"] == 1


def test_at_maxmemory_a_large_body_is_refused_whole_and_drained(
    kind: str, own_server: Server
) -> None:
    with connect(kind, own_server.url, retry_for=1) as api, own_server.raw() as redis:
        topic = api.topic("orders")
        topic.send(LARGE)
        redis.config_set("maxmemory", "1")

        with pytest.raises(rmq.QueueFull):
            topic.send(LARGE)

        assert len(bodies(own_server, "orders")) == 1
        consumer = topic.consumer()
        (delivery,) = consumer.receive()
        assert delivery.body == LARGE
        consumer.ack([delivery])
        assert bodies(own_server, "orders") == []


@both_clients
def test_forgotten_scripts_are_loaded_again_inside_a_transaction(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name, slots=4)
    with server.raw() as redis:
        redis.script_flush()
        topic.send(LARGE)
        redis.script_flush()
        topic.send_many([rmq.Outgoing([n, LARGE], slot_basis=str(n)) for n in range(12)])

    received = topic.consumer().receive(100)

    assert len(received) == 13
    assert sum(len(bodies(server, name, slot)) for slot in range(4)) == 13


def test_a_stage_keeps_large_bodies_in_its_records(api: Any, name: str, server: Server) -> None:
    topic = api.topic(name)
    stage = topic.stage()

    stage.push([rmq.Outgoing([n, LARGE]) for n in range(3)])
    topic.publish([stage.staged])

    assert bodies(server, name) == []
    assert [delivery.body[0] for delivery in topic.consumer().receive(10)] == [0, 1, 2]


@both_clients
def test_a_client_that_has_received_large_bodies_acks_a_hundred_at_a_time(
    api: Any, name: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    ack = scripts.ack

    def noting(context: Any, keys: Any, session: Any, ids: Sequence[bytes], *rest: Any) -> Any:
        sizes.append(len(ids))
        return ack(context, keys, session, ids, *rest)

    monkeypatch.setattr(scripts, "ack", noting)
    topic = api.topic(name)
    for _ in range(3):
        topic.send_many([rmq.Outgoing("x" * 5000) for _ in range(80)])
    with topic.consumer() as consumer:
        assert consumer.ack(consumer.receive(240)) == []
    assert sizes == [100, 100, 40]
    assert bodies(server, name) == []


@both_clients
def test_in_a_topic_with_limits_for_each_key_every_body_of_4_kib_stands_apart(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name, limit=rmq.Concurrency(5, key="tenant"))

    topic.send("x" * 4093, headers={"tenant": "a"})  # 4095 bytes of JSON
    topic.send("x" * 4094, headers={"tenant": "b"})
    topic.send("y" * 4094)

    assert len(bodies(server, name)) == 2
    with topic.consumer() as consumer:
        assert [len(d.body) for d in consumer.receive(10)] == [4093, 4094, 4094]
