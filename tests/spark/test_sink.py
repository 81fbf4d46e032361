"""df.write on a real Spark: what arrives, what a failed task leaves, what is refused."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions as F

import rmq
from rmq.errors import RMQError
from spark_connector.writer import batch_writer
from tests.servers import Server

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

Save = Callable[..., None]


@pytest.fixture
def save(server: Server, name: str) -> Save:
    """Writes a frame to this test's topic."""

    def write(df: DataFrame, mode: str = "append", **asked: str | None) -> None:
        given = {"url": server.url, "topic": name} | asked
        given = {option: text for option, text in given.items() if text is not None}
        df.write.format("rmq").mode(mode).options(**given).save()

    return write


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=4)
    made.open()
    return made


def stages(raw: redis.Redis, topic: rmq.Topic) -> list[bytes]:
    keys: list[bytes] = raw.keys(f"*{{{topic.name}_*}}:stage:*")
    return keys


def taken(topic: rmq.Topic) -> list[rmq.Delivery]:
    found: list[rmq.Delivery] = []
    with topic.consumer() as consumer:
        while some := consumer.receive(1000, wait=0):
            found += some
            consumer.ack(some)
    return found


def waiting(client: rmq.Client, topic: rmq.Topic) -> list[rmq.Message]:
    return list(client.admin.peek(topic.name, 1000))


