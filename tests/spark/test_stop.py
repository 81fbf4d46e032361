"""The end of a query: whoever goes on with its checkpoint need not wait for its owner's lease."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import rmq
from tests.servers import Server

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine


def test_a_query_that_ends_lets_another_driver_go_on_at_once(
    spark: SparkSession, client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    client.topic(name).send_many([rmq.Outgoing(n) for n in range(5)])
    query = (
        spark.readStream.format("rmq")
        .options(url=server.url, subscribe=name, ownerLeaseSeconds="600")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    with server.raw() as redis:
        (key,) = redis.keys(f"rmq:{{{name}_0}}:query:*")
        until = time.monotonic() + 10
        while (left_s := float(redis.hget(key, "owner_until")) / 1000 - time.time()) > 1:
            assert time.monotonic() < until, f"owned for {left_s:.0f} s more"
            time.sleep(0.1)
    run = key.decode().rpartition(":")[2]
    time.sleep(max(0.0, left_s))
    assert [held.messages for held in client.topic(name).query(run, "another").renew({})] == [0]
