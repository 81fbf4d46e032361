"""The programs and the SQL of docs/spark.md run unchanged, in their order."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

import rmq
from spark_connector.columns import FROM_KAFKA
from tests.servers import Server
from tests.spark.conftest import ROOT

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

PATIENCE_S = 60.0


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def other_systems() -> list[str]:
    """Blocks of the page that need Kafka, or Delta or Iceberg."""
    page = (ROOT / "docs" / "spark.md").read_text()
    return re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


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
    topic = client.topic(name, history=rmq.History(keep="1h", max_bytes="64MiB"))
    history = spark.createDataFrame([("ada", n) for n in range(6)], "customer string, euros int")
    history.repartition(2).write.parquet(str(tmp_path / "history"))
    found = blocks((ROOT / "docs" / "spark.md").read_text())
    assert len(found) == 18
    names: dict[str, Any] = {"__name__": "page"}
    is_older = spark.version.startswith("4.0.")

    for block in found:
        send_three(topic)
        code = block.replace("redis://localhost:6379/0", server.url).replace(
            '"10 seconds"', '"1 second"'
        )
        code = code.replace('"orders"', repr(name)).replace('"large-orders"', repr(f"{name}-large"))
        if is_older and "dataSource.register" in block:
            continue  # Spark has already found the source
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

    if not is_older:  # whose progress has no figures of RMQ
        until(is_shown, "the listener prints")
    spark.streams.removeListener(names["lag"])
    tiered = spark.read.parquet(str(tmp_path / "tiered")).collect()
    assert {(row.customer, row.tier) for row in tiered} == {("ada", "gold"), ("grace", "silver")}
    archived = spark.read.parquet(str(tmp_path / "bronze")).select("message_id", "day").collect()
    assert len({row.message_id for row in archived}) == len(archived) >= 2
    assert all(row.day for row in archived)
    acked = spark.read.parquet(str(tmp_path / "acked"))
    assert acked.count() == acked.select("message_id").distinct().count() > 0
    assert names["acked"].count() >= acked.count()
    assert names["silver"].isStreaming
    query = names["silver"].writeStream.format("memory").queryName("silver")
    names["run"](query, "silver")
    assert spark.table("silver").where("order.customer = 'ada'").count() > 0
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


KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:binary>>"
)


class InsteadOfKafka:
    """A session whose streams are Parquet files with the columns of Kafka's source."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.stream = spark.readStream.schema(KAFKA).format("parquet").option("path", path)

    @property
    def readStream(self) -> InsteadOfKafka:
        return self

    def format(self, name: str) -> InsteadOfKafka:
        assert name == "kafka"
        return self

    def option(self, name: str, value: str) -> InsteadOfKafka:
        return self

    def load(self) -> DataFrame:
        return self.stream.load()


def test_recipe_for_kafka_runs_on_rows_of_kafka(
    spark: SparkSession, client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    now = dt.datetime(2031, 5, 4, tzinfo=dt.UTC)
    rows = [
        (b"k", b"1", "t", 0, 0, now, 0, [("a", b"x"), ("b", None)]),
        (None, b"2", "t", 0, 1, now, 0, None),
        (b"k", None, "t", 0, 2, now, 0, None),
    ]
    spark.createDataFrame(rows, KAFKA).write.parquet(str(tmp_path / "kafka"))
    page = blocks((ROOT / "docs" / "spark.md").read_text())
    (setup,) = (block for block in page if "def run(" in block)
    names: dict[str, Any] = {"spark": InsteadOfKafka(spark, str(tmp_path / "kafka"))}
    code = setup[setup.index("def run(") :] + other_systems()[0]
    code = code.replace("redis://localhost:6379/0", server.url).replace('"orders"', repr(name))

    exec(code.replace('f"data/', f'f"{tmp_path}/'), names)

    found = {message.body: dict(message.headers) for message in client.admin.peek(name, 10)}
    assert found == {b"1": {"a": "x", "key": "k"}, b"2": {}}
    assert FROM_KAFKA in code


def test_recipe_for_merge_chooses_the_newest_row_and_is_sql(spark: SparkSession) -> None:
    merge = other_systems()[1]
    names: dict[str, Any] = {"F": F}
    exec(merge[: merge.index("run(")].replace("df.sparkSession.sql", "statements.append"), names)
    statements = names["statements"] = []
    df = spark.sql(
        "SELECT customer, timestamp(at) timestamp, euros FROM VALUES ('ada', '2031-01-02', 2),"
        " ('ada', '2031-01-01', 1), ('ada', null, 9), ('grace', null, 3) AS r(customer, at, euros)"
    )

    names["merge"](df, 0)

    changes = spark.table("changes").select("customer", "euros").collect()
    assert {(row.customer, row.euros) for row in changes} == {("ada", 2), ("grace", 3)}
    spark.sql(
        "SELECT 'a' customer, timestamp'2031-01-01' timestamp, 1 euros"
    ).createOrReplaceTempView("customers")
    with pytest.raises(Exception, match=r"MERGE INTO TABLE|UNSUPPORTED|not support") as caught:
        spark.sql(statements[0])  # it is parsed, and only the kind of the table is refused
    assert "PARSE_SYNTAX_ERROR" not in str(caught.value)
