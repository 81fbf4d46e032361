"""The batch read: what it shows of each queue, in how many parts, and that it takes nothing."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

import rmq
from rmq.errors import InvalidValue
from spark_connector import options, reader, schema
from spark_connector.decode import fingerprint
from spark_connector.reader import RmqReader, SnapshotPart
from spark_connector.schema import snapshot_schema
from tests.servers import Server


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=3)
    made.open()
    return made


def make(server: Server, topic: rmq.Topic, **given: object) -> RmqReader:
    asked = {"url": server.url, "subscribe": topic.name, "queue": "all"}
    asked |= {key: str(value) for key, value in given.items()}
    found = options.snapshot(asked)
    return RmqReader(found, snapshot_schema(found.headers))


def rows(of: RmqReader, looks: list[SnapshotPart] | None = None) -> list[dict[str, Any]]:
    return [
        row
        for look in (of.partitions() if looks is None else looks)
        for batch in pickle.loads(pickle.dumps(of)).read(pickle.loads(pickle.dumps(look)))
        for row in batch.to_pylist()
    ]


def fill(topic: rmq.Topic, count: int) -> None:
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(count)])


def bury(topic: rmq.Topic, *errors: str) -> None:
    for error in errors:
        topic.send(error)
    with topic.consumer() as consumer:
        for delivery in consumer.receive(100):
            delivery.reject(str(delivery.body))


def test_a_batch_ends_where_its_bodies_are_large_once_decompressed(
    server: Server, topic: rmq.Topic, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = client.topic(topic.name, codec=rmq.Compressed("bytes"))
    packed.send_many([rmq.Outgoing(bytes(40_000), slot_basis="one") for _ in range(5)])
    monkeypatch.setattr(schema, "VALUES_BYTES", 70_000)
    found = make(server, topic, queue="store")

    batches = [batch for look in found.partitions() for batch in found.read(look)]

    assert sorted(batch.num_rows for batch in batches) == [1, 2, 2]
    assert all(len(row["value"]) == 40_000 for batch in batches for row in batch.to_pylist())


def test_each_queue_shows_what_it_holds_and_keeps_it(
    client: rmq.Client, server: Server, topic: rmq.Topic
) -> None:
    bury(topic, "order 17 of 'ann' failed", "order 9 of 'bob' failed", "no route")
    waiting = topic.send("waits", priority=700, delay=60, headers={"a": "b"}, merge_key=None)
    topic.send("leased")
    with topic.consumer() as consumer:
        (leased,) = consumer.receive(1)
        topic.send("held")
        topic.query("a" * 32, "here").take({})
        before = client.admin.stats(topic.name)

        found = {row["value"]: row for row in rows(make(server, topic, includeHeaders="true"))}

        after = client.admin.stats(topic.name)
        before["now_ms"] = after["now_ms"]
        assert after == before
        deadline = leased.deadline
    dead = {found[v]["error_fingerprint"] for v in found if b"order" in v}
    assert len(found) == 6
    assert len(dead) == 1
    assert found[b'"no route"']["error_fingerprint"] not in dead
    assert found[b'"no route"']["reason"] == "rejected"
    assert found[b'"no route"']["error"] == "no route"
    assert abs(found[b'"no route"']["died"].timestamp() - time.time()) < 60
    one = found[b'"waits"']
    assert (one["queue"], one["message_id"]) == ("store", str(waiting.id))
    assert (one["priority"], one["headers"], one["attempt"]) == (700, [("a", "b")], 0)
    assert one["deliver_at"] > one["timestamp"]
    assert found[b'"leased"']["lease_until"] == deadline
    assert not found[b'"leased"']["held_by_query"]
    assert found[b'"held"']["held_by_query"]
    assert found[b'"held"']["lease_until"] is None


def test_a_queue_may_be_named_as_people_say(server: Server, topic: rmq.Topic) -> None:
    for body in ("leased", "waits", "waits too"):
        topic.send(body)
    with topic.consumer() as consumer:
        assert len(consumer.receive(1)) == 1

        waiting = rows(make(server, topic, queue="waiting"))
        in_flight = rows(make(server, topic, queue="in flight"))

    assert [row["queue"] for row in waiting] == ["store", "store"]
    assert [row["queue"] for row in in_flight] == ["prepare"]


def test_parts_are_cut_by_slot_and_score_and_hold_each_message_once(
    server: Server, topic: rmq.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, 600)
    monkeypatch.setattr(reader, "PART_MESSAGES", 90)

    few = make(server, topic, queue="store")
    many = make(server, topic, queue="store", minPartitions=30, fetchSize=7)

    assert 6 < len(few.partitions()) < 12
    assert 30 <= len(many.partitions()) <= 33
    for one in (few, many):
        assert sorted(int(row["value"]) for row in rows(one)) == list(range(600))


def test_a_limit_and_slots_bound_the_look(server: Server, topic: rmq.Topic) -> None:
    fill(topic, 100)

    assert len(rows(make(server, topic, limit=17, minPartitions=8))) == 17
    assert {row["slot"] for row in rows(make(server, topic, slots="0,2"))} == {0, 2}
    with pytest.raises(InvalidValue, match=r"slots: 3; topic .* has 3, numbered from 0"):
        make(server, topic, slots="3").partitions()


def test_an_empty_topic_has_no_parts(server: Server, topic: rmq.Topic) -> None:
    assert make(server, topic).partitions() == []


def test_errors_that_differ_in_numbers_and_names_alone_are_one() -> None:
    one = fingerprint("KeyError: 'a17' in 0x7f00aa at line 3")

    assert one == fingerprint("KeyError: 'b2' in 0x9 at line 1234")
    assert one != fingerprint("ValueError: 'a17' in 0x7f00aa at line 3")
    assert fingerprint("") is None


@pytest.mark.timeout(300)
def test_dead_letters_are_counted_by_what_they_died_of(
    spark: SparkSession, server: Server, topic: rmq.Topic
) -> None:
    bury(topic, "order 1 failed", "order 2 failed", "no route")

    frame = (
        spark.read.format("rmq")
        .option("url", server.url)
        .option("topic", topic.name)
        .option("queue", "dead")
        .load()
    )
    counted = frame.groupBy("error_fingerprint").count().collect()

    assert sorted(row["count"] for row in counted) == [1, 2]
    assert frame.select("topic", "reason").distinct().collect() == [(topic.name, "rejected")]
    with pytest.raises(Exception, match="queue: it is missing; a batch read looks at store"):
        spark.read.format("rmq").options(url=server.url, topic=topic.name).load().count()


def test_a_password_is_in_no_plan(spark: SparkSession) -> None:
    frame = (
        spark.read.format("rmq")
        .options(url="redis://:hunter2@localhost:6379/0", topic="orders", queue="dead")
        .load()
    )

    plans = frame._jdf.queryExecution()

    assert "hunter2" not in plans.analyzed().toString() + plans.optimizedPlan().toString()


def test_a_session_that_registered_nothing_finds_the_source_by_its_package(
    spark: SparkSession,
) -> None:
    reader = spark.newSession().read.format("rmq")

    frame = reader.options(url="redis://localhost", topic="orders", queue="dead").load()

    assert "error_fingerprint" in frame.columns
