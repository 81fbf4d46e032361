"""Reads of a history: each acked message once, in batches and as streams, on a real Spark."""

from __future__ import annotations

import json
import logging
import pickle
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import rmq
from rmq.errors import ConfigurationError, HistoryLost
from spark_connector import history, options
from spark_connector.history import HistoryReader, HistoryStreamReader
from spark_connector.schema import history_schema
from spark_connector.versions import ReadAllAvailable
from tests.servers import Server

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

KEEP = rmq.History(keep="1h", max_bytes="64MiB")
SMALL = rmq.History(keep="1h", max_bytes="1MiB")
Offset = dict[str, Any]


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=3, history=KEEP)
    made.open()
    return made


def settle(topic: rmq.Topic, count: int, first: int = 0, most: int = 7, size: int = 0) -> None:
    """Send numbers, and ack them in batches of at most `most` messages."""
    padding = "x" * size
    topic.send_many(
        [
            rmq.Outgoing(f"{n} {padding}" if size else n, slot_basis=str(n), headers={"n": str(n)})
            for n in range(first, first + count)
        ]
    )
    with topic.consumer() as consumer:
        while count > 0:
            deliveries = consumer.receive(min(count, most), wait=1)
            consumer.ack(deliveries)
            count -= len(deliveries)


def overfill(topic: rmq.Topic) -> None:
    """Ack messages until each slot has removed its oldest messages."""
    for first in range(0, 4000, 100):
        settle(topic, 100, 1000 + first, most=100, size=1000)


def rows_of(reader: Any, parts: list[Any]) -> list[dict[str, Any]]:
    return [
        row
        for part in parts
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(part)))
        for row in batch.to_pylist()
    ]


def bodies(rows: list[dict[str, Any]]) -> list[int]:
    return [json.loads(row["value"]) for row in rows]


# --- batches -------------------------------------------------------------------------------------


def batch_reader(server: Server, topic: rmq.Topic, **given: object) -> HistoryReader:
    asked = {"url": server.url, "subscribe": topic.name, "queue": "history"}
    found = options.history(asked | {key: str(value) for key, value in given.items()})
    return HistoryReader(found, history_schema(found.headers, found.columns))


def test_a_batch_has_the_acked_messages_and_a_repeated_task_reads_the_same_rows(
    server: Server, topic: rmq.Topic
) -> None:
    settle(topic, 50)
    topic.send("waits")
    reader = batch_reader(server, topic, includeHeaders="n", fetchSize=9)

    parts = reader.partitions()
    settle(topic, 10, 50)
    rows = rows_of(reader, parts)

    assert sorted(bodies(rows)) == list(range(50))
    assert rows == rows_of(reader, parts)
    assert len(parts) == 3
    page = topic.history.read(limit=100)
    expected = {str(m.id): (m.slot, m.acked_at, m.headers.get("n")) for m in page.messages}
    for row in rows:
        found = row["slot"], row["acked_at"], row["n"]
        assert found == expected[row["message_id"]]
        assert (row["topic"], row["unreadable"]) == (topic.name, None)


def test_time_positions_and_slots_select_rows_of_a_batch(server: Server, topic: rmq.Topic) -> None:
    settle(topic, 10)
    time.sleep(0.01)
    middle = int(time.time() * 1000)
    position = json.dumps({topic.name: topic.history.position()})
    time.sleep(0.01)
    settle(topic, 10, 10)
    iso = datetime.fromtimestamp(middle / 1000, UTC).isoformat()

    def read(**given: object) -> list[int]:
        reader = batch_reader(server, topic, **given)
        return sorted(bodies(rows_of(reader, reader.partitions())))

    old, new = list(range(10)), list(range(10, 20))
    assert read() == read(startingOffsets="earliest", endingOffsets="latest") == old + new
    assert read(startingTimestamp=middle) == read(startingTimestamp=iso) == new
    assert read(endingTimestamp=middle) == read(endingTimestamp=iso.replace("+00:00", "")) == old
    assert read(endingTimestamp=int(time.time() * 1000) + 60_000) == old + new
    assert read(startingOffsets=position) == new
    assert read(endingOffsets=position) == old
    assert read(startingOffsets=position, endingTimestamp=middle) == []
    by_slot = sorted(n for slot in range(3) for n in read(slots=slot))
    assert by_slot == read(slots="0,1,2") == old + new
    reader = batch_reader(server, topic, columns="acked_at,slot", minPartitions=12)
    parts = reader.partitions()
    assert len(parts) > 3
    rows = rows_of(reader, parts)
    assert len(rows) == 20
    assert list(rows[0]) == ["acked_at", "slot"]
    with pytest.raises(ConfigurationError, match=r"slots: 3; topic .* has 3, numbered"):
        batch_reader(server, topic, slots=3).partitions()
    with pytest.raises(ConfigurationError, match=r"slot 3; topic .* has 3, numbered"):
        read(startingOffsets=json.dumps({topic.name: {"3": "1-1"}}))


