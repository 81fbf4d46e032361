"""Run the audit from the command line.

The command reads the inputs, compares them, and writes the findings.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from spark_connector.audit import reading, report, words
from spark_connector.audit.errors import UsageError
from spark_connector.audit.findings import USAGE, Findings, spoken
from spark_connector.audit.job import audit
from spark_connector.audit.options import Options, parse

_ID: Final = re.compile("[0-9a-v]{26}")
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
# Finding gaps in a million messages took 10 s with 32 partitions, and 16 s with Spark's default of
# 200. With 32 partitions, ten million messages needed 1 GB. Other numbers were not measured.
_PARTITIONS_LOCAL: Final = "32"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the audit, and return the exit code.

    If a Spark session is active, the audit uses this session and does not stop it.
    """
    try:
        options = parse(argv)
        running = SparkSession.getActiveSession()
        spark = running or _session(options)
        try:
            return _run(spark, options)
        finally:
            if running is None:
                spark.stop()
    except UsageError as error:
        print(f"audit: {error}", file=sys.stderr)
        return USAGE


def _session(options: Options) -> SparkSession:
    local = options.conf.get("spark.master", "local").startswith("local")
    if local and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets this variable
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("rmq audit")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        # Spark's default, INT96, is deprecated, and takes a third longer to write.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    for name, value in (settings | options.conf).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    is_default = _PARTITIONS not in options.conf and spark.conf.get(_PARTITIONS) == "200"
    if is_default and (spark.conf.get("spark.master", None) or "").startswith("local"):
        spark.conf.set(_PARTITIONS, _PARTITIONS_LOCAL)
    return spark


def _run(spark: SparkSession, options: Options) -> int:
    as_of_ms = options.as_of_ms
    now_ms = time.time_ns() // 1_000_000
    # Read the queues first and the log later, so that the log has the messages that leave the
    # queues in between.
    snapshot = _snapshot(spark, options)
    is_live = any(place.format == reading.LIVE for place in options.snapshot)
    if as_of_ms is None and (is_live or snapshot is None):
        as_of_ms = now_ms
    store = _Store(spark, options)
    try:
        findings = _audited(spark, options, snapshot, as_of_ms, store)
    except UsageError as error:
        raise UsageError(f"--{str(error).removeprefix('--')}") from error
    finally:
        if snapshot is not None:
            snapshot.unpersist()
    left_out = store.finish(findings)
    if options.json:
        print(json.dumps(findings.document(), indent=2))
    else:
        print(_summary(findings))
    if left_out:
        print(
            f"audit: {left_out} lost ids are no message ids; resend.txt is without them",
            file=sys.stderr,
        )
    if not options.json and options.out is not None:
        print(f"report: {options.out / 'report.html'}")
    return findings.code


def _audited(
    spark: SparkSession,
    options: Options,
    snapshot: DataFrame | None,
    as_of_ms: int | None,
    store: _Store,
) -> Findings:
    kind, columns = ("outbox", words.OUTBOX) if options.is_outbox else ("ledger", words.LEDGER)
    return audit(
        _united(spark, f"--{kind}", options.ledger, columns),
        _united(spark, "--deliveries", options.deliveries, words.DELIVERIES),
        snapshot,
        as_of_ms=as_of_ms,
        settle_ms=options.settle_ms,
        is_outbox=options.is_outbox,
        scope=options.scope,
        topics=options.topics,
        limit=options.limit,
        faults=options.faults,
        keep=store.keep if options.out or options.table else None,
    )


def _snapshot(spark: SparkSession, options: Options) -> DataFrame | None:
    frames = []
    for place in options.snapshot:
        if place.format == reading.LIVE:
            assert options.url is not None
            try:
                frames.append(reading.live(spark, options.url, options.prefix, place.where))
            except PySparkException as error:
                reason = _reason(error)
                raise UsageError(
                    f"--snapshot: rmq:{place.where} cannot be read: {reason}"
                ) from error
        else:
            frames.append(reading.read(spark, "--snapshot", place, words.SNAPSHOT))
    return _union(frames) if frames else None


def _reason(error: PySparkException) -> str:
    """Return the last line of the Python traceback in an error text of Spark."""
    lines = [line.strip() for line in str(error).splitlines()]
    errors = [line for line in lines if re.match(r"rmq\.[\w.]+: ", line)]
    return (errors or lines or [""])[0].split(": ", 1)[-1][:300]


def _united(
    spark: SparkSession, option: str, places: Sequence[reading.Place], columns: reading.Columns
) -> DataFrame:
    return _union([reading.read(spark, option, place, columns) for place in places])


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


# --- output ------------------------------------------------------------------------------------


class _Store:
    """Writes the results of an audit to a directory or to tables."""

    def __init__(self, spark: SparkSession, options: Options) -> None:
        self._spark = spark
        self._out = options.out
        self._table = options.table
        self._messages: DataFrame | None = None

    def keep(self, name: str, rows: DataFrame) -> DataFrame:
        try:
            kept = self._kept(name, rows)
        except PySparkException as error:
            reason = str(error).partition("\n")[0][:300]
            option, where = ("table", self._table) if self._table else ("out", self._out)
            raise UsageError(f"{option}: {str(where)!r} cannot be written: {reason}") from error
        if name == "messages":
            self._messages = kept
        return kept

    def _kept(self, name: str, rows: DataFrame) -> DataFrame:
        if self._table is not None:
            table = self._table if name == "messages" else f"{self._table}_{name}"
            rows.write.mode("overwrite").saveAsTable(table)
            return self._spark.read.table(table)
        assert self._out is not None
        path = self._out.absolute().joinpath(name).as_uri()
        rows.write.mode("overwrite").parquet(path)
        return self._spark.read.parquet(path)

    def finish(self, findings: Findings) -> int:
        """Write the report, the totals, and resend.txt with the ids of the lost messages.

        Return how many lost messages are not in resend.txt because RMQ did not create their ids.
        """
        if self._out is None or self._messages is None:
            return 0
        self._out.mkdir(parents=True, exist_ok=True)
        _write(self._out / "report.html", report.page(findings))
        _write(self._out / "totals.json", json.dumps(findings.document(), indent=2) + "\n")
        lost = self._messages.filter(F.col("status") == words.LOST).orderBy(
            "produced_at", "message_id"
        )
        left_out, lines = 0, []
        for row in lost.select("message_id").toLocalIterator():
            if _ID.fullmatch(row[0]):
                lines.append(row[0] + "\n")
            else:
                left_out += 1  # a text that is not an id of RMQ may contain newlines
        _write(self._out / "resend.txt", "".join(lines))
        return left_out


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _summary(findings: Findings) -> str:
    present = [name for name in words.STATUSES if findings.totals.get(name)]
    lines = [f"{spoken(name):<12}{findings.totals[name]:>14,}" for name in present]
    if findings.redelivered:
        lines.append(f"{'redelivered':<12}{findings.redelivered:>14,}  acked once")
    if findings.gaps:
        lines.append(f"{'gaps':<12}{findings.gaps:>14,}  {findings.gap_numbers:,} numbers")
    lines.append(findings.verdict())
    return "\n".join(lines)