def numbers(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    return spark.range(0, count, 1, parts).select(F.col("id").cast("string").alias("value"))


def failing(df: DataFrame, always: bool = False) -> DataFrame:
    """The same rows, of tasks that fail at their first attempt (or every one) half-way."""

    def value(text: str) -> str:
        context = TaskContext.get()
        ends_well = context.attemptNumber() > 0 and not always
        if int(text) % 1000 == 900 and not ends_well:
            raise RuntimeError("this task fails")
        return text

    return df.select(F.udf(value, useArrow=False)("value").alias("value"))


def test_every_row_arrives_once_and_no_stage_is_left(
    spark: SparkSession, save: Save, topic: rmq.Topic, raw: redis.Redis
) -> None:
    save(numbers(spark, 5000))

    assert sorted(int(one.body) for one in taken(topic)) == list(range(5000))
    assert stages(raw, topic) == []


def test_each_column_is_a_field_of_the_message(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic
) -> None:
    at = dt.datetime(2031, 5, 4, 3, 2, 1, 500, tzinfo=dt.UTC)
    made = str(topic.new_id("k"))
    rows = [
        ("priority", 900, None, None, None, None, None, None, None, None, None),
        ("at", None, at, None, None, None, None, None, None, None, None),
        ("delay", None, None, 60_000, None, None, None, None, None, None, None),
        ("merged", None, None, None, "m", 60_000, None, None, None, None, None),
        ("merged", None, None, None, "m", 60_000, None, None, None, None, None),
        ("basis", None, None, None, None, None, "k", None, None, None, None),
        ("id", None, None, None, None, None, None, made, None, None, None),
        ("dedup", None, None, None, None, None, None, None, "d", {"a": "1", "ü": ""}, "a.b"),
    ]
    schema = (
        "value string, priority int, deliver_at timestamp, delay_ms bigint, merge_key string, "
        "time_range_ms int, key string, message_id string, dedup_key string, "
        "headers map<string,string>, type string"
    )

    save(spark.createDataFrame(rows, schema), merge="collect")

    found = {bytes(m.body).decode() if isinstance(m.body, bytes) else "merged": m
             for m in waiting(client, topic)}  # fmt: skip
    assert len(found) == 7
    assert found["priority"].priority == 900
    assert found["at"].due == at.replace(microsecond=1000)  # rounded up: nothing is early
    assert found["delay"].due is not None
    assert found["merged"].body == [b"merged", b"merged"]
    assert found["merged"].merge_key == "m"
    assert found["basis"].slot == topic.new_id("k").slot
    assert str(found["id"].id) == made
    assert found["dedup"].headers == {"a": "1", "ü": ""}
    assert [found[body].type for body in ("dedup", "id")] == ["a.b", None]
    again = topic.send("x", dedup_key="d")
    assert (again.status, again.id) == ("duplicate", found["dedup"].id)


@pytest.mark.parametrize("more", ["", ", 'gold' AS share_key, 4 AS weight"])
def test_a_row_may_have_a_group(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic, more: str
) -> None:
    grouped = client.topic(f"{topic.name}-grouped", slots=4, groups=rmq.Groups())
    grouped.open()
    row = spark.sql(f"SELECT 'a' AS value, 'customer 7' AS `group`{more}")
    save(row, topic=grouped.name)
    with pytest.raises(Exception, match="has no groups"):
        save(row)

    (found,) = waiting(client, grouped)
    assert (found.group, found.share_key) == ("customer 7", "gold" if more else None)
    assert found.slot == topic.new_id(group="customer 7").slot


@pytest.mark.parametrize(("codec", "body"), [("bytes", b'{"a": 1}'), ("json", {"a": 1})])
def test_option_codec_says_what_the_bodies_are(
    spark: SparkSession, save: Save, topic: rmq.Topic, codec: str, body: Any
) -> None:
    save(spark.createDataFrame([('{"a": 1}',)], "body string"), codec=codec)

    assert [one.body for one in taken(topic)] == [body]


def test_rows_of_tasks_that_fail_and_are_repeated_arrive_once(
    spark: SparkSession, save: Save, topic: rmq.Topic, raw: redis.Redis
) -> None:
    save(failing(numbers(spark, 4000)))

    assert Counter(int(one.body) for one in taken(topic)) == Counter(range(4000))
    assert all(0 < raw.ttl(key) <= 86_400 for key in stages(raw, topic))


def test_job_that_fails_leaves_nothing(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic, raw: redis.Redis
) -> None:
    with pytest.raises(Exception, match="this task fails"):
        save(failing(numbers(spark, 4000), always=True))

    assert client.admin.stats(topic.name)["accepted"] == 0
    assert all(0 < raw.ttl(key) <= 86_400 for key in stages(raw, topic))


@pytest.mark.parametrize("column", ["message_id", "dedup_key"])
def test_job_that_runs_again_adds_nothing_where_rows_name_their_messages(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic, column: str
) -> None:
    ids = [str(topic.new_id()) for _ in range(100)]
    df = spark.createDataFrame(
        [(f"b{n}", id) for n, id in enumerate(ids)], f"value string, {column} string"
    )

    save(df)
    save(df)

    assert client.admin.stats(topic.name)["accepted"] == 100
    assert len(taken(topic)) == 100


def test_full_topic_fails_the_job_with_one_clear_error(
    spark: SparkSession, save: Save, client: rmq.Client, name: str, raw: redis.Redis
) -> None:
    topic = client.topic(name, slots=1, max_length=10)
    topic.open()

    with pytest.raises(Exception, match=r"topic '\S+' is at its max_length of 10"):
        save(numbers(spark, 100))

    assert len(taken(topic)) <= 10
    assert stages(raw, topic) == []


@pytest.mark.parametrize("default", [True, False])
def test_rows_name_their_topics(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic, name: str, default: bool
) -> None:
    others = [client.topic(f"{name}-{n}", slots=n + 2) for n in range(2)]
    for other in others:
        other.open()
    own = None if default else topic.name
    df = spark.range(0, 3000, 1, 2).selectExpr(
        "string(id) value", "string(id % 7) key", "900 + id % 2 priority",
        f"element_at(array({', '.join(repr(t.name) for t in others)}, "
        f"{'null' if own is None else repr(own)}), int(id % 3) + 1) topic",
    )  # fmt: skip

    save(df, **({} if default else {"topic": None}))

    for place, each in enumerate([*others, topic]):
        assert sorted(int(one.body) for one in taken(each)) == [*range(place, 3000, 3)]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ((b"x", 900, "zz-none"), "topic 'zz-none' is not in this Redis"),
        ((b"x", 16, "TOPIC"), "priority: 16; give"),
        ((None, 900, "TOPIC"), "value: null"),
        ((b"x", 900, None), "topic: null; name it, or give the option topic"),
    ],
)
def test_bad_row_among_rows_of_several_topics_is_named_and_nothing_is_left(
    spark: SparkSession, server: Server, client: rmq.Client, topic: rmq.Topic, raw: redis.Redis,
    bad: Any, told: str,
) -> None:  # fmt: skip
    other = client.topic(f"{topic.name}-2", slots=2)
    other.open()
    rows: list[Any] = [(b"x", 900, (topic, other)[n % 2].name) for n in range(9)]
    rows[5] = (*bad[:2], topic.name if bad[2] == "TOPIC" else bad[2])
    df = spark.createDataFrame(rows, "value binary, priority int, topic string")

    with pytest.raises(RMQError) as caught:
        batch_writer({"url": server.url}, df.schema, False).write(iter(df.toArrow().to_batches()))

    assert told in str(caught.value)
    assert caught.value.__notes__[-1] == "Row 6 of partition 0. Nothing of it is published."
    assert stages(raw, topic) + stages(raw, other) == []
    assert raw.keys("*zz-none*") == []


