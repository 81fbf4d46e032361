"""A driver of its own process group, that dies where it is told to; started by test_faults.py.

    python -m tests.spark.driver URL TOPIC DIRECTORY POINT NAME

It writes a file for each batch that its sink has seen. POINT is where everything is killed, or
`frozen`, or `end`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_connector import RmqDataSource, options
from spark_connector.stream import Part, RmqStreamReader

GROUP, POINT = "RMQ_TEST_GROUP", "RMQ_TEST_POINT"


def run_query(
    spark: SparkSession, asked: dict[str, str], sink: Callable[[DataFrame, int], None], out: Path
) -> str:
    """Run a query over all that waits; return its error."""
    query = (
        spark.readStream.format("rmq")
        .options(**asked)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception as error:
        return str(error)
    return ""


def die_at(point: str) -> None:
    """kill -9 of driver and JVM, and of the source runner with them."""
    if os.environ.get(POINT) == point:
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        time.sleep(60)


class Reader(RmqStreamReader):
    """Dies where it is told to."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if end != start:
            die_at("claimed")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        if end["topics"] != start["topics"]:
            die_at("logged")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch
            die_at("reading")


class Source(RmqDataSource):
    """The data source, with such readers."""

    def streamReader(self, schema: StructType) -> Reader:
        return Reader(options.stream(self.options), schema)


def main(url: str, topic: str, directory: str, point: str, name: str) -> None:
    os.setsid()
    os.environ.update({GROUP: str(os.getpgid(0)), POINT: point})
    from tests.spark.conftest import environment, session

    os.environ.update(environment())
    spark = session("local[2]")
    spark.dataSource.register(Source)
    out = Path(directory)

    def sink(df: DataFrame, batch: int) -> None:
        if batch and point == "frozen" and not (out / "frozen").exists():
            (out / "frozen").touch()  # the test freezes us now
            time.sleep(2)
        rows = sorted((row.slot, row.seq, row.message_id, row.attempt) for row in df.collect())
        (out / f"{batch}-{name}.json").write_text(json.dumps(rows))
        if batch:
            die_at("sunk")

    def run(loss: str) -> str:
        lease = "1" if point == "frozen" else "600"
        asked = {
            "url": url, "subscribe": topic, "maxMessagesPerTrigger": "10", "leaseSeconds": lease,
            "ownerLeaseSeconds": "1", "onClaimLoss": loss,
        }  # fmt: skip
        return run_query(spark, asked, sink, out)

    (out / f"told-{name}").write_text(run("fail"))
    if point == "frozen":
        (out / f"told-{name}-2").write_text(run("continue"))


if __name__ == "__main__":
    main(*sys.argv[1:])
