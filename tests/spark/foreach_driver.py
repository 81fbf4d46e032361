"""A driver of `read_stream` that dies where it is told to; started by test_foreach_batch.py.

    python -m tests.spark.foreach_driver URL TOPIC DIRECTORY POINT NAME

It writes a file for each batch that its function has seen. POINT is where everything is killed, or
`end`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, functions

import spark_connector
from spark_connector import foreach_batch
from tests.spark.conftest import environment, session

GROUP, POINT = "RMQ_TEST_GROUP", "RMQ_TEST_POINT"


def die_at(point: str) -> None:
    """kill -9 of driver, JVM and workers."""
    if os.environ.get(POINT) == point:
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        time.sleep(60)


class Reader(foreach_batch.Reader):
    """Dies after it has taken messages."""

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if end != start:
            die_at("taken")
        return end


class Plans(foreach_batch.Plans):
    """Dies after it has stored a plan."""

    def write(self, plan: foreach_batch.Plan) -> None:
        super().write(plan)
        if plan.batch >= 0:
            die_at("planned")


class ForeachBatch(foreach_batch.ForeachBatch):
    """Dies when Spark calls it for the batch after the first one."""

    def __call__(self, tick: DataFrame, batch: int) -> None:
        if batch:
            die_at("committed")
        super().__call__(tick, batch)


def main(url: str, topic: str, directory: str, point: str, name: str) -> None:
    os.setsid()
    os.environ.update({GROUP: str(os.getpgid(0)), POINT: point}, **environment())
    spark = session("local[2]")
    foreach_batch.Reader, foreach_batch.Plans = Reader, Plans  # type: ignore[misc]
    foreach_batch.ForeachBatch = ForeachBatch  # type: ignore[misc]
    out = Path(directory)

    @functions.udf("string")
    def read(value: str) -> str:
        die_at("reading")
        return value

    def function(df: DataFrame, batch: int) -> None:
        columns = ("slot", "seq", read("message_id"), "attempt")
        rows = sorted(tuple(row) for row in df.select(*columns).collect())
        (out / f"{batch}-{name}.json").write_text(json.dumps(rows))
        die_at("called")

    options = {"url": url, "subscribe": topic, "maxMessagesPerTrigger": 10, "ownerLeaseSeconds": 1}
    query = spark_connector.read_stream(spark, options).foreach_batch(
        function, str(out / "checkpoint"), available_now=True
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