def test_batch_of_a_query_is_published_once_however_often_it_is_written(
    spark: SparkSession, save: Save, client: rmq.Client, name: str, raw: redis.Redis
) -> None:
    topic = client.topic(name, slots=2, dedup_window=0)  # so that no id is remembered
    topic.open()
    for batch in (3, 4):
        for query in ("q", "r"):
            save(numbers(spark, 100), queryId=query, batchId=str(batch))
    assert Counter(int(one.body) for one in taken(topic)) == Counter(4 * [*range(100)])

    for batch in (4, 3, 4):
        save(numbers(spark, 200), queryId="q", batchId=str(batch))
    save(numbers(spark, 0), queryId="q", batchId="5")
    save(spark.createDataFrame([], "value string"), queryId="q", batchId="6")

    assert taken(topic) == []
    assert stages(raw, topic) == []
    assert client.admin.sinks(name) == [rmq.Sink("q", 6, None), rmq.Sink("r", 4, None)]
    assert client.admin.forget_sink(name, "q")
    save(numbers(spark, 10), queryId="q", batchId="4")
    assert len(taken(topic)) == 10


def test_batch_of_a_query_that_found_no_room_goes_on_when_it_is_written_again(
    spark: SparkSession, save: Save, client: rmq.Client, name: str, raw: redis.Redis
) -> None:
    topic = client.topic(name, slots=2, max_length=60, dedup_window=0)
    topic.open()
    given = {"queryId": "q", "batchId": "1"}
    with pytest.raises(Exception, match="is at its max_length of 60"):
        save(numbers(spark, 100), **given)
    seen = taken(topic)
    assert 0 < len(seen) < 100

    save(numbers(spark, 5), **given)  # the batch is ended with the rows that it began with

    seen += taken(topic)
    assert Counter(int(one.body) for one in seen) == Counter(range(100))
    assert stages(raw, topic) == []


def test_write_without_any_topic_is_refused(spark: SparkSession, save: Save) -> None:
    with pytest.raises(Exception, match=r"topic: it is missing; .* or add a column topic"):
        save(numbers(spark, 1), topic=None)


# --- what is refused ---------------------------------------------------------------------------

FRAMES = [
    ("'a' AS text", "text: a write has no such column; known are value, body"),
    ("'a' AS valu", "valu: a write has no such column; did you mean value"),
    ("'a' AS value, 1 AS prioritty", "did you mean priority"),
    ("900 AS priority", "value: the column is missing"),
    ("1 AS value", "value: int; cast it to binary or string"),
    ("'a' AS value, 'b' AS body", "value, body: two columns of one meaning"),
    ("'a' AS value, '9' AS priority", "priority: string; cast it to int"),
    ("'a' AS value, 1 AS deliver_at", "deliver_at: int; cast it to timestamp"),
    ("'a' AS value, timestamp_ntz'2031-01-01' AS deliver_at", "deliver_at: timestamp_ntz; cast"),
    ("'a' AS value, map('a', 1) AS headers", "headers: map<string,int>; cast it to map<string"),
    ("'a' AS value, array(struct('a' AS key, binary('1') AS value)) AS headers",
     "this is the type of Kafka's headers; use map_from_entries(transform(headers, h -> "),
    ("'a' AS value, 'k' AS merge_key", "merge_key: given without time_range_ms"),
    ("'a' AS value, 5 AS time_range_ms", "time_range_ms: given without merge_key"),
    ("string(null) AS value", "value: null; a message has a body"),
    ("'a' AS value, 16 AS priority", "priority: 16"),
    ("'a' AS value, 1048576 AS priority", "priority: 1048576"),
    ("'a' AS value, timestamp'2020-01-01' AS deliver_at", "is more than a year ago"),
    ("'a' AS value, -5 AS delay_ms", "delay_ms: "),
    ("'a' AS value, 1800000000000000000L AS delay_ms", "delay_ms: 1800000000000000.0; give 0"),
    ("'a' AS value, timestamp'9999-12-31' AS deliver_at", "deliver_at: 9999-12-3"),
    ("'a' AS value, 'x' AS message_id", "message_id: 'x'"),
    ("'a' AS value, '' AS dedup_key", "dedup_key: 0 bytes"),
    ("'a' AS value, map('rmq-x', 'y') AS headers", "headers: 'rmq-x'"),
    ("'a' AS value, 1 AS topic", "topic: int; cast it to string"),
    ("'a' AS value, 'a b' AS topic", "topic: "),
    ("'a' AS value, 'zz-none' AS topic", "topic 'zz-none' is not in this Redis"),
    ("repeat('a', 300000) AS value", "value: 300000 bytes as bytes; the topic's max_body"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "told"), FRAMES)
