"""Source and sink on a Redis Cluster and through Sentinel, every row counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession, functions as F

import rmq
from tests.clusters import MASTERS, Cluster, until
from tests.conftest import any_binary
from tests.sentinels import Sentinels
from tests.servers import Server
from tests.spark.halting import in_moment
from tests.spark.target import taken
from tests.spark.test_outage import ROWS as SENT, Feed, start, until as while_it_runs
from tests.spark.test_stream import Queries

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

ROWS, SLOTS = 1000, 8


@pytest.fixture(scope="module", params=[Cluster, Sentinels])
def service(request: pytest.FixtureRequest) -> Iterator[Cluster | Sentinels]:
    """A cluster, and a service of Sentinel."""
    made = request.param(any_binary())
    yield made
    made.stop()


@pytest.fixture
def url(service: Cluster | Sentinels) -> str:
    return service.url if isinstance(service, Cluster) else service.url()


def scripts_on(server: Server) -> int:
    """Return how many scripts clients have run on a server."""
    with server.raw() as raw:
        return int(raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def fail_over(service: Cluster | Sentinels, topic: rmq.Topic) -> None:
    """kill -9 of the master of the topic's first slot, whose replicas have all of its writes."""
    key = f"rmq:{{{topic.name}_0}}:store"
    master = service.master_of(key) if isinstance(service, Cluster) else service.master
    with master.raw() as raw:
        raw.set(f"rmq:{{{topic.name}_0}}:mark", 1)
        assert raw.wait(1 if isinstance(service, Cluster) else 2, 30_000)
    if isinstance(service, Sentinels):
        service.fail_over(Server.kill)
    else:
        master.kill()


def mend(service: Cluster | Sentinels) -> None:
    """Start the former master, which is a replica from now on."""
    if isinstance(service, Sentinels):
        service.settle()
        return
    for node in service.nodes:
        if node not in service.running():
            until(lambda: len(service.masters()) == MASTERS)  # a replica has taken over
            node.start()
    service.wait_ok()


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


def test_a_streaming_read_brings_each_message_once_and_asks_masters_only(
    spark: SparkSession, service: Cluster | Sentinels, url: str, client: rmq.Client,
    topic: rmq.Topic, tmp_path: Path,
) -> None:  # fmt: skip
    queries = Queries(spark, url, topic.name, tmp_path / "checkpoint")
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS)])

    queries.run(maxMessagesPerTrigger=400)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS, ROWS + 100)])
    queries.run(maxMessagesPerTrigger=400)

    assert queries.values() == list(range(ROWS + 100))
    nodes = service.nodes if isinstance(service, Cluster) else service.servers
    masters = service.masters() if isinstance(service, Cluster) else [service.master]
    assert all((scripts_on(node) > 0) == (node in masters) for node in nodes)
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


def test_a_failover_in_a_task_and_in_a_commit_loses_nothing_and_doubles_nothing(
    halting: SparkSession, service: Cluster | Sentinels, url: str, client: rmq.Client, name: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    feed = Feed(client, name)
    target = client.topic(f"{name}-copy", slots=3, dedup_window=0)
    target.open()
    query = start(halting, url, name, tmp_path, "rmq")

    for moment, struck in ("reading", feed.topic), ("committing", target):
        feed.send()
        in_moment(tmp_path, moment, partial(fail_over, service, struck))
        mend(service)
    while_it_runs(feed.is_settled, query)
    query.stop()

    assert taken(target) == Counter(range(feed.sent))
    assert feed.sent == 2 * SENT
