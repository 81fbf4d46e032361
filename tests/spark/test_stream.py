"""Streaming queries on a real Spark: what it replays, what is settled when, who gets what."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StringType

import rmq
from rmq.cli import cli
from tests.servers import Server

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

Sink = Callable[[DataFrame, int], None]


class Queries:
    """Queries of one topic on one checkpoint, and the rows that each batch brought."""

    def __init__(self, spark: SparkSession, url: str, topic: str, checkpoint: Path) -> None:
        self.spark, self.url, self.topic, self.checkpoint = spark, url, topic, checkpoint
        self.batches: list[tuple[int, list[Row]]] = []

    def keep(self, df: DataFrame, batch: int) -> None:
        self.batches.append((batch, df.collect()))

    def frame(self, **given: object) -> DataFrame:
        asked = {"url": self.url, "subscribe": self.topic, "ownerLeaseSeconds": "2"}
        asked |= {key: str(value) for key, value in given.items()}
        return self.spark.readStream.format("rmq").options(**asked).load()

    def start(
        self, sink: Sink | None = None, trigger: str = "availableNow", **given: object
    ) -> Any:
        how: Any = {trigger: True} if trigger != "default" else {"processingTime": "0 seconds"}
        return (
            self.frame(**given)
            .writeStream.foreachBatch(sink or self.keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**how)
            .start()
        )

    def run(self, sink: Sink | None = None, trigger: str = "availableNow", **given: object) -> None:
        query: StreamingQuery = self.start(sink, trigger, **given)
        query.awaitTermination()

    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in self.batches]

    def values(self) -> list[int]:
        return sorted(int(bytes(row.value)) for _, rows in self.batches for row in rows)


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=3, retry="immediate")
    made.open()
    return made


@pytest.fixture
def queries(spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path) -> Queries:
    return Queries(spark, server.url, topic.name, tmp_path / "checkpoint")


def fill(topic: rmq.Topic, count: int, first: int = 0) -> None:
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(first, first + count)])


def held(client: rmq.Client, topic: str) -> tuple[int, int]:
    """In flight, settled."""
    stats = client.admin.stats(topic)
    return stats["in_flight"], stats["settled"]


def test_available_now_brings_each_message_once_and_settles_it_after_its_batch(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 25)
    seen = []

    def sink(df: DataFrame, batch: int) -> None:
        queries.keep(df, batch)
        seen.append(held(client, topic.name))

    queries.run(sink, maxMessagesPerTrigger=10, minPartitions=4)
    fill(topic, 5, 25)
    queries.run(sink, maxMessagesPerTrigger=10)

    assert queries.sizes() == [0, 10, 10, 5, 5]
    # Never settled before its batch has ended; what is in flight may be of the next batch, too.
    for (in_flight, settled), ended, rows in zip(
        seen, [0, 0, 10, 20, 25], queries.sizes(), strict=True
    ):
        assert settled <= ended
        assert in_flight + settled >= ended + rows
    assert queries.values() == list(range(30))
    assert held(client, topic.name) == (0, 30)


def test_a_batch_that_failed_comes_again_with_the_same_rows(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 20)

    def fails(df: DataFrame, batch: int) -> None:
        queries.keep(df, batch)
        if batch == 1:
            raise RuntimeError("the sink is full")

    with pytest.raises(Exception, match="the sink is full"):
        queries.run(fails, maxMessagesPerTrigger=10)
    assert held(client, topic.name) == (10, 0)
    queries.run(maxMessagesPerTrigger=3, minPartitions=2)

    first, again = queries.batches[1], queries.batches[2]
    assert first[0] == again[0] == 1
    assert sorted(first[1]) == sorted(again[1])
    assert sorted(again[1] + [row for _, rows in queries.batches[3:] for row in rows]) == sorted(
        {row for _, rows in queries.batches for row in rows}
    )
    assert held(client, topic.name) == (0, 20)


def test_a_batch_whose_commit_is_lost_comes_again_and_trigger_once_reads_all(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 12)
    queries.run(trigger="once", maxMessagesPerTrigger=5)
    assert queries.sizes() == [12]
    assert held(client, topic.name) == (12, 0)
    for file in queries.checkpoint.glob("commits/*0*"):
        file.unlink()

    queries.run()

    assert sorted(queries.batches[0][1]) == sorted(queries.batches[1][1])
    assert [batch for batch, _ in queries.batches] == [0, 0]
    assert held(client, topic.name) == (0, 12)


def test_two_queries_and_a_consumer_share_a_topic(
    client: rmq.Client, topic: rmq.Topic, queries: Queries, tmp_path: Path
) -> None:
    other = Queries(queries.spark, queries.url, topic.name, tmp_path / "other")
    running = [one.start(trigger="default", maxMessagesPerTrigger=7) for one in (queries, other)]
    taken: list[int] = []
    with topic.consumer() as consumer:
        sent = 0
        while sent < 60 or not (queries.values() and other.values()):
            assert sent < 6000, "one of the queries gets nothing"
            fill(topic, 6, sent)
            sent += 6
            for delivery in consumer.receive(2):
                taken.append(delivery.body)
                delivery.ack()
            time.sleep(0.05)

    for _ in range(600):
        if held(client, topic.name)[1] == sent:
            break
        time.sleep(0.1)
    for query in running:
        query.stop()

    assert sorted(queries.values() + other.values() + taken) == list(range(sent))
    assert held(client, topic.name) == (0, sent)


def test_a_task_that_failed_reads_the_same_rows_again(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 20)

    def sink(df: DataFrame, batch: int) -> None:
        from pyspark.sql.functions import udf

        def once(value: bytes) -> str:
            from pyspark import TaskContext

            task = TaskContext.get()
            if task is not None and task.attemptNumber() == 0:
                raise RuntimeError("this attempt fails")
            return value.decode()

        queries.keep(
            df.withColumn("value", udf(once, StringType(), useArrow=False)("value")), batch
        )

    queries.run(sink)

    assert sorted(int(row.value) for _, rows in queries.batches for row in rows) == list(range(20))
    assert held(client, topic.name) == (0, 20)


def test_redis_may_be_away_for_a_while(
    spark: SparkSession, own_server: Server, name: str, tmp_path: Path
) -> None:
    with rmq.Client(own_server.url) as client:
        topic = client.topic(name, slots=2, retry="immediate")
        fill(topic, 30)
        queries = Queries(spark, own_server.url, name, tmp_path / "checkpoint")

        def sink(df: DataFrame, batch: int) -> None:
            if batch == 1:  # before its tasks read
                own_server.kill()
                own_server.start()
            queries.keep(df, batch)
            if batch == 2:  # before it is settled
                own_server.kill()
                own_server.start()

        queries.run(sink, maxMessagesPerTrigger=10)

        assert queries.sizes() == [0, 10, 10, 10]
        assert queries.values() == list(range(30))
        assert held(client, name) == (0, 30)


def test_progress_and_the_command_line_tell_the_same_of_a_query(
    client: rmq.Client, queries: Queries, server: Server, topic: rmq.Topic
) -> None:
    fill(topic, 20)
    query = queries.start(trigger="default", maxMessagesPerTrigger=5)
    told: dict[str, Any] = {}
    listed: dict[str, Any] = {}
    until = time.monotonic() + 180
    try:
        while not (
            listed.get("rows") == told.get("rows") == 20 and listed["bytes"] == told["bytes"]
        ):
            assert time.monotonic() < until, (told, listed)
            time.sleep(0.5)
            if query.lastProgress is not None:
                told = json.loads(query.lastProgress["sources"][0]["latestOffset"] or "null") or {}
            asked = ["--url", server.url, "query", "ls", topic.name, "--json"]
            (found,) = json.loads(CliRunner().invoke(cli, asked).stdout) or [{}]
            listed = found.get("report", {})
    finally:
        query.stop()

    for name in ("since_ms", "batches", "replays", "lapses"):
        assert listed[name] == told[name], name
    assert (listed["replays"], listed["lapses"]) == (0, 0)
    assert listed["commands"] > 0
    assert listed["bytes"] > listed["batch_bytes"] > 0


def test_a_checkpoint_that_another_driver_runs_is_refused(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 3)
    queries.run(ownerLeaseSeconds=1)
    run = (queries.checkpoint / "offsets" / "0").read_text().split('"run":')[1].split('"')[1]
    time.sleep(1.1)  # until the first driver's owner lease is over
    topic.query(run, "another:1:1", owner_lease=60).renew({})

    with pytest.raises(Exception, match=r"is run by another:1:1, for .* cannot share one check"):
        queries.run()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"maxMessagePerTrigger": "5"}, "did you mean maxMessagesPerTrigger?"),
        ({"startingOffsets": "earliest"}, "a queue has one position"),
        ({"url": "http://x:hunter2@y"}, "scheme 'http' is unknown"),
    ],
)
def test_a_wrong_option_is_reported_at_load(
    queries: Queries, given: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        queries.frame(**given)

    last = [line for line in str(caught.value).splitlines() if "rmq.errors" in line]
    assert any(told in line for line in last)
    assert "hunter2" not in str(caught.value)


def test_a_topic_that_is_missing_and_a_schema_of_ones_own_are_reported(queries: Queries) -> None:
    queries.topic = "missing"
    with pytest.raises(Exception, match="topic 'missing' is not"):
        queries.run()

    reader = queries.spark.readStream.format("rmq").option("url", queries.url)
    frame = reader.option("subscribe", "missing").schema("value string").load()
    with pytest.raises(Exception, match="leave schema"):
        frame.writeStream.format("noop").option(
            "checkpointLocation", str(queries.checkpoint / "2")
        ).start().awaitTermination()
