"""The batch read: what it shows of each queue, in how many parts, and that it takes nothing."""

from __future__ import annotations

import pickle
import time
from typing import Any, NamedTuple

import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, IsNotNull

import rmq
from rmq.errors import InvalidValue
from spark_connector import decode, options, reader, schema
from spark_connector.decode import fingerprint
from spark_connector.reader import RmqReader, SnapshotPart
from spark_connector.schema import snapshot_schema
from tests.servers import Server


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=3)
    made.open()
    return made


def make(server: Server, topic: rmq.Topic, **given: object) -> RmqReader:
    asked = {"url": server.url, "subscribe": topic.name, "queue": "all"}
    asked |= {key: str(value) for key, value in given.items()}
    found = options.snapshot(asked)
    return RmqReader(found, snapshot_schema(found.headers, found.columns, found.attempts))


def rows(of: RmqReader, looks: list[SnapshotPart] | None = None) -> list[dict[str, Any]]:
    return [
        row
        for look in (of.partitions() if looks is None else looks)
        for batch in pickle.loads(pickle.dumps(of)).read(pickle.loads(pickle.dumps(look)))
        for row in batch.to_pylist()
    ]


def fill(topic: rmq.Topic, count: int) -> None:
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(count)])


def bury(topic: rmq.Topic, *errors: str) -> None:
    for error in errors:
        topic.send(error)
    with topic.consumer() as consumer:
        for delivery in consumer.receive(100):
            delivery.reject(str(delivery.body))


class Sixty(NamedTuple):
    """A topic of three slots, of each 10 waiting messages and 10 dead letters."""

    topic: str
    values: dict[str, str]
    raw: redis.Redis

    def pages_read(self) -> int:
        """Pages that have been read, and other looks at ranges of queues, as planning takes."""
        calls: dict[str, Any] = self.raw.info("commandstats")
        return int(calls.get("cmdstat_zrangebyscore", {"calls": 0})["calls"])


@pytest.fixture
def sixty(client: rmq.Client, topic: rmq.Topic, raw: redis.Redis) -> Sixty:
    def send(count: int) -> None:
        sent = dict.fromkeys(range(3), 0)
        number = 0
        while min(sent.values()) < count:
            number += 1
            basis = str(number)
            slot = topic.new_id(basis).slot
            if sent[slot] < count:
                sent[slot] += 1
                kind = "new" if sent[slot] % 2 else None
                topic.send(f"order {number}", slot_basis=basis, type=kind)

    for half in (5, 5):
        send(half)
        with topic.consumer() as consumer:
            for delivery in consumer.receive(100):
                delivery.reject("no route" if delivery.type else "too old")
        time.sleep(0.01)
        half_died = client.admin.peek(topic.name, 1, queue="dead")
    send(10)
    page = client.admin.dead_letters(topic.name, limit=100).messages
    died = sorted(message.died for message in page if message.died)[15]
    assert half_died
    (first,) = client.admin.peek(topic.name, 1)
    ids = {
        "id": str(first.id),
        "died": died.isoformat(sep=" "),
        "sent": first.id.made_at.isoformat(sep=" ") if first.id.made_at else "",
        "fingerprint": str(fingerprint("no route")),
    }
    return Sixty(topic.name, ids, raw)


