"""Source and sink on a Redis Cluster and through Sentinel, every row counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession, functions as F

import rmq
from tests.clusters import Cluster
from tests.conftest import any_binary
from tests.sentinels import Sentinels
from tests.spark.target import taken
from tests.spark.test_stream import Queries

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

ROWS, SLOTS = 1000, 8


@pytest.fixture(scope="module", params=["cluster", "sentinel"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a cluster, and of a service of Sentinel."""
    if request.param == "cluster":
        cluster = Cluster(any_binary())
        yield cluster.url
        cluster.stop()
    else:
        service = Sentinels(any_binary())
        yield service.url()
        service.stop()


@pytest.fixture
def client(url: str) -> Iterator[rmq.Client]:
    with rmq.Client(url) as made:
        yield made


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=SLOTS, retry="immediate")
    made.open()
    return made


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """Rows of three tasks, spread over all slots."""
    number = F.col("id").cast("string")
    return spark.range(0, count, 1, 3).select(number.alias("value"), number.alias("key"))


def test_a_batch_write_stores_each_row_once(
    spark: SparkSession, url: str, client: rmq.Client, topic: rmq.Topic
) -> None:
    rows = numbers(spark, ROWS)

    rows.write.format("rmq").mode("append").options(url=url, topic=topic.name).save()

    assert taken(topic) == Counter(range(ROWS))
    assert all(slot["accepted"] for slot in client.admin.stats_by_slot(topic.name))


def test_a_streaming_read_brings_each_message_once_and_settles_it(
    spark: SparkSession, url: str, client: rmq.Client, topic: rmq.Topic, tmp_path: Path
) -> None:
    queries = Queries(spark, url, topic.name, tmp_path / "checkpoint")
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS)])

    queries.run(maxMessagesPerTrigger=400)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS, ROWS + 100)])
    queries.run(maxMessagesPerTrigger=400)

    assert queries.values() == list(range(ROWS + 100))
    stats = client.admin.stats(topic.name)
    assert (stats["settled"], stats["in_flight"], stats["rolled_back"]) == (ROWS + 100, 0, 0)


def test_a_stream_from_topic_to_topic_publishes_each_row_once(
    spark: SparkSession, url: str, client: rmq.Client, topic: rmq.Topic, tmp_path: Path
) -> None:
    target = client.topic(f"{topic.name}-copy", slots=SLOTS, dedup_window=0)
    target.open()
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS)])

    query = (
        spark.readStream.format("rmq")
        .options(url=url, subscribe=topic.name, maxMessagesPerTrigger="300")
        .load()
        .select("value")
        .writeStream.format("rmq")
        .options(url=url, topic=target.name, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert taken(target) == Counter(range(ROWS))
    assert client.admin.stats(topic.name)["in_flight"] == 0


def test_a_batch_read_sees_what_waits_and_takes_nothing(
    spark: SparkSession, url: str, client: rmq.Client, topic: rmq.Topic
) -> None:
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS)])

    rows: list[Row] = (
        spark.read.format("rmq").options(url=url, subscribe=topic.name, queue="store").load()
    ).collect()

    assert sorted(int(bytes(row.value)) for row in rows) == list(range(ROWS))
    assert client.admin.stats(topic.name)["delivered"] == 0
