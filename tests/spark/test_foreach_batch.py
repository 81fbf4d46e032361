"""Streams without a data source in Python; `make spark-versions` plays them on Spark 3.5, too."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import rmq
import spark_connector
from rmq.errors import ConfigurationError
from spark_connector import foreach_batch
from tests.servers import Server
from tests.spark.conftest import ROOT
from tests.spark.foreach_storm import HelperStorm
from tests.spark.test_faults import Drivers

pytestmark = [
    pytest.mark.timeout(400),  # a cold Spark on a busy machine
    pytest.mark.skipif(
        find_spec("pandas") is None, reason="no pandas: make spark-versions brings it"
    ),
]

PATIENCE_S = 120.0


class Helper:
    """Queries of one topic on one checkpoint, and the rows that each batch brought."""

    def __init__(self, spark: SparkSession, url: str, topic: str, checkpoint: Path) -> None:
        self._spark, self._url, self._topic = spark, url, topic
        self.checkpoint = checkpoint
        self.batches: list[tuple[int, list[Row]]] = []

    def keep(self, df: DataFrame, batch: int) -> None:
        self.batches.append((batch, sorted(df.collect())))

    def start(
        self, function: foreach_batch.Function | None = None, available_now: bool = True
    ) -> StreamingQuery:
        options = {
            "url": self._url, "subscribe": self._topic, "ownerLeaseSeconds": 2,
            "maxMessagesPerTrigger": 10, "includeHeaders": True,
        }  # fmt: skip
        return spark_connector.read_stream(self._spark, options).foreach_batch(
            function or self.keep, str(self.checkpoint), available_now=available_now
        )

    def run(self, function: foreach_batch.Function | None = None) -> None:
        self.start(function).awaitTermination()

    def fail(self) -> tuple[int, list[Row]]:
        """Run a query whose function fails after its first batch. Return the batch."""

        def fails(df: DataFrame, batch: int) -> None:
            self.keep(df, batch)
            raise RuntimeError("the sink is full")

        with pytest.raises(Exception, match="the sink is full"):
            self.run(fails)
        return self.batches.pop()

    def values(self) -> list[int]:
        return sorted(int(row.value) for _, rows in self.batches for row in rows)


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=3, retry="immediate")
    made.open()
    return made


@pytest.fixture
def helper(spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path) -> Helper:
    return Helper(spark, server.url, topic.name, tmp_path / "checkpoint")


@pytest.fixture
def drivers(server: Server, topic: rmq.Topic, tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(server.url, topic.name, tmp_path)
    made.module = "tests.spark.foreach_driver"
    yield made
    for one in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def fill(topic: rmq.Topic, count: int, first: int = 0) -> set[str]:
    sent = topic.send_many(
        [
            rmq.Outgoing(n, slot_basis=str(n), headers={"n": str(n)})
            for n in range(first, first + count)
        ]
    )
    return {str(one.id) for one in sent}


def state(client: rmq.Client, topic: rmq.Topic) -> tuple[int, int]:
    """In flight, settled."""
    stats = client.admin.stats(topic.name)
    return stats["in_flight"], stats["settled"]


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_available_now_brings_each_message_once_and_settles_it_after_its_batch(
    client: rmq.Client, topic: rmq.Topic, helper: Helper
) -> None:
    fill(topic, 25)
    settled = []

    def function(df: DataFrame, batch: int) -> None:
        helper.keep(df, batch)
        settled.append(state(client, topic)[1])

    helper.run(function)
    fill(topic, 5, 25)
    helper.run(function)

    assert [len(rows) for _, rows in helper.batches] == [10, 10, 5, 5]
    assert all(done <= ended for done, ended in zip(settled, (0, 10, 20, 25), strict=True))
    assert helper.values() == list(range(30))
    assert state(client, topic) == (0, 30)
    row = helper.batches[0][1][0]
    assert (row.topic, row.attempt, row.headers) == (topic.name, 1, {"n": str(int(row.value))})


def test_a_stopped_query_ends_at_once_and_its_next_run_continues(
    client: rmq.Client, topic: rmq.Topic, helper: Helper
) -> None:
    for first in (0, 15):
        query = helper.start(available_now=False)
        fill(topic, 15, first)
        until(lambda first=first: state(client, topic) == (0, first + 15))  # type: ignore[misc]
        begun = time.monotonic()
        query.stop()
        assert time.monotonic() - begun < foreach_batch.IDLE_S

    assert helper.values() == list(range(30))


def test_a_failed_batch_is_repeated_and_what_was_taken_ahead_is_given_back(
    client: rmq.Client, topic: rmq.Topic, helper: Helper
) -> None:
    fill(topic, 25)

    failed = helper.fail()
    until(lambda: state(client, topic) == (10, 0))
    with topic.consumer() as consumer:  # it gets messages of no batch
        others = consumer.receive(3)
        consumer.ack(others)
    assert helper.fail() == failed
    helper.run()

    assert helper.batches[0] == failed
    assert sorted(helper.values() + [one.body for one in others]) == list(range(25))
    assert state(client, topic) == (0, 25)


def test_an_older_copy_of_the_checkpoint_is_refused(
    client: rmq.Client, topic: rmq.Topic, helper: Helper
) -> None:
    fill(topic, 25)
    helper.run()
    for log, first in (("offsets", 1), ("commits", 0)):
        for file in (helper.checkpoint / log).iterdir():
            if int(file.name.strip(".").partition(".")[0]) >= first:
                file.unlink()
    fill(topic, 5, 25)

    with pytest.raises(
        Exception, match="older copy; Spark begins batch 0, and batch 2 was planned"
    ):
        helper.run()

    assert state(client, topic) == (0, 25)


def test_a_checkpoint_without_its_plans_is_refused(
    client: rmq.Client, topic: rmq.Topic, helper: Helper
) -> None:
    fill(topic, 5)
    helper.run()
    shutil.rmtree(helper.checkpoint / foreach_batch.FOLDER)
    fill(topic, 5, 5)

    with pytest.raises(Exception, match=r"folder 'rmq' is missing, and Spark begins batch [12]"):
        helper.run()

    assert state(client, topic) == (0, 5)


def test_a_function_that_reads_nothing_does_not_settle_its_batch(
    client: rmq.Client, topic: rmq.Topic, helper: Helper
) -> None:
    fill(topic, 5)

    with pytest.raises(Exception, match="no task has read any"):
        helper.run(lambda df, batch: None)

    assert state(client, topic) == (5, 0)


def test_wrong_options_are_refused_before_the_query_starts(
    spark: SparkSession, helper: Helper
) -> None:
    with pytest.raises(ConfigurationError, match="did you mean maxMessagesPerTrigger"):
        spark_connector.read_stream(spark, {"subscribe": "a", "maxMessagePerTrigger": 1})
    with pytest.raises(ConfigurationError, match="consume: a history can only be read"):
        spark_connector.read_stream(spark, {"subscribe": "a", "consume": False})
    with pytest.raises(ConfigurationError, match="processing_time, available_now"):
        spark_connector.read_stream(spark, {"url": "redis://a", "subscribe": "a"}).foreach_batch(
            helper.keep, str(helper.checkpoint), processing_time="1 second", available_now=True
        )
    assert not helper.checkpoint.exists()


def test_a_batch_is_repeated_exactly_wherever_its_driver_was_killed(
    client: rmq.Client, topic: rmq.Topic, drivers: Drivers, tmp_path: Path
) -> None:
    sent = fill(topic, 25)

    for point, commits in (
        ("taken", -1), ("planned", -1), ("reading", -1), ("called", -1), ("committed", 0),
    ):  # fmt: skip
        drivers.run(point, point)
        assert drivers.last("commits") == commits
        in_flight, settled = state(client, topic)
        assert settled == 0
        assert in_flight >= 10  # a whole batch, and what was taken ahead
    drivers.run("end", "end")

    assert drivers.rows(0, "called") == drivers.rows(0, "committed")
    batches = [drivers.rows(0, "committed")]
    batches += [json.loads(path.read_text()) for path in tmp_path.glob("*-end.json")]
    assert sorted(str(row[2]) for batch in batches for row in batch) == sorted(sent)
    assert {row[3] for batch in batches for row in batch} == {1}
    assert state(client, topic) == (0, 25)


def test_the_program_of_the_page_runs(
    client: rmq.Client, topic: rmq.Topic, server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    (program,) = re.findall(r"^```python3\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = program.replace("redis://localhost:6379/0", server.url)
    program = program.replace('"orders"', repr(topic.name)).replace('"data/', f'"{tmp_path}/')
    topic.send({"customer": "ada"})

    exec(compile(program, "page", "exec"), {"__name__": "page"})

    (row,) = spark.read.json(f"{tmp_path}/out/*").collect()
    assert row.body == '{"customer":"ada"}'
    assert state(client, topic) == (0, 1)


@pytest.mark.timeout(900)
def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = HelperStorm(tmp_path, 4, 7, "", 600.0, "").play()

    assert outcome.is_exact, outcome
    assert outcome.sent > 0


@pytest.mark.timeout(900)
def test_check_of_a_storm_finds_a_planned_batch_that_is_settled(tmp_path: Path) -> None:
    outcome = HelperStorm(tmp_path, 4, 7, "", 600.0, "settles-planned").play()

    assert outcome.missing > 0, outcome
