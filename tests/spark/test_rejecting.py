"""Rows that fail: `reject` and `nack` from `foreachBatch` of a real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as f

import rmq
import spark_connector
from rmq.connectors import Failures
from tests.servers import Server
from tests.spark.conftest import MISSING, ROOT, environment

pytestmark = pytest.mark.timeout(400)  # a cold Spark on a busy machine

Sink = Callable[[DataFrame, int], None]


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=2, retry="immediate", max_retries=3)
    made.open()
    return made


@pytest.fixture
def run(
    spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path
) -> Callable[..., None]:
    """Runs a query to its end, on one checkpoint."""

    def start(sink: Sink, **given: object) -> None:
        asked = {"url": server.url, "subscribe": topic.name, "includeQuery": "true"}
        asked |= {"ownerLeaseSeconds": "2"}
        asked |= {key: str(value) for key, value in given.items()}
        (
            spark.readStream.format("rmq").options(**asked).load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )  # fmt: skip

    return start


def fill(topic: rmq.Topic, count: int) -> dict[str, int]:
    """Send so many numbers; return them by id."""
    sent = topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(count)])
    return {str(one.id): n for n, one in enumerate(sent)}


def number(df: DataFrame) -> Any:
    return df.value.cast("string").cast("int")


def bad(df: DataFrame, one_in: int = 4) -> DataFrame:
    return df.where(number(df) % one_in == 0)


def reasons(df: DataFrame) -> DataFrame:
    return df.withColumn("reason", f.concat(f.lit("no such number: "), df.value.cast("string")))


def numbers(df: DataFrame) -> list[int]:
    return sorted(row[0] for row in df.select(number(df)).collect())


def dead(client: rmq.Client, topic: rmq.Topic) -> dict[int, str]:
    """The error of each dead letter, by its number."""
    found = client.admin.dead_letters(topic.name, limit=1000).messages
    assert len(found) == len({one.id for one in found})
    return {one.body: one.failure.error for one in found}


def state(client: rmq.Client, topic: rmq.Topic) -> tuple[int, int, int, int]:
    """Waiting, in flight, dead, settled."""
    stats = client.admin.stats(topic.name)
    waiting = sum(stats[name] for name in ("retries", "priority", "due", "later"))
    return waiting, stats["in_flight"], stats["dead"], stats["settled"]


def test_rejected_rows_are_dead_letters_with_their_reasons_and_the_rest_is_settled(
    run: Callable[..., None], client: rmq.Client, topic: rmq.Topic, server: Server
) -> None:
    fill(topic, 20)
    told: list[Failures] = []
    good: list[int] = []

    def sink(df: DataFrame, batch: int) -> None:
        if not batch:
            return
        told.append(spark_connector.reject(reasons(bad(df)), url=server.url))
        told.append(spark_connector.reject(reasons(bad(df)), url=server.url))
        good.extend(numbers(df.where(number(df) % 4 != 0)))

    run(sink)

    assert told == [Failures(dead=5), Failures(before=5)]
    assert dead(client, topic) == {n: f"no such number: {n}" for n in range(0, 20, 4)}
    assert sorted(good) == [n for n in range(20) if n % 4]
    assert state(client, topic) == (0, 0, 5, 15)


def test_a_batch_that_was_rejected_as_a_whole_is_settled(
    run: Callable[..., None], client: rmq.Client, topic: rmq.Topic, server: Server
) -> None:
    fill(topic, 12)
    told: list[Failures] = []

    def sink(df: DataFrame, batch: int) -> None:
        if batch:
            told.append(spark_connector.reject(reasons(df), url=server.url))

    run(sink, maxMessagesPerTrigger=6)

    assert sum(each.dead for each in told) == 12
    assert state(client, topic) == (0, 0, 12, 0)
    run(sink)  # its start settles what has ended, and misses nothing
    assert state(client, topic) == (0, 0, 12, 0)


def test_rows_given_back_come_again_and_die_after_their_last_retry(
    run: Callable[..., None], client: rmq.Client, topic: rmq.Topic, server: Server
) -> None:
    fill(topic, 8)
    seen: list[tuple[int, int]] = []
    told: list[Failures] = []

    def sink(df: DataFrame, batch: int) -> None:
        if not batch:
            return
        rows = bad(df).withColumn("error", f.lit("not yet"))
        late = f.when(number(df) == 4, 3_600_000).cast("long")
        told.append(spark_connector.nack(rows.withColumn("delay_ms", late), url=server.url))
        seen.extend((row[0], row[1]) for row in rows.select(number(df), "attempt").collect())

    for _ in range(5):
        run(sink)

    assert seen == [(0, 1), (4, 1), (0, 2), (0, 3), (0, 4)] or sorted(seen) == [
        (0, 1), (0, 2), (0, 3), (0, 4), (4, 1),
    ]  # fmt: skip
    assert sum(each.retried for each in told) == 4
    assert sum(each.dead for each in told) == 1
    assert dead(client, topic) == {0: "not yet"}
    assert state(client, topic) == (1, 0, 1, 6)


def test_a_batch_that_failed_after_it_is_replayed_and_rejects_nothing_twice(
    run: Callable[..., None], client: rmq.Client, topic: rmq.Topic, server: Server
) -> None:
    fill(topic, 20)
    told: list[Failures] = []
    batches: list[list[Any]] = []

    def sink(df: DataFrame, batch: int) -> None:
        if not batch:
            return
        rows = [(row.message_id, row.seq, row.attempt, bytes(row.value)) for row in df.collect()]
        batches.append(sorted(rows))
        told.append(spark_connector.reject(reasons(bad(df, 5)), url=server.url))
        delayed = df.where(number(df) == 1).withColumn("delay_ms", f.lit(3_600_000))
        told.append(spark_connector.nack(delayed, url=server.url))
        if len(batches) == 1:
            raise RuntimeError("the sink is away")

    with pytest.raises(Exception, match="the sink is away"):
        run(sink)
    assert state(client, topic) == (1, 15, 4, 0)
    run(sink)

    assert told == [Failures(dead=4), Failures(retried=1), Failures(before=4), Failures(before=1)]
    assert batches[0] == batches[1]
    assert state(client, topic) == (1, 0, 4, 15)


def test_a_row_given_back_and_settled_by_another_is_replayed_without_its_value(
    run: Callable[..., None], client: rmq.Client, topic: rmq.Topic, server: Server
) -> None:
    fill(topic, 4)
    batches: list[list[Any]] = []

    def sink(df: DataFrame, batch: int) -> None:
        if not batch:
            return
        rows = df.where("unreadable is null and cast(value as string) = '2'")
        spark_connector.nack(rows, url=server.url)
        batches.append(df.orderBy("slot", "seq").collect())
        if len(batches) == 1:
            with topic.consumer() as consumer:
                (taken,) = consumer.receive(1, wait=5)
                assert (taken.body, taken.attempt) == (2, 2)
                taken.ack()
            raise RuntimeError("the sink is away")

    with pytest.raises(Exception, match="the sink is away"):
        run(sink)
    run(sink)

    first, second = batches
    assert [row.message_id for row in first] == [row.message_id for row in second]
    assert [row.attempt for row in second] == [1] * 4
    unread = [row.unreadable for row in second if row.unreadable]
    assert unread == ["its record is missing"]
    assert state(client, topic) == (0, 0, 0, 4)


def test_messages_that_are_no_longer_held_are_counted_and_left_to_who_has_them(
    run: Callable[..., None], client: rmq.Client, topic: rmq.Topic, server: Server
) -> None:
    fill(topic, 6)
    told: list[Failures] = []

    def sink(df: DataFrame, batch: int) -> None:
        if not batch or told:
            return
        kept = df.persist()
        query = topic.query(kept.first().query, "an operator")
        query.release()
        with topic.consumer() as consumer:
            taken = consumer.receive(10, wait=5)
            told.append(spark_connector.reject(reasons(kept), url=server.url))
            consumer.ack(taken)
        assert len(taken) == 6

    run(sink, onClaimLoss="continue")

    assert told == [Failures(lost=6)]
    assert state(client, topic) == (0, 0, 0, 6)


def test_rows_of_several_topics_and_rows_given_twice(
    spark: SparkSession,
    run: Callable[..., None],
    client: rmq.Client,
    topic: rmq.Topic,
    server: Server,
) -> None:
    other = client.topic(f"{topic.name}-other", slots=3, retry="immediate")
    other.open()
    fill(topic, 6)
    fill(other, 6)
    told: list[Failures] = []

    def sink(df: DataFrame, batch: int) -> None:
        if batch:
            rows = reasons(df.where(number(df) < 3))
            told.append(spark_connector.reject(rows.union(rows).union(rows), url=server.url))

    run(sink, subscribe=f"{topic.name},{other.name}")

    counts = [sum(each[n] for each in told) for n in range(4)]
    assert counts == [0, 6, 12, 0]
    for each in (topic, other):
        assert set(dead(client, each)) == {0, 1, 2}
        assert state(client, each) == (0, 0, 3, 3)


ID = "0" * 26
GOOD: dict[str, Any] = {
    "message_id": ID, "topic": "t", "slot": 0, "seq": 1, "query": "a" * 32, "reason": "why",
}  # fmt: skip
SCHEMA = "message_id string, topic string, slot int, seq bigint, query string, reason string"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"reason": "drop"}, "reason: reject needs this column"),
        ({"query": "drop"}, "query: reject needs this column; give readStream the option includeQ"),
        ({"seq": "string"}, "seq: string; cast it to bigint"),
        ({"message_id": "binary"}, "message_id: binary; cast it to string"),
        ({"reason": "map<string,string>"}, r"reason: map<string,string>; cast it to string"),
    ],
)
def test_columns_that_cannot_work_are_named_before_a_task_runs(
    spark: SparkSession, server: Server, given: dict[str, str], told: str
) -> None:
    fields = dict(part.split() for part in SCHEMA.split(", ")) | given
    schema = ", ".join(f"{name} {kind}" for name, kind in fields.items() if kind != "drop")

    with pytest.raises(rmq.InvalidValue, match=told):
        spark_connector.reject(spark.createDataFrame([], schema), url=server.url)


def test_a_column_that_is_nearly_one_is_named(spark: SparkSession, server: Server) -> None:
    schema = SCHEMA.replace("reason string", "delay_s bigint")

    with pytest.raises(rmq.InvalidValue, match="delay_s: did you mean delay_ms"):
        spark_connector.nack(spark.createDataFrame([], schema), url=server.url)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"reason": None}, "reason: null"),
        ({"seq": None}, "seq: null"),
        ({"message_id": "x"}, "message_id: 'x' is not a message id"),
        ({"query": "x"}, "query: 'x'; give 32 hex digits"),
        ({"seq": 0}, "seq: 0; the numbers of a query begin with 1"),
        ({"topic": "a b"}, "topic: "),
        ({}, "message_id: 00000000000000000000000000 is not of slot 0"),
    ],
)
def test_values_that_cannot_be_are_named(
    spark: SparkSession, topic: rmq.Topic, server: Server, given: dict[str, Any], told: str
) -> None:
    row = GOOD | {"topic": topic.name} | given

    with pytest.raises(Exception, match=told) as caught:
        spark_connector.reject(
            spark.createDataFrame([tuple(row.values())], SCHEMA).coalesce(1), url=server.url
        )
    assert "InvalidValue" in str(caught.value)


def test_a_streaming_frame_and_an_address_that_cannot_work_are_refused(
    spark: SparkSession, server: Server, topic: rmq.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)
    asked = {"url": server.url, "subscribe": topic.name}
    stream = spark.readStream.format("rmq").options(**asked).load()
    frame = spark.createDataFrame([], SCHEMA)

    with pytest.raises(rmq.InvalidValue, match="foreachBatch"):
        spark_connector.reject(stream, url=server.url)
    with pytest.raises(rmq.ConfigurationError, match="url: it is missing"):
        spark_connector.reject(frame)
    with pytest.raises(rmq.ConfigurationError, match="prefix"):
        spark_connector.reject(frame, url=server.url, prefix="a b")
    monkeypatch.setenv("RMQ_URL", server.url)
    assert spark_connector.reject(frame) == Failures()


# --- a driver that is killed ---------------------------------------------------------------------


@pytest.fixture
def drive(server: Server, topic: rmq.Topic, tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Runs drivers of one query, each until it ends or kills its JVM; returns the exit code."""
    started: list[subprocess.Popen[bytes]] = []

    def start(point: str) -> int:
        if MISSING:
            pytest.fail(MISSING)
        words = ["-m", "tests.spark.reject_driver", server.url, topic.name, str(tmp_path), point]
        with (tmp_path / f"log-{point}").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, *words],
                    cwd=ROOT, env=os.environ | environment(), stdout=log, stderr=log,
                )
            )  # fmt: skip
        return started[-1].wait(240)

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


