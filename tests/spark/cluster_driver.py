"""A driver on a cluster, one of whose tasks never ends; started by test_cluster.py.

    python -m tests.spark.cluster_driver MASTER URL FROM TO NAIVE DIRECTORY

It copies the topic FROM into TO, and FROM's messages once more into NAIVE by a sink that sends as
it goes. In both, the first attempt of one task hangs when it has handed over all of its rows; only
a speculative copy can end the batch. DIRECTORY gets a file for each attempt of a task.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import rmq
from spark_connector import RmqDataSource, columns, options
from spark_connector.connection import connect
from spark_connector.writer import RmqStreamWriter, RmqWriter, _Sink

if TYPE_CHECKING:
    from pyarrow import RecordBatch

DIRECTORY = "RMQ_TEST_DIRECTORY"
HANGS_S = 200.0


def attempts(where: Path, sink: str) -> list[dict[str, Any]]:
    """Return the reports of task attempts, by partition and attempt."""
    return [json.loads(one.read_text()) for one in sorted(where.glob(f"{sink}-*.json"))]


class Straggles:
    """The rows of a task; after the last one the first attempt of task 0 hangs, until killed.

    The other tasks end after it has come so far: only then Spark finds it slow.
    """

    def __init__(self, sink: str) -> None:
        self.sink = sink

    def __call__(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        partition, attempt = task.partitionId(), task.attemptNumber()
        where = Path(os.environ[DIRECTORY])
        first = where / f"{self.sink}-0-0.json"
        rival = json.loads(first.read_text())["pid"] if attempt and first.exists() else None
        told: dict[str, Any] = {
            "partition": partition, "attempt": attempt, "pid": os.getpid(), "rows": 0,
            "rival_alive": rival is not None and Path(f"/proc/{rival}").exists(),
            "executor": os.environ["SPARK_EXECUTOR_DIRS"],
        }  # fmt: skip
        for batch in batches:
            told["rows"] += batch.num_rows
            yield batch
        if not told["rows"]:
            return
        unfinished = where / f".{self.sink}-{partition}-{attempt}"
        unfinished.write_text(json.dumps(told))
        unfinished.replace(where / f"{self.sink}-{partition}-{attempt}.json")
        if partition == 0 and attempt == 0:
            time.sleep(HANGS_S)  # Spark kills it when the copy has won
        until = time.monotonic() + HANGS_S
        while not first.exists() and time.monotonic() < until:
            time.sleep(0.02)


class StreamWriter(RmqStreamWriter):
    """RMQ's, with a task that straggles when it has staged its rows."""

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return super().write(Straggles("staged")(iterator))


class NaiveWriter(RmqWriter):
    """The negative control: a sink that sends as it goes, as one without stages would."""

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        with connect(self._sink.options.at) as client:
            topic = self._sink.topic(client, self._sink.options.at.topic)
            for batch in Straggles("naive")(iterator):
                topic.send_many([rmq.Outgoing(body.as_py()) for body in batch.column("value")])
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class Source(RmqDataSource):
    """The data source, with such writers."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(_Sink(options.sink(self.options), columns.checked(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> NaiveWriter:
        return NaiveWriter(_Sink(options.sink(self.options), columns.checked(schema)))


def session(master: str, directory: str) -> SparkSession:
    from tests.spark.cluster import executors
    from tests.spark.conftest import QUICK

    builder = SparkSession.builder.master(master).appName("rmq on a cluster")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.codegen.wholeStage": "false",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.executorEnv.RMQ_TEST_DIRECTORY": directory,
    }
    for name, value in (executors() | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(master: str, url: str, source: str, target: str, naive: str, directory: str) -> None:
    spark = session(master, directory)
    spark.dataSource.register(Source)
    taken = (
        spark.readStream.format("rmq")
        .options(url=url, subscribe=source, minPartitions="4")
        .load()
        .select("value")
    )
    began = time.monotonic()
    (
        taken.writeStream.format("rmq")
        .options(url=url, topic=target, checkpointLocation=f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    copied = time.monotonic()
    # The same rows again: those that the target has now.
    looked = spark.read.format("rmq").options(url=url, subscribe=target, queue="store").load()
    looked.select("value").write.format("rmq").mode("append").options(url=url, topic=naive).save()
    Path(directory, "took").write_text(f"{copied - began:.1f} {time.monotonic() - copied:.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
