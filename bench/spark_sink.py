"""How many rows a second a job of Spark writes to a topic, including the commit.

    python -m bench.spark_sink [--rows N] [--rounds N]

It is not a part of `python -m bench`, because it needs PySpark and Java, and measures two programs
at once. Two tasks make rows with 200-byte bodies and stage them; the commit publishes them. The
start of the job is included. The first rounds warm Spark up and are not counted. Every round is
counted in Redis.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import rmq
from bench.machine import server

TARGET = 200_000.0  # rows a second, warm, two tasks
SLOTS, WARM = 8, 2


def measure(url: str, rows: int, rounds: int) -> list[tuple[float, float]]:
    """Return rows per second of each round, and us of the server's processor per row."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    from pyspark.sql import SparkSession, functions as F

    from spark_connector import RmqDataSource

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(RmqDataSource)
    body = F.rpad(F.col("id").cast("string"), 200, "x").cast("binary")
    df = spark.range(0, rows, 1, 2).select(body.alias("value"))
    found = []
    with rmq.Client(url) as client:
        for number in range(rounds):
            topic = client.topic(f"bench{number}", slots=SLOTS)
            topic.open()
            cpu = _cpu(client)
            began = time.perf_counter()
            (df.write.format("rmq").mode("append").options(url=url, topic=topic.name).save())
            took = time.perf_counter() - began
            found.append((rows / took, 1e6 * (_cpu(client) - cpu) / rows))
            accepted = client.admin.stats(topic.name)["accepted"]
            if accepted != rows:
                raise SystemExit(f"{accepted} messages of {rows} rows")
            client.admin.purge(topic.name, "store")
    spark.stop()
    return found


def _cpu(client: rmq.Client) -> float:
    info = client.server_info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_sink")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=7, help=f"more than {WARM}")
    asked = parser.parse_args()
    if asked.rounds <= WARM:
        parser.error(f"--rounds: {asked.rounds}; the first {WARM} warm Spark up, give more")
    load = os.getloadavg()[0]
    with server() as own:
        rounds = measure(own.url, asked.rows, asked.rounds)
    for number, (speed, cpu) in enumerate(rounds):
        print(f"round {number}: {speed:,.0f} rows/s, {cpu:.1f} us of Redis a row")
    warm = [speed for speed, _ in rounds[WARM:]]
    print(
        f"warm: {statistics.median(warm):,.0f} rows/s, {min(warm):,.0f} .. {max(warm):,.0f}; "
        f"target {TARGET:,.0f}; load before {load:.1f}"
    )


if __name__ == "__main__":
    main()
