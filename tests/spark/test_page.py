"""The programs and the SQL of docs/spark.md run unchanged, in their order."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import rmq
from tests.servers import Server
from tests.spark.conftest import ROOT

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine


def test_every_block_of_the_page_runs(
    spark: SparkSession, client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    job = "\n".join(blocks).replace("redis://localhost:6379/0", server.url)
    job = job.replace('"orders"', repr(name)).replace("/var/lib/spark/orders", str(tmp_path / "at"))
    assert len(blocks) == 5
    client.topic(name).send({"customer": "ada"})

    (tmp_path / "page.py").write_text(job)
    try:
        runpy.run_path(str(tmp_path / "page.py"))
    finally:
        for query in spark.streams.active:
            query.stop()

    assert client.admin.stats(name)["accepted"] == 3


def test_sql_reads_a_view_and_refuses_a_table(
    spark: SparkSession, client: rmq.Client, server: Server, name: str
) -> None:
    client.topic(name).send_many([rmq.Outgoing(n) for n in range(5)])
    options = f"OPTIONS (url '{server.url}', subscribe '{name}', queue 'store')"

    spark.sql(f"CREATE TEMPORARY VIEW looked USING rmq {options}")
    assert spark.sql("SELECT count(*) FROM looked").collect()[0][0] == 5

    with pytest.raises(Exception, match="this is CREATE TABLE; Spark does not hand the options"):
        spark.sql(f"CREATE TABLE looked_at USING rmq {options}")
    spark.sql(f"CREATE TABLE looked_at (message_id string) USING rmq {options}")
    with pytest.raises(Exception, match=r"made USING rmq; Spark .* CREATE TEMPORARY VIEW"):
        spark.table("looked_at").count()
    spark.sql("DROP TABLE looked_at")