def test_a_batch_ends_where_its_bodies_are_large_once_decompressed(
    server: Server, topic: rmq.Topic, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = client.topic(topic.name, codec=rmq.Compressed("bytes"))
    packed.send_many([rmq.Outgoing(bytes(40_000), slot_basis="one") for _ in range(5)])
    monkeypatch.setattr(schema, "VALUES_BYTES", 70_000)
    found = make(server, topic, queue="store")

    batches = [batch for look in found.partitions() for batch in found.read(look)]

    assert sorted(batch.num_rows for batch in batches) == [1, 2, 2]
    assert all(len(row["value"]) == 40_000 for batch in batches for row in batch.to_pylist())


def test_pages_are_put_together_and_each_row_is_that_of_its_own_page(
    server: Server, client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain, empty, headed, typed, large, compressed, timed, expiring and retried messages."""
    topic = client.topic(name, slots=1, codec="bytes", max_retries=5)
    first = [topic.send(b"retried %d" % n, headers={"n": str(n)} if n % 2 else None)
             for n in range(6)]  # fmt: skip
    with topic.consumer() as consumer:
        consumer.nack(consumer.receive(100), error="not now", delay=3600)
    topic.send_many([rmq.Outgoing(b"plain %d" % n) for n in range(40)])
    topic.send_many([rmq.Outgoing(b"") for _ in range(5)])
    topic.send(b"headed", headers={"a": "b"}, type="order.paid")
    topic.send(b"large" * 20_000)
    client.topic(name, codec=rmq.Compressed("bytes")).send(b"packed" * 1000)
    topic.send(b"timed", delay=3600)
    topic.send(b"expires", expires=3600)
    whole = make(server, topic, queue="store", includeHeaders="true", fetchSize=7)
    (part,) = whole.partitions()

    together = list(whole.read(part))
    monkeypatch.setattr(reader, "BATCH_ROWS", 0)
    alone = list(whole.read(part))
    monkeypatch.setattr(reader, "BATCH_ROWS", 20)
    by_rows = list(whole.read(part))
    monkeypatch.setattr(reader, "BATCH_BYTES", 50_000)
    by_bytes = list(whole.read(part))

    found = [row for batch in together for row in batch.to_pylist()]
    for batches in (alone, by_rows, by_bytes):
        assert [row for batch in batches for row in batch.to_pylist()] == found
    assert len(together) == 1
    assert [batch.num_rows for batch in alone] == [7] * 8
    assert [batch.num_rows for batch in by_rows] == [14] * 4
    with_large = [batch for batch in by_bytes if b"large" * 20_000 in batch["value"].to_pylist()]
    assert [batch.num_rows for batch in with_large] == [7]
    assert {str(sent.id) for sent in first} <= {row["message_id"] for row in found}
    values = {row["value"] for row in found}
    assert values == {
        *(b"retried %d" % n for n in range(6)), *(b"plain %d" % n for n in range(40)), b"",
        b"headed", b"large" * 20_000, b"packed" * 1000, b"timed", b"expires",
    }  # fmt: skip
    assert sum(row["attempt"] == 1 and row["error"] == "not now" for row in found) == 6
    assert sum(row["deliver_at"] is not None for row in found) == 7
    assert [row["type"] for row in found if row["value"] == b"headed"] == ["order.paid"]


def test_each_queue_shows_what_it_holds_and_keeps_it(
    client: rmq.Client, server: Server, topic: rmq.Topic
) -> None:
    bury(topic, "order 17 of 'ann' failed", "order 9 of 'bob' failed", "no route")
    waiting = topic.send("waits", priority=700, delay=60, headers={"a": "b"}, merge_key=None)
    topic.send("leased")
    with topic.consumer() as consumer:
        (leased,) = consumer.receive(1)
        topic.send("held")
        topic.query("a" * 32, "here").take({})
        before = client.admin.stats(topic.name)

        found = {row["value"]: row for row in rows(make(server, topic, includeHeaders="true"))}

        after = client.admin.stats(topic.name)
        before["now_ms"] = after["now_ms"]
        assert after == before
        deadline = leased.deadline
    dead = {found[v]["error_fingerprint"] for v in found if b"order" in v}
    assert len(found) == 6
    assert len(dead) == 1
    assert found[b'"no route"']["error_fingerprint"] not in dead
    assert found[b'"no route"']["reason"] == "rejected"
    assert found[b'"no route"']["error"] == "no route"
    assert abs(found[b'"no route"']["died"].timestamp() - time.time()) < 60
    one = found[b'"waits"']
    assert (one["queue"], one["message_id"]) == ("store", str(waiting.id))
    assert (one["priority"], one["headers"], one["attempt"]) == (700, [("a", "b")], 0)
    assert one["deliver_at"] > one["timestamp"]
    assert found[b'"leased"']["lease_until"] == deadline
    assert not found[b'"leased"']["held_by_query"]
    assert found[b'"held"']["held_by_query"]
    assert found[b'"held"']["lease_until"] is None


def test_a_queue_may_be_named_as_people_say(server: Server, topic: rmq.Topic) -> None:
    for body in ("leased", "waits", "waits too"):
        topic.send(body)
    with topic.consumer() as consumer:
        assert len(consumer.receive(1)) == 1

        waiting = rows(make(server, topic, queue="waiting"))
        in_flight = rows(make(server, topic, queue="in flight"))

    assert [row["queue"] for row in waiting] == ["store", "store"]
    assert [row["queue"] for row in in_flight] == ["prepare"]


def test_parts_are_cut_by_slot_and_score_and_hold_each_message_once(
    server: Server, topic: rmq.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, 600)
    monkeypatch.setattr(reader, "PART_MESSAGES", 90)

    few = make(server, topic, queue="store")
    many = make(server, topic, queue="store", minPartitions=30, fetchSize=7)

    assert 6 < len(few.partitions()) < 12
    assert 30 <= len(many.partitions()) <= 33
    for one in (few, many):
        assert sorted(int(row["value"]) for row in rows(one)) == list(range(600))


def test_a_limit_and_slots_bound_the_look(server: Server, topic: rmq.Topic) -> None:
    fill(topic, 100)

    assert len(rows(make(server, topic, limit=17, minPartitions=8))) == 17
    assert len(rows(make(server, topic, limit=17, fetchSize=5))) == 17
    assert {row["slot"] for row in rows(make(server, topic, slots="0,2"))} == {0, 2}
    with pytest.raises(InvalidValue, match=r"slots: 3; topic .* has 3, numbered from 0"):
        make(server, topic, slots="3").partitions()


def test_an_empty_topic_has_no_parts(server: Server, topic: rmq.Topic) -> None:
    assert make(server, topic).partitions() == []


def test_errors_that_differ_in_numbers_and_names_alone_are_one() -> None:
    one = fingerprint("KeyError: 'a17' in 0x7f00aa at line 3")

    assert one == fingerprint("KeyError: 'b2' in 0x9 at line 1234")
    assert one != fingerprint("ValueError: 'a17' in 0x7f00aa at line 3")
    assert fingerprint("") is None


@pytest.mark.timeout(300)
def test_dead_letters_are_counted_by_what_they_died_of(
    spark: SparkSession, server: Server, topic: rmq.Topic
) -> None:
    bury(topic, "order 1 failed", "order 2 failed", "no route")

    frame = (
        spark.read.format("rmq")
        .option("url", server.url)
        .option("topic", topic.name)
        .option("queue", "dead")
        .load()
    )
    counted = frame.groupBy("error_fingerprint").count().collect()

    assert sorted(row["count"] for row in counted) == [1, 2]
    told = frame.sparkSession.read.format("rmq").options(url=server.url, topic=topic.name)
    told = told.options(queue="dead", includeAttempts="true", includeHeaders="tenant")
    history = told.load().selectExpr("tenant", "explode(attempts) as a").select("tenant", "a.*")
    assert {(row.tenant, row.reason, row.error) for row in history.collect()} == {
        (None, "rejected", error) for error in ("order 1 failed", "order 2 failed", "no route")
    }
    assert frame.select("topic", "reason").distinct().collect() == [(topic.name, "rejected")]
    with pytest.raises(Exception, match="queue: it is missing; a batch read looks at store"):
        spark.read.format("rmq").options(url=server.url, topic=topic.name).load().count()


def test_a_password_is_in_no_plan(spark: SparkSession) -> None:
    frame = (
        spark.read.format("rmq")
        .options(url="redis://:hunter2@localhost:6379/0", topic="orders", queue="dead")
        .load()
    )

    plans = frame._jdf.queryExecution()

    assert "hunter2" not in plans.analyzed().toString() + plans.optimizedPlan().toString()


def test_a_session_that_registered_nothing_finds_the_source_by_its_package(
    spark: SparkSession,
) -> None:
    reader = spark.newSession().read.format("rmq")

    frame = reader.options(url="redis://localhost", topic="orders", queue="dead").load()

    assert "error_fingerprint" in frame.columns


def test_only_the_columns_that_are_named_are_made(
    server: Server, topic: rmq.Topic, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = client.topic(topic.name, codec=rmq.Compressed("bytes"))
    packed.send(bytes(40_000), headers={"a": "b"}, type="order.new")
    unpacked: list[bytes] = []
    value_of = decode.value_of
    monkeypatch.setattr(decode, "value_of", lambda record: unpacked.append(b"") or value_of(record))

    few = make(server, topic, columns="type, slot,headers")

    assert [list(row) for row in rows(few)] == [["type", "slot", "headers"]]
    assert [(row["type"], row["headers"]) for row in rows(few)] == [("order.new", [("a", "b")])]
    assert not unpacked
    assert len(rows(make(server, topic, columns="value"))[0]["value"]) == 40_000
    assert unpacked


def test_a_large_body_stays_in_redis_if_no_column_needs_it(
    server: Server, client: rmq.Client, raw: redis.Redis, name: str
) -> None:
    client.topic(name, slots=1).send("x" * 40_000)
    few, all_of_it = (make(server, client.topic(name), **c) for c in ({"columns": "slot"}, {}))
    parts = few.partitions()

    before = raw.info("stats")["total_net_output_bytes"]
    assert rows(few, parts) == [{"slot": 0}]
    between = raw.info("stats")["total_net_output_bytes"]
    assert len(rows(all_of_it, parts)[0]["value"]) == 40_002
    after = raw.info("stats")["total_net_output_bytes"]

    assert between - before + 40_000 < after - between


def test_records_stay_in_redis_if_no_column_needs_them(server: Server, sixty: Sixty) -> None:
    topic = rmq.Client(server.url).topic(sixty.topic)
    columns = sorted(schema._WITHOUT_RECORDS)
    whole = rows(make(server, topic, includeAttempts="true"))

    few = make(server, topic, columns=",".join(columns))
    with_records = make(server, topic, columns=",".join([*columns, "priority"]))
    filtered = make(server, topic, columns=",".join([*columns, "type"]))
    filtered.pushFilters([EqualTo(("type",), "new")])

    def bytes_of(of: RmqReader) -> int:
        parts = of.partitions()
        before = sixty.raw.info("stats")["total_net_output_bytes"]
        found[of] = rows(of, parts)
        return int(sixty.raw.info("stats")["total_net_output_bytes"]) - before

    found: dict[RmqReader, list[dict[str, Any]]] = {}
    assert bytes_of(few) + 60 * 16 < bytes_of(with_records)
    assert found[few] == [{name: row[name] for name in columns} for row in whole]
    assert len(rows(filtered)) == sum(row["type"] == "new" for row in whole) > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("slot,slots", "columns: a batch read has no 'slots'; known are"),
        ("slot,slot", "'slot' twi"),
    ],
)
def test_a_wrong_column_is_refused(server: Server, topic: rmq.Topic, given: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        make(server, topic, columns=given)


def test_attempts_are_the_history_of_a_dead_letter(
    server: Server, client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, slots=1, max_retries=1, retry="immediate")
    topic.send("one")
    with topic.consumer() as consumer:
        for text in ("first", "second"):
            (delivery,) = consumer.receive(1)
            try:
                raise ValueError(text)
            except ValueError as error:
                consumer.nack([delivery], error=error)

    (row,) = rows(make(server, topic, queue="dead", includeAttempts="true"))
    assert "attempts" not in rows(make(server, topic, queue="dead"))[0]
    assert rows(make(server, topic, queue="dead", columns="attempts")) == [
        {"attempts": row["attempts"]}
    ]

    second, first = row["attempts"]
    assert (second["attempt"], second["error"]) == (2, "ValueError: second")
    assert (first["attempt"], first["error"], first["reason"]) == (1, "ValueError: first", "failed")
    assert first["worker"]
    assert "test_snapshot.py" in second["traceback"]
    assert first["time"] <= second["time"]


def test_the_trash_is_read_by_its_name_and_is_not_in_all(
    server: Server, client: rmq.Client, topic: rmq.Topic
) -> None:
    bury(topic, "one", "two")
    (id, _) = [row["message_id"] for row in rows(make(server, topic))]

    client.admin.purge(topic.name, "dead", ids=[id])

    (row,) = rows(make(server, topic, queue="trash"))
    assert (row["message_id"], row["queue"], row["died"]) == (id, "trash", None)
    assert row["reason"] == "rejected"
    assert row["lease_until"].timestamp() > time.time() + 80_000
    assert [each["queue"] for each in rows(make(server, topic))] == ["dead"]


def test_headers_that_are_named_are_columns(server: Server, topic: rmq.Topic) -> None:
    topic.send("one", headers={"tenant": "a", "X-Id": "7"})
    topic.send("two")

    found = rows(make(server, topic, includeHeaders="tenant,X-Id"))

    by_value = {row["value"]: (row["tenant"], row["X-Id"]) for row in found}
    assert by_value == {b'"one"': ("a", "7"), b'"two"': (None, None)}
    assert "headers" not in found[0]
    few = rows(make(server, topic, includeHeaders="X-Id", columns="x-id,slot"))
    assert {tuple(row) for row in few} == {("X-Id", "slot")}
    for given, said in {
        "slot": "'slot' is already a column", "a,A": "twice", "a,,b": "is not a header",
        "rmq-type": "is not a header",
    }.items():  # fmt: skip
        with pytest.raises(InvalidValue, match=said):
            make(server, topic, includeHeaders=given)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("where", "most"),
    [
        ("slot = 1", 20),
        ("slot in (0, 2) and queue = 'dead'", 20),
        ("slot < 1", 20),
        ("queue = 'dead'", 30),
        ("message_id = '{id}'", 20),
        ("message_id in ('{id}', 'none')", 20),
        ("died >= timestamp '{died}'", 25),
        ("died < timestamp '{died}'", 25),
        ("died = timestamp '{died}'", 15),
        ("timestamp >= timestamp '{sent}'", 60),
        ("type = 'new'", 60),
        ("error_fingerprint = '{fingerprint}'", 60),
        ("slot = 1 or queue = 'dead'", 60),
        ("slot = 7", 0),
        ("queue = 'dead' and type is null", 30),
    ],
)
def test_a_filter_that_is_pushed_down_reads_less_and_finds_the_same(
    spark: SparkSession, server: Server, sixty: Sixty, where: str, most: int
) -> None:
    where = where.format(**sixty.values)
    conf = "spark.sql.python.filterPushdown.enabled"
    found, read = [], []
    given = {"url": server.url, "topic": sixty.topic, "queue": "all"}
    frame = spark.read.format("rmq").options(**given, fetchSize=1).load()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    for enabled in ("false", "true"):
        spark.conf.set(conf, enabled)
        before = sixty.pages_read()
        found.append(sorted(row["message_id"] for row in frame.where(where).collect()))
        read.append(sixty.pages_read() - before)
    spark.conf.set(conf, "false")

    assert found[0] == found[1]
    assert bool(found[0]) == (where != "slot = 7")
    assert read[0] >= 60
    assert read[1] <= read[0] - (60 - most)  # a page has one message


def test_a_condition_leaves_rows_out_before_their_bodies_are_made(
    server: Server, sixty: Sixty
) -> None:
    whole = make(server, rmq.Client(server.url).topic(sixty.topic))
    some = make(server, rmq.Client(server.url).topic(sixty.topic))
    limited = make(server, rmq.Client(server.url).topic(sixty.topic), limit=5)
    filters = [EqualTo(("type",), "new"), IsNotNull(("type",)), EqualTo(("error",), "x")]

    assert list(some.pushFilters(filters)) == filters
    limited.pushFilters(filters)

    wanted = [row for row in rows(whole) if row["type"] == "new"]
    assert rows(some) == wanted
    assert 0 < len(wanted) < 60
    assert len(rows(limited)) == 5
