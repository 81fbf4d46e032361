"""The programs and the SQL of docs/spark.md run unchanged, in their order."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import rmq
from tests.servers import Server
from tests.spark.conftest import ROOT

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

PATIENCE_S = 60.0


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def until(true: Callable[[], Any], text: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, text
        time.sleep(0.05)


def send_three(topic: rmq.Topic) -> None:
    """Send two orders, after another one that becomes a dead letter."""
    refused = topic.send({"customer": "linus", "euros": 0})
    with topic.consumer() as consumer:
        for delivery in consumer.receive(1000):
            if delivery.id == refused.id:
                delivery.reject("nothing to pay")
            else:
                delivery.release()
    topic.send({"customer": "ada", "euros": 12})
    topic.send({"customer": "grace", "euros": 1})


def test_every_block_of_the_page_runs(
    spark: SparkSession, client: rmq.Client, server: Server, name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    topic = client.topic(name)
    history = spark.createDataFrame([("ada", n) for n in range(6)], "customer string, euros int")
    history.repartition(2).write.parquet(str(tmp_path / "history"))
    found = blocks((ROOT / "docs" / "spark.md").read_text())
    assert len(found) == 14
    names: dict[str, Any] = {"__name__": "page"}

    for block in found:
        send_three(topic)
        code = block.replace("redis://localhost:6379/0", server.url).replace(
            '"10 seconds"', '"1 second"'
        )
        code = code.replace('"orders"', repr(name)).replace('"large-orders"', repr(f"{name}-large"))
        exec(compile(code.replace('"data/', f'"{tmp_path}/'), "page", "exec"), names)

    until(lambda: names["backfill"].status["isDataAvailable"] is False, "the backfill ends")
    names["backfill"].processAllAvailable()
    names["backfill"].stop()
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown += capsys.readouterr().out
        return bool(
            re.search(r"^\d+ rows, \d\d+ bytes, \d+ ms old, \d+ wait$", shown, re.MULTILINE)
        )

    until(is_shown, "the listener prints")
    spark.streams.removeListener(names["lag"])
    tiered = spark.read.parquet(str(tmp_path / "tiered")).collect()
    assert {(row.customer, row.tier) for row in tiered} == {("ada", "gold"), ("grace", "silver")}
    with sqlite3.connect(tmp_path / "hourly.db") as db:
        assert set(db.execute("SELECT customer, euros FROM hourly")) == {("ada", 12), ("grace", 1)}
    assert client.admin.stats(f"{name}-large")["accepted"] > 0
    assert spark.read.parquet(str(tmp_path / "dead")).count() > 0
    assert client.admin.stats(name)["accepted"] == 3 * len(found) + 2 + 6  # write, and backfill


def test_sql_reads_a_view_and_refuses_a_table(
    spark: SparkSession, client: rmq.Client, server: Server, name: str
) -> None:
    client.topic(name).send_many([rmq.Outgoing(n) for n in range(5)])
    options = f"OPTIONS (url '{server.url}', subscribe '{name}', queue 'store')"

    spark.sql(f"CREATE TEMPORARY VIEW looked USING rmq {options}")
    assert spark.sql("SELECT count(*) FROM looked").collect()[0][0] == 5

    with pytest.raises(Exception, match="this is CREATE TABLE; Spark does not pass the options"):
        spark.sql(f"CREATE TABLE looked_at USING rmq {options}")
    spark.sql(f"CREATE TABLE looked_at (message_id string) USING rmq {options}")
    with pytest.raises(Exception, match=r"made USING rmq; Spark .* CREATE TEMPORARY VIEW"):
        spark.table("looked_at").count()
    spark.sql("DROP TABLE looked_at")
