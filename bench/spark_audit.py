"""How long the audit takes in Spark: two million rows of a ledger, as many deliveries, one gap.

    python -m bench.spark_audit [--rows 2000000] [--rounds 3]

Everything is made up here, in parquet, with faults planted; half of the ledger is one producer's.
The session is warm (it has written the input), and its start is not counted. What was planted has
to be found, or this fails. On a machine that others use too, the processor time tells more than the
clock does: the audit keeps two cores busy for most of the time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from spark_connector import audit

BEGIN_MS = 1_790_000_000_000
PART = 100_000  # rows that have one of each fault


def session() -> SparkSession:
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def inputs(spark: SparkSession, rows: int) -> tuple[DataFrame, DataFrame, DataFrame]:
    n = F.col("id")
    giant = n % 2 == 0
    message_id = F.lower(
        F.lpad(F.conv((n * 2654435761 % (1 << 40)).cast("string"), 10, 32), 26, "0")
    )
    base = spark.range(rows).select(
        n,
        message_id.alias("message_id"),
        F.when(giant, F.lit("orders")).otherwise(F.lit("mails")).alias("topic"),
        F.when(giant, 0).otherwise(F.floor(n / 2) % 16).cast("int").alias("slot"),
        F.when(giant, F.lit("giant"))
        .otherwise(F.concat(F.lit("p"), (F.floor(n / 32) % 500).cast("string")))
        .alias("producer"),
        F.timestamp_millis(BEGIN_MS + n * 20).alias("at"),
    )
    spot = n % PART
    seq = F.when(giant, F.floor(n / 2)).otherwise(F.floor(n / 16_000))
    ledger = base.select(
        "message_id",
        "topic",
        "slot",
        "producer",
        seq.alias("seq"),
        F.col("at").alias("produced_at"),
    )
    done = base.withColumn("attempt", F.lit(1)).withColumn("outcome", F.lit("ack"))
    done = done.withColumn("delivered_at", F.col("at") + F.expr("INTERVAL 2 SECONDS"))
    again = done.filter(spot == 11).withColumn(
        "delivered_at", F.col("at") + F.expr("INTERVAL 9 SECONDS")
    )
    nacked = done.filter(n % 1000 == 13).withColumn("outcome", F.lit("nack"))
    columns = ["message_id", "topic", "slot", "attempt", "delivered_at", "outcome"]
    deliveries = (
        done.filter(~spot.isin(7, 21)).unionByName(again).unionByName(nacked).select(*columns)
    )
    snapshot = base.filter(spot == 21).select(
        "message_id", "topic", "slot", F.lit("dead").alias("queue")
    )
    return ledger.filter(spot != 40), deliveries, snapshot


def processor_s(spark: SparkSession) -> float:
    """Return the processor time that the JVM has used so far, in seconds."""
    jvm: Any = spark.sparkContext._jvm
    used = jvm.java.lang.ProcessHandle.current().info().totalCpuDuration().get().toMillis()
    return float(used) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="The audit in Spark, timed.")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as home:
        paths = [f"{home}/{name}" for name in ("ledger", "deliveries", "snapshot")]
        for made, path in zip(inputs(spark, asked.rows), paths, strict=True):
            made.write.parquet(path)
        taken = []
        for number in range(asked.rounds):
            begun, spent = time.monotonic(), processor_s(spark)
            ledger, deliveries, snapshot = (spark.read.parquet(path) for path in paths)

            def keep(name: str, rows: DataFrame, out: str = f"{home}/out{number}") -> DataFrame:
                rows.write.parquet(f"{out}/{name}")
                return spark.read.parquet(f"{out}/{name}")

            found = audit.audit(
                ledger, deliveries, snapshot,
                as_of_ms=BEGIN_MS + asked.rows * 20 + 60_000, settle_ms=60_000, keep=keep,
            )  # fmt: skip
            taken.append(time.monotonic() - begun)
            spent = processor_s(spark) - spent
            print(
                f"round {number + 1}: {taken[-1]:.1f} s, {spent:.1f} s of processor time, "
                f"{found.verdict()}",
                flush=True,
            )
        planted = asked.rows // PART
        want = {audit.LOST: planted, audit.DUPLICATED: planted, audit.GAPS: planted}
        assert found.found() == want, (found.found(), want)
        assert found.totals[audit.UNKNOWN] == found.totals[audit.DEAD] == planted
        print(f"{asked.rows:,} rows: median {statistics.median(taken):.1f} s, planted faults found")
    spark.stop()


if __name__ == "__main__":
    main()