@pytest.mark.parametrize("marked", [True, False])
def test_a_driver_killed_after_it_has_rejected_replays_and_each_message_ends_once(
    client: rmq.Client,
    topic: rmq.Topic,
    server: Server,
    drive: Callable[[str], int],
    tmp_path: Path,
    marked: bool,
) -> None:
    """The negative control takes the marks away: the batch is then not the same when it ends."""
    fill(topic, 20)

    assert drive("rejected") == -signal.SIGKILL
    assert state(client, topic) == (1, 14, 5, 0)
    if not marked:
        with server.raw() as raw:
            assert raw.delete(*raw.keys(f"rmq:{{{topic.name}_*:querymarks:*")) == 2
    code = drive("end")

    log = (tmp_path / "log-end").read_text()
    assert code == 0, log[-3000:]
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("rejected", "end"))
    told = json.loads((tmp_path / "told").read_text())
    if not marked:
        assert "could not be settled" in told["error"]
        return
    assert told["error"] == ""
    assert first["rows"] == second["rows"]
    assert first["counts"] == [[0, 5, 0, 0], [1, 0, 0, 0]]
    assert second["counts"] == [[0, 0, 5, 0], [0, 0, 1, 0]]
    assert set(dead(client, topic)) == {0, 4, 8, 12, 16}
    assert state(client, topic) == (1, 0, 5, 14)