def test_frame_that_cannot_be_written_is_reported_in_one_sentence(
    spark: SparkSession, server: Server, client: rmq.Client, topic: rmq.Topic, raw: redis.Redis,
    columns: str, told: str,
) -> None:  # fmt: skip
    df = spark.sql(f"SELECT {columns}")
    rows, given = df.toArrow().to_batches(), {"url": server.url, "topic": topic.name}

    with pytest.raises(RMQError) as caught:  # as a task calls it; Spark would make four of them
        batch_writer(given, df.schema, False).write(iter(rows))

    assert told in str(caught.value)
    assert client.admin.stats(topic.name)["accepted"] == 0
    assert stages(raw, topic) == []


@pytest.mark.parametrize(("columns", "told"), [FRAMES[1], FRAMES[-2]])
def test_what_is_wrong_with_a_frame_is_in_the_error_of_spark(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic, raw: redis.Redis,
    columns: str, told: str,
) -> None:  # fmt: skip
    with pytest.raises(Exception) as caught:  # noqa: PT011
        save(spark.sql(f"SELECT {columns}"))

    assert told in str(caught.value)
    assert client.admin.stats(topic.name)["accepted"] == 0
    assert stages(raw, topic) == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"topik": "a"}, "topik: a write has no such option; did you mean topic"),
        ({"subscribe": "a"}, "subscribe: a write names its topic with topic"),
        ({"path": "a"}, "path: name the topic with topic"),
        ({"leaseSeconds": "5"}, "leaseSeconds: it is not an option of a write"),
        ({"codec": "xml"}, "codec: 'xml'; give bytes, json or msgpack"),
        ({"pastTimes": "drop"}, "pastTimes: 'drop'; give fail or now"),
        ({"queryId": "q"}, "queryId: given without batchId; give both, or neither"),
        ({"batchId": "1"}, "batchId: given without queryId; give both, or neither"),
        ({"queryId": "a b", "batchId": "1"}, "queryId: 'a b'; use 1 to 200 of"),
        ({"queryId": "q", "batchId": "-1"}, "batchId: -1; give 0 to"),
        ({"topic": "a b"}, "topic: "),
        ({"keyHeader": "key"}, "keyHeader: given without a column key"),
        ({"keyHeader": "true"}, "keyHeader: 'true'; give the name of one header"),
        ({"keyHeader": "a,b"}, "keyHeader: 'a,b'; give the name of one header"),
        ({"keyHeader": "rmq-key"}, "keyHeader: 'rmq-key' is not a header"),
        ({"mode": "overwrite"}, 'use mode("append")'),
    ],
)
def test_option_that_cannot_work_is_reported_in_one_sentence(
    spark: SparkSession, save: Save, asked: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        save(numbers(spark, 1), **asked)

    assert told in str(caught.value)


def test_body_that_is_not_of_the_codec_names_its_row(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic
) -> None:
    rows = [(json.dumps(n),) for n in range(5)] + [("{",)]
    df = spark.createDataFrame(rows, "value string").coalesce(1)

    with pytest.raises(Exception, match=r"value: .* is not JSON") as caught:
        save(df, codec="json")

    assert "Row 6 of partition 0. Nothing of it is published." in str(caught.value)
    assert client.admin.stats(topic.name)["accepted"] == 0


def test_time_that_has_passed_may_be_taken_as_now(
    spark: SparkSession, save: Save, topic: rmq.Topic
) -> None:
    """Databases write 0001-01-01, 1900-01-01 and 1970-01-01 for a time that is not known."""
    years = (1, 1900, 1970, 1972, 1980, 2005, 2020)
    values = ", ".join(f"('{year}', timestamp'{year:04}-01-01 00:00:00Z')" for year in years)
    times = spark.sql(f"SELECT * FROM VALUES {values} AS rows(value, deliver_at)")

    with pytest.raises(Exception, match=r"deliver_at: .* is long past"):
        save(times)
    save(times, pastTimes="now")

    assert {int(one.body) for one in taken(topic)} == set(years)


def test_entry_of_headers_that_is_null_is_not_given(
    spark: SparkSession, save: Save, topic: rmq.Topic
) -> None:
    save(
        spark.sql(
            "SELECT * FROM VALUES ('a', map('x', '1', 'y', null)), ('b', map('x', null)), "
            "('c', null) AS rows(value, headers)"
        )
    )

    assert {one.body: dict(one.headers) for one in taken(topic)} == {
        b"a": {"x": "1"}, b"b": {}, b"c": {},
    }  # fmt: skip


KEYED = (
    "SELECT * FROM VALUES ('a', 'k', null), ('b', 'ü', map('x', '1')), ('c', null, map('x', '2')), "
    "('d', null, null), ('e', 'k', map('key', 'own')) AS rows(value, key, headers)"
)


@pytest.mark.parametrize("priorities", [False, True])  # rows of both kinds: column by column, not
@pytest.mark.parametrize("kind", ["string", "binary"])
def test_key_of_a_row_is_read_as_a_column_if_a_header_stores_it(
    spark: SparkSession, save: Save, server: Server, topic: rmq.Topic, kind: str, priorities: bool
) -> None:
    more = ", 5L AS delay_ms" if priorities else ""

    save(spark.sql(f"SELECT value, cast(key AS {kind}) AS key, headers{more} FROM ({KEYED})"),
         keyHeader="key")  # fmt: skip

    given = {"url": server.url, "subscribe": topic.name, "queue": "store"}
    df = spark.read.format("rmq").options(**given, includeHeaders="key").load()
    found = {bytes(row.value): row.key for row in df.select("value", "key").collect()}
    assert found == {b"a": "k", b"b": "ü", b"c": None, b"d": None, b"e": "own"}
    df = spark.read.format("rmq").options(**given, includeHeaders="true").load()
    found = {bytes(row.value): row.headers for row in df.select("value", "headers").collect()}
    assert (found[b"b"], found[b"c"]) == ({"key": "ü", "x": "1"}, {"x": "2"})


def test_key_header_without_a_column_of_headers(
    spark: SparkSession, save: Save, topic: rmq.Topic
) -> None:
    save(spark.sql("SELECT 'a' AS value, 'k' AS slot_basis"), keyHeader="customer")

    assert [dict(one.headers) for one in taken(topic)] == [{"customer": "k"}]


def test_key_that_is_not_text_names_its_row(
    spark: SparkSession, save: Save, client: rmq.Client, topic: rmq.Topic
) -> None:
    df = spark.sql("SELECT 'a' AS value, key FROM VALUES (binary('a')), (x'ff') AS rows(key)")

    with pytest.raises(Exception, match="key: it is not UTF-8, so it cannot be a header") as caught:
        save(df.coalesce(1), keyHeader="key")

    assert "Row 2 of partition 0." in str(caught.value)
    assert client.admin.stats(topic.name)["accepted"] == 0


@pytest.mark.parametrize("mode", [None, "error", "errorifexists", "ignore"])
def test_mode_that_spark_refuses_for_python_sinks_sends_nothing(
    spark: SparkSession, server: Server, client: rmq.Client, topic: rmq.Topic, mode: str | None
) -> None:
    """The driver's JVM refuses these modes before it calls the data source."""
    writer = numbers(spark, 1).write.format("rmq").options(url=server.url, topic=topic.name)

    with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*\"Append\""):
        (writer.mode(mode) if mode else writer).save()

    assert client.admin.stats(topic.name)["accepted"] == 0


def test_write_to_a_table_says_how_to_write(
    spark: SparkSession, server: Server, client: rmq.Client, topic: rmq.Topic
) -> None:
    df, told = numbers(spark, 1), r'no option is given; give them to df\.write\.format\("rmq"\)'
    spark.sql("CREATE TABLE written (value string) USING rmq")
    given = {"url": server.url, "topic": topic.name}
    try:
        with pytest.raises(Exception, match=told):
            df.writeTo("written").append()
        with pytest.raises(Exception, match=told):
            df.write.insertInto("written")
        with pytest.raises(Exception, match=told):
            spark.sql("INSERT INTO written VALUES ('a')")
        with pytest.raises(Exception, match="a queue cannot be overwritten"):
            df.writeTo("replaced").using("rmq").options(**given).createOrReplace()
    finally:
        spark.sql("DROP TABLE IF EXISTS written")
        spark.sql("DROP TABLE IF EXISTS replaced")

    assert client.admin.stats(topic.name)["accepted"] == 0
