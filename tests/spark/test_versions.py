"""What holds on every version of Spark that RMQ runs on; `make spark-versions` plays it on each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import rmq
from tests.servers import Server
from tests.spark.history_storm import storm as history_storm
from tests.spark.storm import storm
from tests.spark.target import taken
from tests.spark.test_history import KEEP, Copy, settle
from tests.spark.test_stream import Queries, fill, held, queries, topic

__all__ = ["queries", "topic"]  # fixtures
pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

OLD = pyspark.__version__.startswith(("4.0.", "4.1."))  # they do not pass the start of a batch
PATIENCE_S = 120.0


def run_until(queries: Queries, done: Callable[[], bool], **given: object) -> None:
    """Run a query that does not end by itself."""
    query = queries.start(trigger="default", **given)
    until = time.monotonic() + PATIENCE_S
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < until, (queries.sizes(), query.lastProgress)
        time.sleep(0.05)
    query.stop()


def test_messages_come_once_are_settled_and_a_restart_continues(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 25)
    run_until(queries, lambda: held(client, topic.name) == (0, 25), maxMessagesPerTrigger=10)
    fill(topic, 15, 25)
    run_until(queries, lambda: held(client, topic.name) == (0, 40), maxMessagesPerTrigger=10)

    assert queries.values() == list(range(40))
    assert max(queries.sizes()) == 10
    assert {row.attempt for _, rows in queries.batches for row in rows} == {1}


@pytest.mark.parametrize(
    "trigger",
    ["default", pytest.param("availableNow", marks=pytest.mark.skipif(OLD, reason="one batch"))],
)
def test_a_batch_that_failed_is_replayed_with_the_same_rows(
    client: rmq.Client, topic: rmq.Topic, queries: Queries, trigger: str
) -> None:
    fill(topic, 20)

    def fails(df: DataFrame, batch: int) -> None:
        queries.keep(df, batch)
        if queries.sizes()[-1]:
            raise RuntimeError("the sink is full")

    with pytest.raises(Exception, match="the sink is full"):
        queries.start(fails, trigger, maxMessagesPerTrigger=10).awaitTermination()
    assert held(client, topic.name) == (10, 0)
    (number, failed) = queries.batches.pop()
    queries.batches.clear()
    if trigger == "default":
        run_until(queries, lambda: held(client, topic.name) == (0, 20), maxMessagesPerTrigger=10)
    else:
        queries.run(maxMessagesPerTrigger=10)

    assert (queries.batches[0][0], sorted(queries.batches[0][1])) == (number, sorted(failed))
    assert queries.values() == list(range(20))
    assert held(client, topic.name) == (0, 20)


@pytest.mark.skipif(OLD, reason="it runs one batch there")
def test_available_now_reads_all(client: rmq.Client, topic: rmq.Topic, queries: Queries) -> None:
    fill(topic, 25)

    queries.run(maxMessagesPerTrigger=10)

    assert queries.sizes() == [0, 10, 10, 5]
    assert held(client, topic.name) == (0, 25)


@pytest.mark.skipif(not OLD, reason="it reads all")
@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_each_run_has_one_batch_and_settles_the_batch_of_the_run_before(
    client: rmq.Client, topic: rmq.Topic, queries: Queries, trigger: str
) -> None:
    fill(topic, 15)

    for sizes, state in (
        ([0], (0, 0)),  # it writes the name of the query
        ([0, 10], (10, 0)),
        ([0, 10, 5], (5, 10)),
        ([0, 10, 5], (0, 15)),
    ):
        queries.run(trigger=trigger, maxMessagesPerTrigger=10)
        assert queries.sizes() == sizes
        until = time.monotonic() + PATIENCE_S
        while held(client, topic.name) != state:  # the source gives back what it took ahead
            assert time.monotonic() < until, held(client, topic.name)
            time.sleep(0.05)

    assert queries.values() == list(range(15))


def test_process_all_available_reads_and_settles_all(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    for first in (0, 25):
        fill(topic, 25, first)
        query = queries.start(trigger="default", maxMessagesPerTrigger=10)
        query.processAllAvailable()
        query.stop()

        assert queries.values() == list(range(first + 25))
        assert held(client, topic.name) == (0, first + 25)


def test_a_batch_whose_commit_is_missing_is_replayed_with_the_same_rows(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 20)
    run_until(queries, lambda: held(client, topic.name) == (0, 20), maxMessagesPerTrigger=10)
    fill(topic, 5, 20)

    def fails(df: DataFrame, batch: int) -> None:
        queries.keep(df, batch)
        raise RuntimeError("the sink is full")

    with pytest.raises(Exception, match="the sink is full"):
        queries.start(fails, "default").awaitTermination()
    assert held(client, topic.name) == (5, 20)
    run_until(queries, lambda: held(client, topic.name) == (0, 25))

    (number, failed), (again, repeated) = queries.batches[-2:]
    assert (number, sorted(failed)) == (again, sorted(repeated))
    assert len(failed) == 5


def test_a_batch_that_no_task_has_read_is_not_settled(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 5)
    reads_none = queries.start(lambda df, batch: None, "default")

    with pytest.raises(Exception, match="no task has read any"):
        reads_none.awaitTermination(PATIENCE_S)

    assert held(client, topic.name) == (5, 0)


@pytest.mark.skipif(not OLD, reason="the source supports the trigger there")
def test_a_wrapped_trigger_is_refused_and_changes_nothing(
    spark: SparkSession, client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    queries.run()  # it writes the name of the query
    fill(topic, 5)
    wrapper = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"

    spark.conf.set(wrapper, "true")
    try:
        with pytest.raises(Exception, match=f"{wrapper}: RMQ does not support it"):
            queries.run()
    finally:
        spark.conf.unset(wrapper)

    assert held(client, topic.name) == (0, 0)
    run_until(queries, lambda: held(client, topic.name) == (0, 5))
    assert queries.values() == list(range(5))


def test_a_streaming_write_publishes_each_row_once(
    spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path
) -> None:
    spark.range(0, 50, 1, 3).selectExpr("cast(id as string) value").write.json(str(tmp_path / "in"))
    rows = spark.readStream.schema("value string").json(str(tmp_path / "in"))
    writer = rows.writeStream.format("rmq").options(url=server.url, topic=topic.name)
    for _ in range(2):
        query = writer.option("checkpointLocation", str(tmp_path / "out"))
        query.trigger(availableNow=True).start().awaitTermination()
        (tmp_path / "out" / "commits" / "0").unlink()  # the batch is run again
        (tmp_path / "out" / "commits" / ".0.crc").unlink()

    assert taken(topic) == Counter(range(50))


def test_a_copy_publishes_each_row_once(
    client: rmq.Client, topic: rmq.Topic, queries: Queries
) -> None:
    fill(topic, 50)
    target = client.topic(f"{topic.name}-copy", slots=2, dedup_window=0)
    target.open()
    query = (
        queries.frame(maxMessagesPerTrigger=20)
        .select("value")
        .writeStream.format("rmq")
        .options(url=queries.url, topic=target.name)
        .option("checkpointLocation", str(queries.checkpoint))
        .start()
    )
    until = time.monotonic() + PATIENCE_S
    while held(client, topic.name) != (0, 50):
        assert query.isActive, query.exception()
        assert time.monotonic() < until, query.lastProgress
        time.sleep(0.05)
    query.stop()

    assert taken(target) == Counter(range(50))


def test_a_batch_is_written_and_the_queue_is_read(
    spark: SparkSession, server: Server, client: rmq.Client, topic: rmq.Topic
) -> None:
    noon = f"{date.today() + timedelta(days=3)} 12:00:00"  # in the time zone of the session
    rows = spark.range(0, 100, 1, 3).selectExpr(
        "cast(id as string) value", f"timestamp '{noon}' deliver_at"
    )

    rows.write.format("rmq").mode("append").options(url=server.url, topic=topic.name).save()

    frame = spark.read.format("rmq").options(url=server.url, subscribe=topic.name, queue="store")
    found = frame.load().selectExpr("value", "cast(deliver_at as string) at").collect()
    assert sorted(int(bytes(row.value)) for row in found) == list(range(100))
    assert {row["at"] for row in found} == {noon}
    assert client.admin.stats(topic.name)["delivered"] == 0


def test_queries_over_a_history_each_read_everything_and_repeat_a_failed_batch(
    spark: SparkSession, server: Server, client: rmq.Client, name: str, tmp_path: Path
) -> None:
    topic = client.topic(name, slots=3, history=KEEP)
    topic.open()
    one, two = (Copy(spark, server, topic, tmp_path / path) for path in "ab")
    settle(topic, 25)

    def fails(df: DataFrame, batch: int) -> None:
        one.keep(df, batch)
        raise RuntimeError("the sink is full")

    with pytest.raises(Exception, match="the sink is full"):
        one.start(fails, maxMessagesPerTrigger=10).awaitTermination()
    (number, failed) = one.batches.pop()
    settle(topic, 15, 25)
    one.read_all(maxMessagesPerTrigger=10)
    two.read_all()
    frame = spark.read.format("rmq").options(url=server.url, subscribe=name, queue="history")

    assert (one.batches[0][0], sorted(one.batches[0][1])) == (number, sorted(failed))
    assert one.values() == two.values() == list(range(40))
    assert frame.load().count() == 40


@pytest.mark.skipif(not OLD, reason="test_storm.py has it")
@pytest.mark.timeout(900)
def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=4, seed=7)

    assert outcome.is_exact, outcome
    assert outcome.sent > 0


@pytest.mark.skipif(not OLD, reason="Spark passes the start of a batch")
@pytest.mark.timeout(900)
def test_check_of_a_storm_finds_a_logged_batch_that_is_settled(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=4, seed=7, broken="settles-logged")

    assert outcome.missing > 0, outcome


@pytest.mark.skipif(not OLD, reason="test_history_storm.py has it")
@pytest.mark.timeout(900)
def test_each_of_two_queries_over_a_history_reads_each_row_once_under_kills(tmp_path: Path) -> None:
    outcome = history_storm(tmp_path, kills=3, seed=7)

    assert outcome.is_exact, outcome
    assert outcome.sent > 0
