"""Redis dies with kill -9 while a query runs, is away for two seconds, and comes back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import rmq
from tests.conftest import any_binary
from tests.servers import Server
from tests.spark.halting import AWAY_S, PATIENCE_S, outage
from tests.spark.long import long
from tests.spark.target import taken

pytestmark = pytest.mark.timeout(600)  # a cold Spark on a busy machine

ROWS = 60  # sent before each outage


@pytest.fixture
def durable() -> Iterator[Server]:
    """A Redis that has on disk what it has answered."""
    made = Server(any_binary(), "--appendfsync", "always", aof=True)
    yield made
    made.stop()


def start(spark: SparkSession, url: str, name: str, here: Path, sink: str) -> StreamingQuery:
    read = (
        spark.readStream.format("rmq")
        .options(url=url, subscribe=name, fetchSize="5", ownerLeaseSeconds="2")
        .load()
        .select("value")
    )
    write = read.writeStream.option("checkpointLocation", str(here / "checkpoint"))
    if sink == "rmq":
        return write.format("rmq").options(url=url, topic=f"{name}-copy").start()
    return write.format(sink).option("path", str(here / "rows")).start()


def until(what: Callable[[], bool], query: StreamingQuery) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert query.isActive, query.exception()
        assert time.monotonic() < end, query.lastProgress
        time.sleep(0.02)


class Feed:
    """Sends the numbers from 0 on, some at a time, and knows what has been settled."""

    def __init__(self, client: rmq.Client, name: str) -> None:
        self.client = client
        self.topic = client.topic(name, slots=2, retry="immediate")
        self.topic.open()
        self.sent = 0

    def send(self) -> None:
        numbers = range(self.sent, self.sent + ROWS)
        self.topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in numbers])
        self.sent += ROWS

    def state(self) -> tuple[int, int]:
        """In flight, settled."""
        stats = self.client.admin.stats(self.topic.name)
        return stats["in_flight"], stats["settled"]

    def is_settled(self) -> bool:
        return self.state() == (0, self.sent)


def test_query_outlives_redis_in_its_tasks_in_its_commit_and_between_batches(
    halting: SparkSession, durable: Server, name: str, tmp_path: Path
) -> None:
    with rmq.Client(durable.url, retry_for=30) as client:
        feed = Feed(client, name)
        target = client.topic(f"{name}-copy", slots=3, dedup_window=0)
        target.open()
        query = start(halting, durable.url, name, tmp_path, "rmq")
        for moment in ("reading", "staging", "committing"):
            feed.send()
            outage(durable, tmp_path, moment)
        until(feed.is_settled, query)
        durable.kill()
        time.sleep(AWAY_S)  # while the query has nothing to do but ask
        durable.start()
        feed.send()
        until(feed.is_settled, query)

        assert query.isActive
        assert query.exception() is None
        query.stop()
        assert taken(target) == Counter(range(feed.sent))
        assert feed.sent == 4 * ROWS


@long("test_outage.py")
def test_file_sink_has_each_row_once_when_redis_was_away_in_a_task(
    halting: SparkSession, durable: Server, name: str, tmp_path: Path
) -> None:
    with rmq.Client(durable.url, retry_for=30) as client:
        feed = Feed(client, name)
        query = start(halting, durable.url, name, tmp_path, "parquet")
        feed.send()
        outage(durable, tmp_path, "reading")
        until(feed.is_settled, query)
        feed.send()
        until(feed.is_settled, query)
        query.stop()

    rows = halting.read.parquet(str(tmp_path / "rows")).collect()
    assert Counter(int(bytes(row.value)) for row in rows) == Counter(range(2 * ROWS))


def test_restart_of_a_redis_that_keeps_nothing_is_reported(
    halting: SparkSession, forgetful: Server, name: str, tmp_path: Path
) -> None:
    with rmq.Client(forgetful.url, retry_for=30) as client:
        feed = Feed(client, name)
        feed.send()
        query = start(halting, forgetful.url, name, tmp_path, "parquet")
        outage(forgetful, tmp_path, "reading", away_s=0)

        with pytest.raises(Exception, match=f"{name}.* Redis was flushed or came back empty"):
            query.awaitTermination(round(PATIENCE_S))
