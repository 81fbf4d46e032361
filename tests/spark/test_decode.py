"""Columns made from stored messages: each row as reading its record alone gives it."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgpack
import pytest

import rmq
from rmq.connectors import Block, Record, envelope_of, value_of
from rmq.errors import DecodeError
from rmq.kernel.core import record
from rmq.kernel.core.groups import group_in
from spark_connector import options
from spark_connector.decode import fingerprint
from spark_connector.reader import RmqReader
from spark_connector.schema import Batches, snapshot_schema, stream_schema
from tests.servers import Server

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DUE, EXPIRES = 1_790_000_000_000, 1_790_000_001_000


def stored(
    body: bytes, *, codec: int = 0, priority: int = 100, number: int = 7, **given: Any
) -> bytes:
    headers = given.pop("headers", None)
    head, fields = record.envelope(codec, priority, **given)
    if headers:
        head, fields = record.with_headers(head, fields, msgpack.packb(headers))
    return head + number.to_bytes(4, "big") + fields + body


CIPHER = rmq.Encrypted({"k": b"k" * 32}, rmq.Compressed("bytes", above=1))
RECORDS = {
    "bare": stored(b"a body"),
    "bare and empty": stored(b"", priority=1_048_575),
    "without a priority": stored(b"timed", priority=0, due_ms=DUE),
    "expires": stored(b"expires", expires_ms=EXPIRES),
    "merges": stored(b"merges", priority=0, due_ms=DUE, merge_key="ключ"),
    "merges as a type": stored(b"m", priority=0, due_ms=DUE, merge_key="\0order.paid\0k"),
    "headers": stored(b"headed", headers={"a": "b", "rmq-type": "order.paid"}),
    "of a group": stored(b"grouped", headers={"rmq-group": "customer 7", "a": "b"}),
    "of a group with a weight": stored(b"g", headers={"rmq-group": "\x014\x01gold\x01customer 7"}),
    "audited": stored(b"audited", headers={"rmq-audit": "p.1.17", "a": "b"}),
    "audited by a stranger": stored(b"audited", headers={"rmq-audit": "p.x"}),
    "everything": stored(
        b"all", due_ms=DUE, expires_ms=EXPIRES, merge_key="k", headers={"z": "y"}, number=2**32 - 1
    ),
    "compressed": stored(rmq.Compressed("bytes", above=1).encode(b"z" * 3000), codec=3),
    "collects": stored(
        b"".join(len(b).to_bytes(4, "big") + b for b in (b"1", b'"two"')),
        codec=1, priority=0, due_ms=DUE, merge_key="k", collects=True,
    ),
    "encrypted": stored(CIPHER.encode(b"z" * 3000), codec=3),
    "its key is not here": stored(rmq.Encrypted({"gone": bytes(32)}).encode(1), codec=3),
    "of a codec of one's own": stored(b"HELLO", codec=6),
    "no compressed body": stored(b"\xff", codec=3),
    "its large body is missing": bytes((8, 0, 0, 50)) + bytes(4) + record.reference(9999, bytes(8)),
    "cut short": stored(b"")[:5],
    "headers are no map": stored(b"", headers=[1]),
    "cut in its headers": stored(b"", headers={"a": "b" * 99})[:30],
    "missing": b"",
}  # fmt: skip


def of_each(entry: bytes) -> dict[str, Any]:
    """The columns of a record, read by itself."""
    row: dict[str, Any] = dict.fromkeys(
        (
            "value",
            "deliver_at",
            "expires_at",
            "priority",
            "merge_key",
            "group",
            "producer",
            "producer_seq",
        )
    )
    row |= {"headers": [], "unreadable": None, "value": entry}
    try:
        if not entry:
            raise DecodeError("its record is missing")
        found: Record = envelope_of(entry)
        row["priority"] = found.priority or None
        row["deliver_at"] = EPOCH + timedelta(milliseconds=found.due_ms) if found.due_ms else None
        if found.expires_ms:
            row["expires_at"] = EPOCH + timedelta(milliseconds=found.expires_ms)
        row["merge_key"] = found.merge_key or None
        row["headers"] = [(k, v) for k, v in found.headers.items() if not k.startswith("rmq-")]
        row["group"] = group_in(found.headers.get("rmq-group"))
        producer, _, number = found.headers.get("rmq-audit", "").rpartition(".")
        if number.isdecimal():
            row["producer"], row["producer_seq"] = producer, int(number)
        row["value"] = value_of(entry)
    except DecodeError as error:
        row["unreadable"] = str(error)
    return row


def ids_of(count: int, slot: int = 0) -> list[rmq.MessageId]:
    return [rmq.MessageId(bytes(8) + (slot << 14).to_bytes(3, "big") + bytes((n,)) * 5)
            for n in range(count)]  # fmt: skip


def block(topic: str, slot: int, entries: list[bytes]) -> Block:
    count = len(entries)
    ids = b"".join(ids_of(count, slot))
    return Block(topic, slot, range(1, count + 1), ids, [1] * count, entries)


@pytest.mark.parametrize(
    "kinds",
    [*([kind] for kind in RECORDS), [*RECORDS], ["bare", "bare and empty"], ["bare", "missing"]],
)
def test_a_row_is_what_reading_its_record_gives(kinds: list[str]) -> None:
    entries = [RECORDS[kind] for kind in kinds] * 2

    rows = Batches(stream_schema(True)).of_blocks([block("t", 3, entries)]).to_pylist()

    for row, entry, id in zip(rows, entries, ids_of(len(entries), 3), strict=True):
        expected = of_each(entry)
        assert {name: row[name] for name in expected} == expected
        assert (row["message_id"], row["slot"], row["topic"]) == (str(id), 3, "t")


def test_blocks_of_several_slots_and_topics_are_one_batch() -> None:
    batches = Batches(stream_schema(True))
    blocks = [
        block("a", 0, [RECORDS["bare"], RECORDS["headers"]]),
        block("a", 5, [RECORDS["missing"]]),
        block("b", 5, [RECORDS["bare"]] * 3),
    ]

    whole = batches.of_blocks(blocks)

    alone = [batches.of_blocks([each]).to_pylist() for each in blocks]
    assert whole.to_pylist() == list(itertools.chain(*alone))
    assert whole.schema.equals(batches.schema)
    places = [(row["topic"], row["slot"], row["seq"]) for row in whole.to_pylist()]
    assert places == [("a", 0, 1), ("a", 0, 2), ("a", 5, 1), ("b", 5, 1), ("b", 5, 2), ("b", 5, 3)]


@pytest.mark.parametrize("text", [17, None, b"\xff", ["a"]])
@pytest.mark.parametrize("header", ["a", "rmq-audit"])
def test_headers_that_are_no_text_block_no_other_row(header: str, text: Any) -> None:
    foreign = stored(b"x", headers={header: text})

    rows = Batches(stream_schema(True)).of_blocks([block("t", 0, [RECORDS["headers"], foreign])])

    assert rows["unreadable"].to_pylist() == [None, "its headers are not text"]
    assert rows["value"].to_pylist() == [b"headed", foreign]


def test_a_number_of_an_audit_that_is_no_bigint_is_null() -> None:
    numbers = (2**63 - 1, 2**63, "9" * 5000)  # of more digits than Python converts
    entries = [stored(b"x", headers={"rmq-audit": f"p.{number}"}) for number in numbers]

    rows = Batches(stream_schema(True)).of_blocks([block("t", 0, entries)])

    assert rows["producer_seq"].to_pylist() == [2**63 - 1, None, None]
    assert rows["unreadable"].to_pylist() == [None] * 3


def test_a_column_that_the_schema_lacks_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_connector import decode

    monkeypatch.setattr(decode, "value_of", None)  # would raise
    schema = stream_schema(False)
    for name in ("value", "unreadable"):
        schema.fields = [field for field in schema.fields if field.name != name]

    found = Batches(schema).of_blocks([block("t", 0, [RECORDS["compressed"], RECORDS["bare"]])])

    assert found.column_names == [field.name for field in schema.fields]
    assert found["priority"].to_pylist() == [100, 100]


def test_a_snapshot_shows_what_the_pages_of_admin_show(
    client: rmq.Client, server: Server, name: str
) -> None:
    """All queues, and messages that were retried, delayed, merged, leased, buried or damaged."""
    topic = client.topic(name, slots=2, max_retries=5)
    topic.send_many([rmq.Outgoing(n, headers={"n": str(n)} if n % 3 else None) for n in range(30)])
    topic.send("later", delay=3600, expires=60)
    topic.send("merged", merge_key="k", time_range=3600, merge="collect")
    topic.send("large " * 20_000)
    with topic.consumer() as consumer:
        dead, retried, kept = (consumer.receive(6) for _ in range(3))
        consumer.reject(dead, "KeyError: 'a17'")
        consumer.nack(retried, error="not now")
        topic.query("b" * 32, "here").take({}, 3)
        with server.raw() as redis:
            keys = topic._context.slots[dead[0].id.slot]
            redis.hset(keys.records, dead[0].id.member, b"\x1fbytes")
            redis.hset(keys.failures, dead[1].id.member, b"damaged")
        asked = {"url": server.url, "subscribe": name, "queue": "all", "includeHeaders": "true"}
        found = options.snapshot({**asked, "fetchSize": "7"})
        reader = RmqReader(found, snapshot_schema(True))

        rows = {
            row["message_id"]: row
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        }

        shown = {
            str(m.id): m
            for queue in ("store", "prepare", "dead")
            for slot in (0, 1)
            for m in client.admin.page(name, queue, rmq.Span(slot), raw=True).messages
        }
    assert len(kept) == 6
    assert rows.keys() == shown.keys()
    assert {row["queue"] for row in rows.values()} == {"store", "prepare", "dead"}
    for id, row in rows.items():
        message = shown[id]
        assert (row["queue"], row["slot"], row["offset"], row["score"]) == (
            message.queue, message.slot, message.offset, message.score,
        )  # fmt: skip
        assert (row["deliver_at"], row["expires_at"]) == (message.due, message.expires)
        assert (row["lease_until"], row["died"]) == (message.deadline, message.died)
        assert bool(row["held_by_query"]) == message.held_by_query
        assert (row["attempt"], row["priority"]) == (message.deliveries, message.priority)
        assert row["headers"] == list(message.headers.items())
        assert row["unreadable"] == (message.unreadable or None)
        body = message.body if message.unreadable else value_of(message.body)
        assert row["value"] == body
        failure = message.failure
        assert row["reason"] == (failure.reason if failure else None)
        assert row["error"] == (failure.error or None if failure else None)
        assert row["error_fingerprint"] == (fingerprint(failure.error) if failure else None)
