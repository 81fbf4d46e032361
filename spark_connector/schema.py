"""The columns of a read, and messages as Arrow record batches of exactly these columns.

Spark compares the first batch with the schema, time zones and nulls included: so arrays are made
for the fields of the schema, and no type is ever guessed from what a queue happens to hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq.errors import DecodeError, InvalidValue
from rmq.ids import MessageId, texts
from rmq.query import Block, Record, envelope_of, value_of

# name, type, whether it may be null
Field = tuple[str, DataType, bool]
_MESSAGE: tuple[Field, ...] = (
    ("message_id", StringType(), False),
    ("topic", StringType(), False),
    ("slot", IntegerType(), False),
    ("value", BinaryType(), True),
    ("timestamp", TimestampType(), True),
    ("deliver_at", TimestampType(), True),
    ("expires_at", TimestampType(), True),
    ("priority", IntegerType(), True),
    ("merge_key", StringType(), True),
    ("producer", StringType(), True),
    ("producer_seq", LongType(), True),
    ("attempt", IntegerType(), False),
)
_TAKEN: tuple[Field, ...] = (("seq", LongType(), False),)
_LOOKED_AT: tuple[Field, ...] = (
    ("queue", StringType(), False),
    ("offset", LongType(), False),
    ("score", DoubleType(), False),
    ("lease_until", TimestampType(), True),
    ("held_by_query", BooleanType(), True),
    ("died", TimestampType(), True),
    ("reason", StringType(), True),
    ("error", StringType(), True),
    ("error_fingerprint", StringType(), True),
    ("unreadable", StringType(), True),
)
_HEADERS: tuple[Field, ...] = (
    ("headers", MapType(StringType(), StringType(), valueContainsNull=False), True),
)
_NUMBER = "rmq-audit"  # the header that rmq.Audit adds: <producer>.<number>
_DERIVED = 0x80  # first bit of an id that was derived from a dedup key, and holds no time
_VARIES = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|'[^']*'|\"[^\"]*\"|\d+", re.IGNORECASE)


def _schema(fields: Iterable[Field]) -> StructType:
    return StructType([StructField(*one) for one in fields])


def stream_schema(headers: bool) -> StructType:
    """The columns of a streaming read."""
    return _schema(_MESSAGE + _TAKEN + (_HEADERS if headers else ()))


def snapshot_schema(headers: bool) -> StructType:
    """The columns of a batch read."""
    return _schema(_MESSAGE + _LOOKED_AT + (_HEADERS if headers else ()))


def same(given: StructType, ours: StructType) -> None:
    """Refuse a schema of the caller's own.

    Raises:
        InvalidValue: it is another one.
    """
    if [(f.name, f.dataType) for f in given] != [(f.name, f.dataType) for f in ours]:
        raise InvalidValue(
            f"schema: {given.simpleString():.200}; this source has {ours.simpleString()}; leave "
            "schema() out, and select or cast afterwards"
        )


def fingerprint(error: str) -> str | None:
    """What errors have in common that differ in numbers, ids and quoted text alone."""
    if not error:
        return None
    return blake2b(_VARIES.sub("#", error).encode(), digest_size=8).hexdigest()


def made_us(one: bytes) -> int | None:
    """When the producer made an id, epoch us."""
    return None if one[0] & _DERIVED else int.from_bytes(one[:6], "big") * 1000


def _envelope(found: Record, row: int, columns: dict[str, list[Any]]) -> None:
    if found.due_ms:
        columns["deliver_at"][row] = found.due_ms * 1000
    if found.expires_ms:
        columns["expires_at"][row] = found.expires_ms * 1000
    columns["merge_key"][row] = found.merge_key or None
    producer, _, number = found.headers.get(_NUMBER, "").rpartition(".")
    if producer and number.isdecimal():
        columns["producer"][row], columns["producer_seq"][row] = producer, int(number)
    columns["headers"][row] = [
        (name, one) for name, one in found.headers.items() if not name.startswith("rmq-")
    ]


def columns_of(ids: Sequence[bytes], records: Sequence[bytes]) -> dict[str, list[Any]]:
    """The columns that every read has, and `unreadable`: why a record could not be read."""
    empty: list[Any] = [None] * len(ids)
    columns: dict[str, list[Any]] = {
        "message_id": texts(ids),
        "timestamp": [made_us(one) for one in ids],
        "priority": [int.from_bytes(one[1:4], "big") or None for one in records],
        "value": empty.copy(),
        "headers": [[] for _ in ids],
    }
    for name in ("deliver_at", "expires_at", "merge_key", "producer", "producer_seq", "unreadable"):
        columns[name] = empty.copy()
    values = columns["value"]
    for row, entry in enumerate(records):
        try:
            if not entry:
                raise DecodeError("its record is missing")
            if entry[0] & 31:  # something stands before the body
                _envelope(envelope_of(entry), row, columns)
            values[row] = value_of(entry)
        except DecodeError as error:
            values[row], columns["unreadable"][row] = entry, str(error)
    return columns


class Batches:
    """Makes record batches of one schema for one topic; made in the task that needs them."""

    def __init__(self, schema: StructType, topic: str) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._topic = topic

    def batch(self, rows: int, columns: dict[str, Any]) -> pa.RecordBatch:
        """A record batch. What is no list stands for the same value in every row."""
        columns["topic"] = self._topic
        arrays = []
        for field in self.schema:
            values = columns.get(field.name)
            if isinstance(values, list):
                arrays.append(pa.array(values, field.type))
            else:
                arrays.append(pa.repeat(pa.scalar(values, field.type), rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def of_block(self, block: Block) -> pa.RecordBatch:
        """What a query holds.

        Raises:
            DecodeError: a record cannot be read; the text names its message.
        """
        columns = columns_of(block.ids, block.records)
        for one, why in zip(block.ids, columns.pop("unreadable"), strict=True):
            if why:
                raise DecodeError(
                    f"message {MessageId(one)} of topic {self._topic!r}: {why}; look at it with "
                    "rmq get, and give maxReplays to send such a batch to the DeadQueue"
                )
        columns.update(attempt=block.attempts, seq=block.numbers)
        return self.batch(len(block.ids), {"slot": block.slot, **columns})
