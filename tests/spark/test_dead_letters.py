"""df.write with `action`: dead letters that SQL has chosen are redriven or purged, as jobs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import rmq
from rmq.errors import InvalidValue, TopicNotFound
from spark_connector import dead_letters, options
from spark_connector.dead_letters import DeadLetterWriter
from spark_connector.writer import batch_writer, stream_writer
from tests.servers import Server

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

Read = Callable[[], DataFrame]
Write = Callable[..., None]
IDS = StructType([StructField("message_id", StringType())])


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=3)
    made.open()
    return made


@pytest.fixture
def read(spark: SparkSession, server: Server, name: str) -> Read:
    given = {"url": server.url, "subscribe": name, "queue": "dead"}
    return lambda: spark.read.format("rmq").options(**given).load()


@pytest.fixture
def write(server: Server, name: str) -> Write:
    def save(df: DataFrame, action: str = "redrive", **asked: str) -> None:
        given = {"url": server.url, "subscribe": name, "action": action} | asked
        df.write.format("rmq").mode("append").options(**given).save()

    return save


def bury(topic: rmq.Topic, *errors: str) -> list[rmq.MessageId]:
    ids = [topic.send(error, slot_basis=str(n)).id for n, error in enumerate(errors)]
    die_again(topic)
    return ids


def die_again(topic: rmq.Topic) -> None:
    with topic.consumer() as consumer:
        for delivery in consumer.receive(1000, wait=0):
            delivery.reject(str(delivery.body))


def bodies(client: rmq.Client, topic: rmq.Topic, queue: Any) -> list[Any]:
    return sorted(message.body for message in client.admin.peek(topic.name, 1000, queue=queue))


def writer(server: Server, topic: rmq.Topic, schema: StructType = IDS, **asked: str) -> Any:
    given = {"url": server.url, "subscribe": topic.name, "action": "redrive"} | asked
    return batch_writer(given, schema, overwrite=False)


def task(made: DeadLetterWriter, ids: list[Any]) -> Any:
    """What a task hands over for these rows."""
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.string())], ["message_id"])
    there = pickle.loads(pickle.dumps(made))
    return pickle.loads(pickle.dumps(there.write(iter([batch]))))


def test_a_group_that_sql_chose_is_redriven_as_a_job(
    spark: SparkSession, client: rmq.Client, topic: rmq.Topic, read: Read, write: Write
) -> None:
    bury(topic, "order 1 failed", "order 2 failed", "order 3 failed", "no route")
    read().createOrReplaceTempView("dead")
    largest = spark.sql(
        "SELECT * FROM dead WHERE error_fingerprint = (SELECT error_fingerprint FROM dead"
        " GROUP BY error_fingerprint ORDER BY count(*) DESC LIMIT 1)"
    )

    write(largest)

    assert bodies(client, topic, "store") == [f"order {n} failed" for n in (1, 2, 3)]
    assert bodies(client, topic, "dead") == ["no route"]
    (job,) = client.admin.jobs(topic.name)
    assert (job.verb, job.state, job.done, job.expected) == ("redrive", "done", 3, 3)


def test_a_purge_is_undone_by_its_job(
    client: rmq.Client, topic: rmq.Topic, read: Read, write: Write
) -> None:
    bury(topic, "order 1 failed", "order 2 failed", "no route")
    before = {row["message_id"]: row["died"] for row in read().collect()}

    write(read().where("error like 'order%'").select("message_id"), "purge")

    assert bodies(client, topic, "dead") == ["no route"]
    (job,) = client.admin.jobs(topic.name)
    assert client.admin.restore(topic.name, job=job.id) == 2
    assert {row["message_id"]: row["died"] for row in read().collect()} == before


def test_rows_that_are_written_again_redrive_nothing_that_died_since(
    client: rmq.Client, topic: rmq.Topic, read: Read, write: Write
) -> None:
    bury(topic, "order 1 failed", "no route")
    rows = read().cache()
    assert rows.count() == 2

    write(rows)
    die_again(topic)
    write(rows)

    assert bodies(client, topic, "dead") == ["no route", "order 1 failed"]
    assert [job.done for job in client.admin.jobs(topic.name)] == [0, 2]
    write(rows.select("message_id"))  # without `died`: whatever they died of
    assert bodies(client, topic, "store") == ["no route", "order 1 failed"]


def test_a_repeated_task_and_a_repeated_commit_change_nothing(
    server: Server, client: rmq.Client, topic: rmq.Topic
) -> None:
    ids = [str(id) for id in bury(topic, "one", "two", "three")]
    made = writer(server, topic)
    task(made, ids[:2])  # an attempt that Spark does not count

    assert client.admin.jobs(topic.name) == []
    told = [task(made, ids[:2]), None, task(made, ids[1:2])]
    pickle.loads(pickle.dumps(made)).commit(told)
    die_again(topic)
    pickle.loads(pickle.dumps(made)).commit(told)

    (job,) = client.admin.jobs(topic.name)
    assert job.done == 2
    assert bodies(client, topic, "dead") == ["one", "three", "two"]


def test_more_rows_than_a_job_takes_are_several_jobs(
    server: Server, client: rmq.Client, topic: rmq.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(id) for id in bury(topic, *map(str, range(50)))]
    monkeypatch.setattr(dead_letters, "JOB_IDS", 20)
    made = writer(server, topic)

    made.commit([task(made, ids[:25]), task(made, ids[25:])])

    assert [job.done for job in client.admin.jobs(topic.name)].count(20) == 2
    assert client.admin.stats(topic.name)["dead"] == 0


def test_an_unknown_id_is_counted_and_stops_nothing(
    server: Server, client: rmq.Client, topic: rmq.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = bury(topic, "one")
    made = writer(server, topic)

    made.commit([task(made, [str(id), str(topic.new_id())])])

    assert "2 rows, 1 done, 0 unreadable, 1 not dead letters any more" in caplog.text
    (job,) = client.admin.jobs(topic.name)
    assert (job.done, job.expected) == (1, 2)


def test_a_wrong_row_fails_the_write_before_anything_is_done(
    server: Server, client: rmq.Client, topic: rmq.Topic
) -> None:
    (id,) = bury(topic, "one")
    other = client.topic(f"{topic.name}-other")
    other.open()
    made = writer(server, topic)

    with pytest.raises(InvalidValue, match="row 2: message_id: 'x' is not a message id"):
        task(made, [str(id), "x"])
    with pytest.raises(InvalidValue, match=r"row 1: message_id: .* is not of topic"):
        task(made, [str(other.new_id())])
    with pytest.raises(InvalidValue, match="message_id: null"):
        task(made, [None])
    with pytest.raises(TopicNotFound):
        task(writer(server, topic, subscribe="nowhere"), [str(id)])
    assert client.admin.jobs(topic.name) == []


def test_rows_may_name_their_topics(
    client: rmq.Client, topic: rmq.Topic, read: Read, server: Server
) -> None:
    other = client.topic(f"{topic.name}-other")
    other.open()
    bury(topic, "one")
    bury(other, "two")
    given = {"url": server.url, "queue": "dead"}
    spark = read().sparkSession
    both = spark.read.format("rmq").options(subscribe=other.name, **given).load().union(read())

    both.write.format("rmq").mode("append").options(url=server.url, action="redrive").save()

    assert bodies(client, topic, "store") == ["one"]
    assert bodies(client, other, "store") == ["two"]


@pytest.mark.parametrize(
    ("asked", "columns", "said"),
    [
        ({"action": "delete"}, IDS, "action: 'delete'; give redrive or purge"),
        ({"codec": "json"}, IDS, "codec: it is not an option of a write with action"),
        ({"rate": "0"}, IDS, "rate: 0; give 1 to"),
        ({}, StructType([StructField("id", StringType())]), "message_id: an action needs this"),
        (
            {},
            StructType([*IDS, StructField("died", StringType())]),
            "died: string; cast it to timestamp",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_a_task(
    server: Server, topic: rmq.Topic, asked: dict[str, str], columns: StructType, said: str
) -> None:
    with pytest.raises(InvalidValue, match=said):
        writer(server, topic, columns, **asked)


def test_a_stream_and_an_overwrite_are_refused(server: Server, topic: rmq.Topic) -> None:
    given = {"url": server.url, "topic": topic.name, "action": "purge"}

    with pytest.raises(InvalidValue, match=r"action: it is for df\.write; call that in foreach"):
        stream_writer(given, IDS, overwrite=False)
    with pytest.raises(InvalidValue, match="mode: overwrite; a queue cannot be overwritten"):
        batch_writer(given, IDS, overwrite=True)
    assert options.of_dead_letters({"ACTION": "purge"})


def test_a_rate_is_that_of_the_jobs(server: Server, client: rmq.Client, topic: rmq.Topic) -> None:
    (id,) = bury(topic, "one")
    made = writer(server, topic, rate="500")

    made.commit([task(made, [str(id)])])

    assert [job.rate for job in client.admin.jobs(topic.name)] == [500]
