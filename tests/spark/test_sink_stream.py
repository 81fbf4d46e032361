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


def add(here: Path, first: int, files: int = 2) -> None:
    """Files of rows, from number `first` on."""
    (here / "in").mkdir(exist_ok=True)
    for file in range(files):
        at = first + file * ROWS
        text = "".join(json.dumps({"value": str(n)}) + "\n" for n in range(at, at + ROWS))
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


def test_complete_mode_is_refused_in_one_sentence(
    spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path
) -> None:
    add(tmp_path, 0)
    counts = (
        spark.readStream.schema("value string").json(str(tmp_path / "in")).groupBy("value").count()
    )

    with pytest.raises(Exception, match=r"outputMode: complete; a queue is not overwritten"):
        (
            counts.select("value").writeStream.format("rmq").outputMode("complete")
            .options(url=server.url, topic=topic.name, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True).start().awaitTermination()
        )  # fmt: skip


def test_driver_killed_before_in_or_after_its_commit_publishes_each_row_once(
    server: Server, topic: rmq.Topic, raw: redis.Redis, tmp_path: Path
) -> None:
    if MISSING:
        pytest.fail(MISSING)
    add(tmp_path, 0, files=4)  # two batches
    seen: Counter[int] = Counter()
    counts = []
    for point in ("staged", "half", "published", "end"):
        with (tmp_path / f"log-{point}").open("wb") as log:
            driver = subprocess.Popen(
                [
                    sys.executable, "-m", "tests.spark.sink_driver", server.url, topic.name,
                    str(tmp_path), point,
                ],
                cwd=ROOT, env=os.environ | environment(), stdout=log, stderr=log,
            )  # fmt: skip
            code = driver.wait(240)
        text = (tmp_path / f"log-{point}").read_text()
        assert code == (0 if point == "end" else -signal.SIGKILL), text[-3000:]
        got = taken(topic)  # settled, and with a window of 0 no longer known
        counts.append(got.total())
        seen += got

    assert seen == Counter(range(4 * ROWS))
    assert counts[0] == 0
    assert 0 < counts[1] < 2 * ROWS  # some slots, and not all
    assert counts[1] + counts[2] == 2 * ROWS
    assert counts[3] == 2 * ROWS
    assert all(0 < raw.ttl(key) <= 86_400 for key in stages(raw, topic))
