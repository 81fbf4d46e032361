"""How long the audit takes in Spark, step by step: two million messages with planted faults.

    python -m bench.spark_audit [--rows 2000000] [--rounds 3] [--conf KEY=VALUE ...]

Ledger, delivery log and snapshot are generated as parquet. Half of the ledger is one producer's,
and each 100 000 rows have one message of each fault. The audit runs as for a user, in a separate
process with Spark's defaults, including its start. The steps are found by the queries in Spark's
event log. The audit must find exactly the planted faults, or this fails. On a busy machine, trust
the processor time more than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession, functions as F

from spark_connector import audit
from spark_connector.audit.findings import FAULTY

BEGIN_MS = 1_790_000_000_000
PART = 100_000  # rows with one message of each fault
STEPS = ("start", "inputs", "messages/", "counts", "gaps", "gaps/", "report", "end")
QUERY = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"


class Run(NamedTuple):
    """Seconds of one run of the audit by step, its processor time, and the JVM's peak memory."""

    steps: dict[str, float]
    processor_s: float
    jvm_mb: float
    found: dict[str, Any]

    @property
    def taken_s(self) -> float:
        """The seconds of the whole run."""
        return sum(self.steps.values())


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


def run(home: Path, number: int, paths: list[Path], as_of_ms: int, conf: list[str]) -> Run:
    """Run the audit in a separate process."""
    out, events = home / f"out{number}", home / f"events{number}"
    events.mkdir()
    settings = ["spark.eventLog.enabled=true", f"spark.eventLog.dir={events.as_uri()}"]
    settings += ["spark.eventLog.rolling.enabled=false", "spark.eventLog.compress=false", *conf]
    command = [sys.executable, "-m", "spark_connector.audit", "--out", str(out)]
    for option, path in zip(("ledger", "deliveries", "snapshot"), paths, strict=True):
        command += [f"--{option}", str(path)]
    command += ["--as-of", str(as_of_ms), "--settle", "1m"]
    for setting in settings:
        command += ["--conf", setting]
    begun = time.time()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    used = _Used(child.pid)
    used.start()
    text, _ = child.communicate()
    ended = time.time()
    used.stop()
    if child.returncode != FAULTY:
        raise SystemExit(f"the audit ended with {child.returncode}:\n{text[-3000:]}")
    found = json.loads((out / "totals.json").read_text())
    found["resend"] = len((out / "resend.txt").read_text().splitlines())
    (log,) = (path for path in events.iterdir() if path.is_file())
    return Run(steps(log, begun, ended), used.processor_s, used.jvm_mb, found)


def steps(log: Path, begun: float, ended: float) -> dict[str, float]:
    """Return the seconds of each step, which lasts until the first query of the next step."""
    seconds = dict.fromkeys(STEPS, 0.0)
    step, since = "start", begun
    for at, what in _queries(log):
        then = _step(step, what)
        if then != step:
            seconds[step] += at - since
            step, since = then, at
    seconds[step] += ended - since
    return seconds


def _queries(log: Path) -> Iterator[tuple[float, str]]:
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == QUERY:
            yield event["time"] / 1000, event["description"]
        elif event["Event"] == "SparkListenerApplicationStart":
            yield event["Timestamp"] / 1000, "inputs"
        elif event["Event"] == "SparkListenerApplicationEnd":
            yield event["Timestamp"] / 1000, "end"


def _step(before: str, what: str) -> str:
    if what in STEPS:
        return what
    if what.startswith("parquet at") or what.startswith("save at"):
        return {"inputs": "messages/", "gaps": "gaps/"}.get(before, before)
    if "isEmpty at" in what or "gaps.py" in what:
        return "gaps" if before in ("counts", "gaps") else before
    return {"messages/": "counts", "gaps/": "report"}.get(before, before)


class _Used(threading.Thread):
    """Watches the processes of a session: their processor time, and the peak memory of a JVM."""

    def __init__(self, session_id: int) -> None:
        super().__init__(daemon=True)
        self._session_id = session_id
        self._stopped = threading.Event()
        self._ticks: dict[int, int] = {}
        self.jvm_mb = 0.0

    @property
    def processor_s(self) -> float:
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def run(self) -> None:
        while not self._stopped.wait(0.2):
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    name, _, rest = (path / "stat").read_text().rpartition(")")
                    fields = rest.split()
                    if int(fields[3]) != self._session_id:
                        continue
                    self._ticks[int(path.name)] = int(fields[11]) + int(fields[12])
                    if name.endswith("(java"):
                        status = (path / "status").read_text()
                        peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
                        self.jvm_mb = max(self.jvm_mb, peak)
                except (OSError, IndexError, ValueError):
                    continue  # the process has ended

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def check(found: dict[str, Any], rows: int) -> None:
    """Compare the findings with the planted faults."""
    planted = rows // PART
    want = {audit.LOST: planted, audit.DUPLICATED: planted, audit.GAPS: planted}
    assert found["found"] == want, (found["found"], want)
    totals = found["totals"]
    assert totals[audit.UNKNOWN] == totals[audit.DEAD] == found["resend"] == planted, found
    assert totals[audit.DELIVERED] == rows - 4 * planted, found
    assert (found["ledger"], found["gap_numbers"]) == (rows - planted, planted), found


def main() -> None:
    parser = argparse.ArgumentParser(description="The audit in Spark, timed.")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    if asked.rows % PART:
        parser.error(f"--rows: give a multiple of {PART}")
    spark = session()
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as name:
        home = Path(name)
        paths = [home / name for name in ("ledger", "deliveries", "snapshot")]
        for made, path in zip(inputs(spark, asked.rows), paths, strict=True):
            made.write.parquet(str(path))
        spark.stop()
        taken = []
        for number in range(asked.rounds):
            load = os.getloadavg()[0]
            one = run(home, number, paths, BEGIN_MS + asked.rows * 20 + 60_000, asked.conf)
            check(one.found, asked.rows)
            taken.append(one.taken_s)
            shown = ", ".join(f"{step} {seconds:.1f}" for step, seconds in one.steps.items())
            print(
                f"round {number + 1}: {one.taken_s:.1f} s ({shown}), {one.processor_s:.0f} s of "
                f"processor time, JVM {one.jvm_mb:.0f} MB, load before {load:.1f}",
                flush=True,
            )
        print(f"{asked.rows:,} rows: median {statistics.median(taken):.1f} s, planted faults found")


if __name__ == "__main__":
    main()
