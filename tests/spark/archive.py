"""Spark's classes as one file that a JVM maps at its start, which takes half the time then.

    python -m tests.spark.archive PATH

A JVM that does not like the file (another Java, other jars) goes on without it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import rmq
from tests.conftest import any_binary
from tests.servers import Server
from tests.spark import conftest


def use(spark: SparkSession, url: str, home: Path) -> None:
    """Run the actions of most tests, so that the archive has the classes that they load."""
    seen = spark.createDataFrame([("1", 1), ("2", 1)], "value string, n int")
    seen.groupBy("n").count().collect()
    seen.write.parquet(str(home / "parquet"))
    (home / "in").mkdir()
    (home / "in" / "1.json").write_text(json.dumps({"value": "3"}) + "\n")

    def sink(df: DataFrame, batch: int) -> None:
        df.collect()

    for stream in (
        spark.readStream.schema("value string")
        .json(str(home / "in"))
        .writeStream.format("rmq")
        .options(url=url, topic="a"),
        spark.readStream.format("rmq")
        .options(url=url, subscribe="a")
        .load()
        .writeStream.foreachBatch(sink),
    ):
        where = tempfile.mkdtemp(dir=home)
        stream.option("checkpointLocation", where).trigger(
            availableNow=True
        ).start().awaitTermination()


def main(path: Path) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    options = f"{conftest.QUICK} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    os.environ.update(conftest.environment())
    server = Server(any_binary())
    try:
        with rmq.Client(server.url) as client, tempfile.TemporaryDirectory() as home:
            client.topic("a", slots=2).open()
            spark = conftest.session(java=options)
            use(spark, server.url, Path(home))
            gateway = SparkContext._gateway
            assert gateway is not None
            spark.stop()
            gateway.shutdown()
            jvm = gateway.proc
            jvm.stdin.close()  # it ends, and writes
            try:
                jvm.wait(300)
            finally:
                jvm.kill()
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
