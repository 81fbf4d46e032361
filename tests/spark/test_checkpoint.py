"""Checkpoints and file sinks: what Spark drops without a word is not settled, and told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import rmq
from tests.servers import Server

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine


class Files:
    """A query that writes a topic to parquet files, run by run."""

    def __init__(self, spark: SparkSession, url: str, topic: str, home: Path) -> None:
        self._spark, self._url, self._topic = spark, url, topic
        self.checkpoint, self._out = home / "checkpoint", home / "out"

    def run(self, trigger: str, **options: str) -> str:
        """Run the query to its end; the error with which it ended."""
        asked = {"url": self._url, "subscribe": self._topic, "maxMessagesPerTrigger": "10"}
        query = (
            self._spark.readStream.format("rmq")
            .options(**asked, **options)
            .load()
            .select("message_id")
            .writeStream.format("parquet")
            .option("path", str(self._out))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**{trigger: True})
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            return str(error)
        return ""

    def rows(self) -> list[str]:
        """Return the contents of the files."""
        return [row.message_id for row in self._spark.read.parquet(str(self._out)).collect()]


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=2, retry="immediate")
    made.open()
    return made


@pytest.fixture
def files(spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path) -> Files:
    return Files(spark, server.url, topic.name, tmp_path)


def fill(topic: rmq.Topic, count: int) -> set[str]:
    sent = topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(count)])
    return {str(one.id) for one in sent}


def test_a_new_checkpoint_with_an_old_output_path_loses_nothing_and_is_reported(
    client: rmq.Client, topic: rmq.Topic, files: Files
) -> None:
    """The file sink drops each batch whose number it has from the first query."""
    sent = fill(topic, 20)
    assert files.run("availableNow") == ""
    shutil.rmtree(files.checkpoint)
    sent |= fill(topic, 20)

    told = files.run("availableNow")

    assert "Spark ended a batch of 10 messages of which no task has read any" in told
    assert "a new checkpoint together with a new output path" in told
    assert client.admin.stats(topic.name)["settled"] == 20
    assert files.run("availableNow", onClaimLoss="continue") == ""
    assert sorted(files.rows()) == sorted(sent)
    stats = client.admin.stats(topic.name)
    assert (stats["settled"], stats["in_flight"]) == (40, 0)


def test_rows_of_a_batch_that_ended_come_twice_only_after_an_error(
    client: rmq.Client, topic: rmq.Topic, files: Files
) -> None:
    """Trigger.Once ends without a settlement; then the lease runs out, and a consumer asks."""
    sent = fill(topic, 20)
    assert files.run("once") == ""
    (query,) = client.admin.queries(topic.name)
    client.admin.release_query(topic.name, query.run, force=True)
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(5))

    told = [files.run("availableNow") for _ in range(2)]

    assert all("5 of 20 messages of the last batch, which has ended" in text for text in told)
    assert files.run("availableNow", onClaimLoss="continue") == ""
    assert sorted(files.rows()) == sorted(sent)
    stats = client.admin.stats(topic.name)
    assert (stats["settled"], stats["in_flight"], stats["priority"], stats["retries"]) == (
        20, 0, 0, 0,
    )  # fmt: skip
