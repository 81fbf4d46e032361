"""A look at a topic that has nothing in it, on a real Spark: rows of a schema, and none of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import rmq
from tests.servers import Server

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine


@pytest.mark.parametrize("queue", ["dead", "all"])
def test_look_at_empty_queues_has_no_rows(
    spark: SparkSession, server: Server, client: rmq.Client, name: str, queue: str
) -> None:
    client.topic(name, slots=2).open()

    look = spark.read.format("rmq").options(url=server.url, subscribe=name, queue=queue).load()

    assert look.collect() == []
    assert look.count() == 0
    assert "reason" in look.columns
