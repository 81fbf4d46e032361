"""`python -m spark_connector.audit`: reads the inputs, audits, writes, prints, and exits."""

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
from spark_connector.audit.findings import USAGE, Findings, said
from spark_connector.audit.job import audit
from spark_connector.audit.options import Options, parse

_ID: Final = re.compile("[0-9a-v]{26}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; the exit code.

    A session that runs already is used, and left running.
    """
    try:
        asked = parse(argv)
        running = SparkSession.getActiveSession()
        spark = running or _session(asked)
        try:
            return _run(spark, asked)
        finally:
            if running is None:
                spark.stop()
    except UsageError as error:
        print(f"audit: {error}", file=sys.stderr)
        return USAGE


def _session(asked: Options) -> SparkSession:
    local = asked.conf.get("spark.master", "local").startswith("local")
    if local and "PYSPARK_GATEWAY_PORT" not in os.environ:  # nobody's spark-submit has chosen
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("rmq audit")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in (settings | asked.conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _run(spark: SparkSession, asked: Options) -> int:
    as_of_ms = asked.as_of_ms
    now_ms = time.time_ns() // 1_000_000
    # The queues first: what leaves them later is in the log by the time that is read.
    snapshot = _snapshot(spark, asked)
    is_live = any(one.format == reading.LIVE for one in asked.snapshot)
    if as_of_ms is None and (is_live or snapshot is None):
        as_of_ms = now_ms
    store = _Store(spark, asked)
    try:
        found = _audited(spark, asked, snapshot, as_of_ms, store)
    except UsageError as error:
        raise UsageError(f"--{str(error).removeprefix('--')}") from error
    finally:
        if snapshot is not None:
            snapshot.unpersist()
    left_out = store.finish(found)
    if asked.json:
        print(json.dumps(found.document(), indent=2))
    else:
        print(_summary(found))
    if left_out:
        print(
            f"audit: {left_out} lost ids are no message ids; resend.txt is without them",
            file=sys.stderr,
        )
    if not asked.json and asked.out is not None:
        print(f"report: {asked.out / 'report.html'}")
    return found.code


def _audited(
    spark: SparkSession,
    asked: Options,
    snapshot: DataFrame | None,
    as_of_ms: int | None,
    store: _Store,
) -> Findings:
    kind, columns = ("outbox", words.OUTBOX) if asked.is_outbox else ("ledger", words.LEDGER)
    return audit(
        _united(spark, f"--{kind}", asked.ledger, columns),
        _united(spark, "--deliveries", asked.deliveries, words.DELIVERIES),
        snapshot,
        as_of_ms=as_of_ms,
        settle_ms=asked.settle_ms,
        is_outbox=asked.is_outbox,
        scope=asked.scope,
        topics=asked.topics,
        limit=asked.limit,
        faults=asked.faults,
        keep=store.keep if asked.out or asked.table else None,
    )


def _snapshot(spark: SparkSession, asked: Options) -> DataFrame | None:
    frames = []
    for one in asked.snapshot:
        if one.format == reading.LIVE:
            assert asked.url is not None
            try:
                frames.append(reading.live(spark, asked.url, asked.prefix, one.where))
            except PySparkException as error:
                reason = _reason(error)
                raise UsageError(f"--snapshot: rmq:{one.where} cannot be read: {reason}") from error
        else:
            frames.append(reading.read(spark, "--snapshot", one, words.SNAPSHOT))
    return _union(frames) if frames else None


def _reason(error: PySparkException) -> str:
    """The last line of a Python traceback inside Spark's text, which says what was wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if re.match(r"rmq\.[\w.]+: ", line)]
    return (named or lines or [""])[0].split(": ", 1)[-1][:300]


def _united(
    spark: SparkSession, option: str, places: Sequence[reading.Place], columns: reading.Columns
) -> DataFrame:
    return _union([reading.read(spark, option, one, columns) for one in places])


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


# --- what is written ---------------------------------------------------------------------------


class _Store:
    """Writes rows where they are wanted, and what stands on them afterwards."""

    def __init__(self, spark: SparkSession, asked: Options) -> None:
        self._spark = spark
        self._out = asked.out
        self._table = asked.table
        self._messages: DataFrame | None = None

    def keep(self, name: str, rows: DataFrame) -> DataFrame:
        """Store rows; what is to be read instead of them."""
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

    def finish(self, found: Findings) -> int:
        """Write the report, the totals and the list to resend; how many ids that leaves out."""
        if self._out is None or self._messages is None:
            return 0
        self._out.mkdir(parents=True, exist_ok=True)
        _write(self._out / "report.html", report.page(found))
        _write(self._out / "totals.json", json.dumps(found.document(), indent=2) + "\n")
        lost = self._messages.filter(F.col("status") == words.LOST).orderBy(
            "produced_at", "message_id"
        )
        left_out, lines = 0, []
        for row in lost.select("message_id").toLocalIterator():
            if _ID.fullmatch(row[0]):
                lines.append(row[0] + "\n")
            else:
                left_out += 1  # it might be several lines
        _write(self._out / "resend.txt", "".join(lines))
        return left_out


def _write(path: Path, text: str) -> None:
    """A file that is never seen half written."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _summary(found: Findings) -> str:
    there = [name for name in words.STATUSES if found.totals.get(name)]
    lines = [f"{said(name):<12}{found.totals[name]:>14,}" for name in there]
    if found.redelivered:
        lines.append(f"{'redelivered':<12}{found.redelivered:>14,}  acked once")
    if found.gaps:
        lines.append(f"{'gaps':<12}{found.gaps:>14,}  {found.gap_numbers:,} numbers")
    lines.append(found.verdict())
    return "\n".join(lines)
