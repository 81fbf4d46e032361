"""A driver that rejects rows and gives one back, and dies where it is told to: test_rejecting.py.

    python -m tests.spark.reject_driver URL TOPIC DIRECTORY POINT

POINT is `rejected`, after which it is killed with its JVM before its batch ends, or `end`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, functions as f

import spark_connector
from tests.spark.conftest import environment, session
from tests.spark.driver import run_query


def main(url: str, topic: str, directory: str, point: str) -> None:
    os.setsid()
    os.environ.update(environment())
    spark = session("local[2]")
    out = Path(directory)

    def sink(df: DataFrame, batch: int) -> None:
        if not batch:
            return
        number = df.value.cast("string").cast("int")
        rows = sorted((row.slot, row.seq, row.message_id, row.attempt) for row in df.collect())
        bad = df.where(number % 4 == 0).withColumn("reason", f.lit("bad"))
        late = df.where(number == 1).withColumn("delay_ms", f.lit(3_600_000))
        counts = [spark_connector.reject(bad, url=url), spark_connector.nack(late, url=url)]
        (out / point).write_text(json.dumps({"rows": rows, "counts": counts}))
        if point == "rejected":
            os.killpg(os.getpgid(0), signal.SIGKILL)
            time.sleep(60)

    asked = {"url": url, "subscribe": topic, "ownerLeaseSeconds": "1", "includeQuery": "true"}
    error = run_query(spark, asked, sink, out)
    (out / "told").write_text(json.dumps({"error": error}))


if __name__ == "__main__":
    main(*sys.argv[1:])
