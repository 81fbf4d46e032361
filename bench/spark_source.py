"""How many rows a second a streaming query of Spark takes from a topic.

    python -m bench.spark_source [--messages N] [--batch N]

Not a part of `python -m bench`: it needs PySpark and Java, and measures two programs at once. All
messages wait in the topic before the query starts. A batch counts from the end of the one before,
so claiming, settling and Spark's own logs are in it; the first ones warm Spark up and do not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import rmq
from bench.machine import server

TARGET = 150_000.0  # rows a second in tasks, warm, two of them, 200-byte bodies
SLOTS, BODY = 4, b"x" * 200
WARM = 3  # batches: the empty one, and two that are slow since workers start


def measure(url: str, messages: int, batch: int, checkpoint: str) -> list[dict[str, float]]:
    """Rows a second of each batch, and the ms of its steps."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    from pyspark.sql import SparkSession

    from spark_connector import RmqDataSource

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(RmqDataSource)
    with rmq.Client(url) as client:
        topic = client.topic("bench", slots=SLOTS, codec="bytes", dedup_window=0)
        for _ in range(0, messages, 10_000):
            topic.send_many([rmq.Outgoing(BODY) for _ in range(10_000)])
    query = (
        spark.readStream.format("rmq")
        .options(url=url, subscribe="bench", maxMessagesPerTrigger=str(batch))
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [
        {"rows": float(one.numInputRows), **{k: float(v) for k, v in one.durationMs.items()}}
        for one in query.recentProgress
        if one.numInputRows
    ]
    spark.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_source")
    parser.add_argument("--messages", type=int, default=800_000)
    parser.add_argument("--batch", type=int, default=100_000)
    asked = parser.parse_args()
    with server() as own, tempfile.TemporaryDirectory(prefix="rmq-source-") as checkpoint:
        batches = measure(own.url, asked.messages, asked.batch, checkpoint)
    for one in batches:
        steps = " ".join(f"{name} {ms:.0f}" for name, ms in one.items() if name != "rows")
        print(
            f"{one['rows']:.0f} rows, {1000 * one['rows'] / one['triggerExecution']:.0f}/s: {steps}"
        )
    warm = [1000 * one["rows"] / one["triggerExecution"] for one in batches[WARM - 1 :]]
    reads = [1000 * one["rows"] / one["addBatch"] for one in batches[WARM - 1 :]]
    verdict = "ok" if statistics.median(reads) >= TARGET else "short"
    print(
        f"in tasks (addBatch) {statistics.median(reads):.0f} rows/s, {TARGET:.0f} wanted: {verdict}"
    )
    print(f"whole batches {statistics.median(warm):.0f} rows/s")


if __name__ == "__main__":
    main()