@pytest.mark.parametrize(
    ("after", "upto", "oldest", "cuts"),
    [
        ("0-0", "400-5", 100, ["200-0", "300-0"]),
        ("250-0", "400-5", 100, ["300-0", "350-0"]),
        ("400-0", "400-5", 100, []),
        ("0-0", "2-0", 900, []),
        ("5-18446744073709551615", "7-0", 0, ["6-0"]),
    ],
)
def test_a_span_is_divided_by_time(after: str, upto: str, oldest: int, cuts: list[str]) -> None:
    parts = list(history.divided(after, upto, oldest, 3))

    assert [last for _, last in parts[:-1]] == cuts
    assert [first for first, _ in parts] == [after, *cuts]
    assert parts[-1][1] == upto


def test_a_topic_without_a_history_and_a_topic_that_is_missing_are_reported(
    server: Server, client: rmq.Client, name: str
) -> None:
    plain = client.topic(name)
    with pytest.raises(ConfigurationError, match="is not in this Redis"):
        batch_reader(server, plain).partitions()
    plain.open()
    with pytest.raises(ConfigurationError, match="keeps no history; turn it on: rmq topic set"):
        batch_reader(server, plain).partitions()


def test_a_batch_of_removed_messages_fails_or_continues_with_a_warning(
    server: Server, client: rmq.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = client.topic(name, slots=2, history=SMALL)
    settle(topic, 100)
    fails, continues = (
        batch_reader(server, topic, failOnDataLoss=word) for word in ("true", "false")
    )
    parts = fails.partitions()
    overfill(topic)

    with pytest.raises(HistoryLost, match=f"'{name}', slot .: .*restart with failOnDataLoss=false"):
        rows_of(fails, parts)
    with caplog.at_level(logging.WARNING, "spark_connector"):
        assert rows_of(continues, parts) == []
    assert "were removed" in caplog.text
    assert len(rows_of(fails, fails.partitions())) > 100


# --- streams -------------------------------------------------------------------------------------


def stream_reader(server: Server, *topics: rmq.Topic, **given: object) -> HistoryStreamReader:
    asked = {"url": server.url, "subscribe": ",".join(topic.name for topic in topics)}
    asked |= {"consume": "false", "pollWaitMs": "0", "startingOffsets": "earliest"}
    found = options.history(asked | {key: str(value) for key, value in given.items()})
    return HistoryStreamReader(found, history_schema(found.headers))


def latest(reader: HistoryStreamReader, start: Offset, limit: Any = None) -> Offset:
    found = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def batch_of(reader: HistoryStreamReader, start: Offset, end: Offset) -> list[int]:
    return bodies(rows_of(reader, reader.partitions(start, end)))


def test_a_stream_reads_each_message_once_in_batches_and_takes_nothing(
    server: Server, client: rmq.Client, topic: rmq.Topic
) -> None:
    settle(topic, 50)
    waiting = topic.send("waits")
    reader = stream_reader(server, topic, maxMessagesPerTrigger=20)
    at, found, sizes = json.loads(json.dumps(reader.initialOffset())), [], []
    while (end := latest(reader, at)) != at:
        rows = batch_of(reader, at, end)
        assert sorted(batch_of(stream_reader(server, topic), at, end)) == sorted(rows)
        found += rows
        sizes.append(len(rows))
        at = end

    assert sorted(found) == list(range(50))
    assert all(size <= 20 for size in sizes)
    assert [m.id for m in client.admin.peek(topic.name, 5)] == [waiting.id]
    settle(topic, 30, 50)
    assert len(batch_of(reader, at, latest(reader, at, ReadAllAvailable()))) == 30


def test_the_first_batch_is_repeated_although_the_latest_position_has_moved(
    server: Server, topic: rmq.Topic
) -> None:
    settle(topic, 10)
    first = stream_reader(server, topic, startingOffsets="latest")
    start = first.initialOffset()
    assert latest(first, start) == start
    assert first.partitions(first.initialOffset(), start) == []
    settle(topic, 10, 10)
    end = latest(first, start)
    settle(topic, 10, 20)

    second = stream_reader(server, topic, startingOffsets="latest")
    again = second.initialOffset()

    assert again != start
    assert sorted(batch_of(second, again, end)) == list(range(10, 20))
    assert sorted(batch_of(second, end, latest(second, end))) == list(range(20, 30))


def test_spark_4_0_passes_no_start(server: Server, topic: rmq.Topic) -> None:
    settle(topic, 10)
    first = stream_reader(server, topic, maxMessagesPerTrigger=6)
    end = first.latestOffset()
    rows = batch_of(first, first.initialOffset(), end)
    after = first.latestOffset()
    first.commit(end)
    rows += batch_of(first, end, after)
    assert first.latestOffset() == after
    assert sorted(rows) == list(range(10))

    settle(topic, 5, 10)
    second = stream_reader(server, topic)
    assert second.partitions(after, after) == []
    assert sorted(batch_of(second, end, after) + batch_of(first, end, after)) == sorted(
        2 * batch_of(second, end, after)
    )
    assert sorted(batch_of(second, after, second.latestOffset())) == list(range(10, 15))


def test_a_stream_begins_at_a_time_or_a_position(server: Server, topic: rmq.Topic) -> None:
    settle(topic, 10)
    time.sleep(0.01)
    middle = int(time.time() * 1000)
    position = topic.history.position()
    del position[0]
    time.sleep(0.01)
    settle(topic, 10, 10)

    def read(**given: object) -> list[int]:
        reader = stream_reader(server, topic, **given)
        start = reader.initialOffset()
        return sorted(batch_of(reader, start, latest(reader, start)))

    by_time = options.history(
        {"url": server.url, "subscribe": topic.name, "consume": "false",
         "startingTimestamp": str(middle), "pollWaitMs": "0"}
    )  # fmt: skip
    reader = HistoryStreamReader(by_time, history_schema(False))
    start = reader.initialOffset()
    assert sorted(batch_of(reader, start, latest(reader, start))) == list(range(10, 20))
    slot_0 = [m.body for m in topic.history.read(slots=[0], limit=100).messages]
    assert read(startingOffsets=json.dumps({topic.name: position})) == sorted(
        {*slot_0, *range(10, 20)}
    )


def test_a_resize_adds_slots_and_two_topics_share_a_batch(
    server: Server, client: rmq.Client, topic: rmq.Topic, name: str
) -> None:
    other = client.topic(f"{name}-2", slots=1, history=KEEP)
    settle(topic, 30)
    settle(other, 30, 100)
    reader = stream_reader(server, topic, other, maxMessagesPerTrigger=20)
    at = reader.initialOffset()
    end = latest(reader, at)
    found = batch_of(reader, at, end)
    assert len([n for n in found if n >= 100]) in range(5, 11)
    client.admin.topic_resize(topic.name, 6)
    settle(client.topic(topic.name), 30, 30)
    while (after := latest(reader, end)) != end:
        found += batch_of(reader, end, after)
        end = after

    assert sorted(found) == [*range(60), *range(100, 130)]
    assert len(end["history"][topic.name]) == 6


def test_a_topic_joins_a_query_and_cannot_leave_it(
    server: Server, client: rmq.Client, topic: rmq.Topic, name: str
) -> None:
    settle(topic, 5)
    other = client.topic(f"{name}-2", history=KEEP)
    settle(other, 5, 5)
    one = stream_reader(server, topic, startingOffsets="latest")
    at = one.initialOffset()

    both = stream_reader(server, topic, other, startingOffsets="latest")
    end = latest(both, at)

    assert sorted(batch_of(stream_reader(server, topic, other), at, end)) == list(range(5, 10))
    with pytest.raises(ConfigurationError, match=r"checkpoint: it has topic .*; add it to subscr"):
        latest(one, end)


def test_removed_messages_end_a_stream_or_it_continues_with_a_warning(
    server: Server, client: rmq.Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = client.topic(name, slots=2, history=SMALL)
    settle(topic, 100)
    reader = stream_reader(server, topic)
    at = reader.initialOffset()
    end = latest(reader, at)
    overfill(topic)

    for call in (lambda: batch_of(reader, at, end), lambda: latest(reader, end)):
        with pytest.raises(HistoryLost) as caught:
            call()
        assert f"topic '{name}', slot " in str(caught.value)
        assert "restart with failOnDataLoss=false" in str(caught.value)
        assert f"rmq topic set {name} --history" in str(caught.value)
        assert caught.value.removed_to > caught.value.position
    reader = stream_reader(server, topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "spark_connector"):
        assert batch_of(reader, at, end) == []
        after = latest(reader, end)
    assert "were removed" in caplog.text
    kept = [m.record for m in topic.history.read(limit=10_000).messages]
    assert len(rows_of(reader, reader.partitions(end, after))) == len(kept)
    assert latest(reader, after) == after


def test_a_topic_that_was_created_again_is_a_loss(
    server: Server, client: rmq.Client, topic: rmq.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    settle(topic, 10)
    reader = stream_reader(server, topic)
    at = reader.initialOffset()
    end = latest(reader, at)
    parts = reader.partitions(at, end)
    client.admin.topic_delete(topic.name, force=True)
    again = client.topic(topic.name, slots=1, history=KEEP)
    settle(again, 5, 50)

    with pytest.raises(HistoryLost, match="was deleted and created again"):
        latest(reader, end)
    with pytest.raises(HistoryLost, match="was deleted and created again"):
        rows_of(reader, parts)
    reader = stream_reader(server, topic, failOnDataLoss="false")
    assert rows_of(reader, parts) == []
    after = latest(reader, end)
    assert sorted(batch_of(reader, end, after)) == list(range(50, 55))
    assert sorted(batch_of(stream_reader(server, topic), end, after)) == list(range(50, 55))
    assert latest(reader, after) == after


@pytest.mark.parametrize(
    "given", [{"v": 2, "run": "r", "topics": {}}, {"v": 1, "topic": "t"}, "text", {}]
)
def test_a_checkpoint_of_another_stream_is_refused(
    server: Server, topic: rmq.Topic, given: Any
) -> None:
    with pytest.raises(ConfigurationError, match="is not an offset of a stream with consume=fal"):
        stream_reader(server, topic).latestOffset(given)


class Crash(Exception):
    """The driver dies."""


class Played:
    """A query as Spark runs it: with a log of offsets, a log of commits, and crashes.

    Spark 4.0 and 4.1 pass no start to latestOffset, and call partitions after a restart.
    """

    def __init__(self, make: Callable[[], HistoryStreamReader], is_old: bool, seed: int) -> None:
        self._make, self._is_old, self._random = make, is_old, random.Random(seed)
        self._reader: HistoryStreamReader | None = None
        self._log: list[Offset] = []
        self._committed = 0
        self.batches: dict[int, list[int]] = {}
        self.crashes = self.repeated = 0

    def step(self, crashes: bool = True) -> bool:
        """Run a batch, or a part of it. Return whether there was one."""
        try:
            return self._step(crashes)
        except Crash:
            self._reader = None
            self.crashes += 1
            return True

    def _die(self, crashes: bool) -> None:
        if crashes and self._random.random() < 0.2:
            raise Crash

    def _step(self, crashes: bool) -> bool:
        is_new = self._reader is None
        reader = self._reader = self._reader or self._make()
        if is_new and self._is_old and self._log:
            assert reader.partitions(self._log[-1], self._log[-1]) == []
        if self._committed == len(self._log):
            start = self._log[-1] if self._log else None
            if start is None and not self._is_old:
                start = reader.initialOffset()
            end = json.loads(json.dumps(reader.latestOffset(None if self._is_old else start)))
            self._die(crashes)
            if self._log and end == self._log[-1]:
                return False
            self._log.append(end)
            self._die(crashes)
            if len(self._log) > 1:
                reader.commit(self._log[-2])
        number = len(self._log) - 1
        start = self._log[-2] if number else reader.initialOffset()
        rows = sorted(batch_of(reader, start, self._log[-1]))
        self.repeated += number in self.batches
        assert self.batches.setdefault(number, rows) == rows
        self._die(crashes)
        self._committed = len(self._log)
        return True


@pytest.mark.parametrize("is_old", [False, True], ids=["4.3", "4.0"])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_each_row_is_in_one_batch_whenever_the_driver_dies(
    server: Server, client: rmq.Client, name: str, start: str, is_old: bool
) -> None:
    topic = client.topic(name, slots=2, history=KEEP)
    settle(topic, 20, -20)
    chance = random.Random(start)

    def make() -> HistoryStreamReader:
        return stream_reader(server, topic, startingOffsets=start, maxMessagesPerTrigger=9)

    query = Played(make, is_old, seed=len(start) + is_old)
    while not query.batches:
        query.step()  # until it has its start
    sent = 0
    for turn in range(60):
        if chance.random() < 0.5:
            settle(topic, more := chance.randrange(1, 12), sent, most=chance.randrange(1, 8))
            sent += more
        query.step()
        if turn == 30:
            client.admin.topic_resize(name, 4)
    while query.step(crashes=False):
        pass

    rows = [n for rows in query.batches.values() for n in rows]
    assert sorted(rows) == list(range(-20 if start == "earliest" else 0, sent))
    assert query.crashes > 5
    assert query.repeated > 2


# --- on Spark ------------------------------------------------------------------------------------


class Copy:
    """A query over the history, and the values that it has read by batch."""

    def __init__(self, spark: SparkSession, server: Server, topic: rmq.Topic, home: Path) -> None:
        self._spark, self._url, self._topic, self._home = spark, server.url, topic.name, home
        self.batches: list[tuple[int, list[Row]]] = []

    def start(self, sink: Callable[[DataFrame, int], None] | None = None, **given: object) -> Any:
        asked = {"url": self._url, "subscribe": self._topic, "consume": "false"}
        asked |= {"startingOffsets": "earliest"}
        asked |= {key: str(value) for key, value in given.items()}
        frame = self._spark.readStream.format("rmq").options(**asked).load()
        writer = frame.writeStream.foreachBatch(sink or self.keep)
        return writer.option("checkpointLocation", str(self._home)).start()

    def keep(self, df: DataFrame, batch: int) -> None:
        self.batches.append((batch, df.collect()))

    def read_all(self, **given: object) -> None:
        query = self.start(None, **given)
        query.processAllAvailable()
        query.stop()

    def values(self) -> list[int]:
        return sorted(int(bytes(row.value)) for _, rows in self.batches for row in rows)


def test_a_batch_on_spark_has_the_rows_of_a_time(
    spark: SparkSession, server: Server, topic: rmq.Topic
) -> None:
    settle(topic, 20)
    reader = spark.read.format("rmq").option("url", server.url).option("subscribe", topic.name)
    frame = reader.option("queue", "history").option("startingTimestamp", "2020-01-01").load()

    assert sorted(int(bytes(row.value)) for row in frame.select("value").collect()) == [*range(20)]
    assert frame.where("acked_at > current_timestamp() - interval 1 hour").count() == 20
    assert reader.option("endingTimestamp", "2020-01-02T00:00:00Z").load().count() == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"consume": "false", "onClaimLoss": "fail"}, "not an option of a stream with consume=f"),
        ({"startingOffsets": "earliest"}, "add consume=false to a stream"),
        ({"queue": "history"}, "queue: a stream reads the history with consume=false"),
    ],
)
def test_wrong_options_are_reported_by_spark(
    spark: SparkSession, server: Server, topic: rmq.Topic, tmp_path: Path,
    given: dict[str, str], told: str,
) -> None:  # fmt: skip
    reader = spark.readStream.format("rmq").options(url=server.url, subscribe=topic.name)
    with pytest.raises(Exception, match=told):
        reader.options(**given).load().writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path)
        ).start().awaitTermination()
