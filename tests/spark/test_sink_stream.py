"""df.writeStream on a real Spark: each batch is published once, whatever dies and is repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

import rmq
from tests.servers import Server
from tests.spark.conftest import MISSING, ROOT, environment
from tests.spark.target import taken

pytestmark = pytest.mark.timeout(500)  # cold drivers on a busy machine

ROWS = 300  # of one file


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=8, dedup_window=0)  # so that no id is remembered
    made.open()
    return made


def add(here: Path, first: int, files: int = 2, topics: tuple[str, ...] = ("",)) -> None:
    """Files of rows, from number `first` on; they name these topics in turn."""
    (here / "in").mkdir(exist_ok=True)
    for file in range(files):
        at = first + file * ROWS
        rows = [{"value": str(n), "topic": topics[n % len(topics)]} for n in range(at, at + ROWS)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (here / "in" / f"{at:06d}.json").write_text(text)


def run(spark: SparkSession, url: str, topic: rmq.Topic, here: Path, **asked: Any) -> Any:
    given = {"url": url, "topic": topic.name, "checkpointLocation": str(here / "checkpoint")}
    query = (
        spark.readStream.schema("value string")
        .json(str(here / "in"))
        .writeStream.format("rmq")
        .options(**given | asked)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def forget_last_commit(here: Path) -> None:
    """As if Spark had died before it noted the last batch."""
    commits = here / "checkpoint" / "commits"
    last = max(commits.glob("[0-9]*"), key=lambda one: int(one.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def stages(raw: redis.Redis, topic: rmq.Topic) -> list[bytes]:
    keys: list[bytes] = raw.keys(f"*{{{topic.name}_*}}:stage:*")
    return keys


def test_batches_that_spark_repeats_add_nothing(
    spark: SparkSession, server: Server, topic: rmq.Topic, raw: redis.Redis, tmp_path: Path
) -> None:
    add(tmp_path, 0)
    run(spark, server.url, topic, tmp_path)
    assert taken(topic) == Counter(range(2 * ROWS))

    for _ in range(2):
        forget_last_commit(tmp_path)
        run(spark, server.url, topic, tmp_path)
        assert taken(topic) == Counter()

    add(tmp_path, 2 * ROWS)
    run(spark, server.url, topic, tmp_path)
    assert taken(topic) == Counter(range(2 * ROWS, 4 * ROWS))
    assert stages(raw, topic) == []


def test_query_of_another_checkpoint_is_another_query(
    spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path
) -> None:
    add(tmp_path, 0)
    run(spark, server.url, topic, tmp_path)

    run(spark, server.url, topic, tmp_path, checkpointLocation=str(tmp_path / "other"))

    assert taken(topic) == Counter({n: 2 for n in range(2 * ROWS)})


def test_full_topic_fails_the_query_and_its_batch_goes_on_when_there_is_room(
    spark: SparkSession, server: Server, client: rmq.Client, name: str, raw: redis.Redis,
    tmp_path: Path,
) -> None:  # fmt: skip
    topic = client.topic(name, slots=2, max_length=2 * ROWS - 100, dedup_window=0)
    topic.open()
    add(tmp_path, 0)

    with pytest.raises(Exception, match="is at its max_length of 500"):
        run(spark, server.url, topic, tmp_path)
    seen = taken(topic)
    assert 0 < seen.total() < 2 * ROWS
    run(spark, server.url, topic, tmp_path)

    assert seen + taken(topic) == Counter(range(2 * ROWS))
    assert stages(raw, topic) == []


def test_bad_row_fails_the_query_with_nothing_of_its_batch_published(
    spark: SparkSession, server: Server, client: rmq.Client, topic: rmq.Topic, tmp_path: Path
) -> None:
    add(tmp_path, 0)
    (tmp_path / "in" / "bad.json").write_text('{"value": null}\n')

    with pytest.raises(Exception, match="value: null; a message has a body"):
        run(spark, server.url, topic, tmp_path)

    assert client.admin.stats(topic.name)["accepted"] == 0


def test_batch_function_that_names_query_and_batch_publishes_each_batch_once(
    spark: SparkSession, server: Server, client: rmq.Client, topic: rmq.Topic, tmp_path: Path
) -> None:
    add(tmp_path, 0)

    def write(df: Any, batch: int) -> None:
        for _ in range(2):
            given = {"url": server.url, "topic": topic.name, "queryId": "copy"}
            df.write.format("rmq").mode("append").options(**given, batchId=batch).save()
        if len(seen) == 1:
            seen.append(batch)
            raise RuntimeError("the batch ends here")
        seen.append(batch)

    seen = [-1]
    rows = spark.readStream.schema("value string").json(str(tmp_path / "in"))
    writer = (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(Exception, match="the batch ends here"):
        writer.start().awaitTermination()
    writer.start().awaitTermination()

    assert seen == [-1, 0, 0]
    assert taken(topic) == Counter(range(2 * ROWS))
    assert client.admin.sinks(topic.name, "copy") == [rmq.Sink("copy", 0, None)]


def test_streaming_write_with_a_query_of_its_own_is_refused(
    spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path
) -> None:
    add(tmp_path, 0)
    with pytest.raises(Exception, match=r"queryId, batchId: a streaming write takes them from its"):
        run(spark, server.url, topic, tmp_path, queryId="q", batchId="1")


def test_complete_mode_is_refused_in_one_sentence(
    spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path
) -> None:
    add(tmp_path, 0)
    counts = (
        spark.readStream.schema("value string").json(str(tmp_path / "in")).groupBy("value").count()
    )

    with pytest.raises(Exception, match=r"outputMode: complete; a queue cannot be overwritten"):
        (
            counts.select("value").writeStream.format("rmq").outputMode("complete")
            .options(url=server.url, topic=topic.name, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True).start().awaitTermination()
        )  # fmt: skip


def died(server: Server, topic: str, here: Path, point: str) -> None:
    """Run a driver until it is killed where it was told to, or to its end."""
    if MISSING:
        pytest.fail(MISSING)
    with (here / f"log-{point}").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", server.url, topic, str(here), point],
            cwd=ROOT, env=os.environ | environment(), stdout=log, stderr=log,
        )  # fmt: skip
        code = driver.wait(240)
    text = (here / f"log-{point}").read_text()
    assert code == (0 if point == "end" else -signal.SIGKILL), text[-3000:]


def test_driver_killed_before_in_or_after_its_commit_publishes_each_row_once(
    server: Server, topic: rmq.Topic, raw: redis.Redis, tmp_path: Path
) -> None:
    add(tmp_path, 0, files=4)  # two batches
    seen: Counter[int] = Counter()
    counts = []
    for point in ("staged", "half", "published", "end"):
        died(server, topic.name, tmp_path, point)
        got = taken(topic)  # settled, and with a window of 0 no longer known
        counts.append(got.total())
        seen += got

    assert seen == Counter(range(4 * ROWS))
    assert counts[0] == 0
    assert 0 < counts[1] < 2 * ROWS  # some slots, and not all
    assert counts[1] + counts[2] == 2 * ROWS
    assert counts[3] == 2 * ROWS
    assert all(0 < raw.ttl(key) <= 86_400 for key in stages(raw, topic))


def test_driver_killed_between_the_topics_of_a_batch_publishes_each_row_once(
    server: Server, client: rmq.Client, topic: rmq.Topic, raw: redis.Redis, tmp_path: Path
) -> None:
    """The topic that is first by name knows the batch, and is the last to be published."""
    other = client.topic(f"{topic.name}-2", slots=4, dedup_window=0)
    other.open()
    add(tmp_path, 0, topics=(topic.name, other.name))
    seen: Counter[int] = Counter()
    counts = []
    for point in ("half", "between", "end"):
        died(server, "", tmp_path, point)
        got = [taken(each) for each in (other, topic)]
        counts.append([each.total() for each in got])
        seen += got[0] + got[1]
        noted = client.admin.sinks(topic.name)
        assert [(sink.published, sink.begun) for sink in noted] == [
            (0, None) if point == "end" else (None, 0)
        ]

    assert seen == Counter(range(2 * ROWS))
    assert 0 < counts[0][0] < ROWS
    assert counts[0][1] == 0
    assert counts[0][0] + counts[1][0] == ROWS
    assert counts[1][1] == ROWS
    assert counts[2] == [0, 0]
    assert all(0 < raw.ttl(key) <= 86_400 for each in (topic, other) for key in stages(raw, each))
