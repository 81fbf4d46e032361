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
import pyarrow.compute as pc
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

from rmq.connectors import (
    BARE,
    ID_BYTES,
    ID_CHARS,
    Block,
    Record,
    envelope_of,
    id_texts,
    is_bare,
    value_of,
)  # fmt: skip
from rmq.errors import DecodeError, InvalidValue

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
_UNREADABLE: Field = ("unreadable", StringType(), True)
_TAKEN: tuple[Field, ...] = (("seq", LongType(), False), _UNREADABLE)
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
    _UNREADABLE,
)
_HEADERS: tuple[Field, ...] = (
    ("headers", MapType(StringType(), StringType(), valueContainsNull=False), True),
)
_NUMBER = "rmq-audit"  # the header that rmq.Audit adds: <producer>.<number>
_DERIVED = 0x80  # first bit of an id that was derived from a dedup key, and holds no time
_EMPTY: list[Any] = []  # the headers of messages that have none
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


def _texts(ids: bytes) -> pa.Array:
    """The ids as text."""
    whole = pa.py_buffer(id_texts(ids))
    fixed = pa.Array.from_buffers(pa.binary(ID_CHARS), len(ids) // ID_BYTES, [None, whole])
    return fixed.cast(pa.binary()).cast(pa.string())


def _made(ids: bytes) -> pa.Array:
    """When producers made the ids; null for one that was derived and holds no time."""
    stamps = bytearray(len(ids) // 2)
    for place in range(6):  # big-endian ms in the id, little-endian here
        stamps[place::8] = ids[5 - place :: ID_BYTES]
    ms = pa.Array.from_buffers(
        pa.int64(), len(ids) // ID_BYTES, [None, pa.py_buffer(bytes(stamps))]
    )
    if max(ids[::ID_BYTES], default=0) & _DERIVED:
        ms = pc.if_else(pc.less(ms, _DERIVED << 40), ms, pa.scalar(None, pa.int64()))
    return ms.cast(pa.timestamp("ms", "UTC"))


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


def columns_of(ids: Sequence[bytes], records: Sequence[bytes]) -> dict[str, Any]:
    """The columns that every read has, and `unreadable`: why a record could not be read."""
    joined = b"".join(ids)
    columns: dict[str, Any] = {"message_id": _texts(joined), "timestamp": _made(joined)}
    heads = {one[:4] for one in records}
    if all(head and is_bare(head[0]) for head in heads):
        columns["value"] = [one[BARE:] for one in records]
        columns["headers"] = _EMPTY
    else:
        columns |= _told(records)
    if len(heads) == 1:
        columns["priority"] = int.from_bytes(heads.pop()[1:], "big") or None
    else:
        columns["priority"] = [int.from_bytes(one[1:4], "big") or None for one in records]
    return columns


def _told(records: Sequence[bytes]) -> dict[str, list[Any]]:
    """What is read record by record."""
    names = ("value", "deliver_at", "expires_at", "merge_key", "producer", "producer_seq")
    empty: list[Any] = [None] * len(records)
    columns = {name: empty.copy() for name in (*names, "unreadable")}
    columns["headers"] = [[] for _ in records]
    for row, entry in enumerate(records):
        try:
            if not entry:
                raise DecodeError("its record is missing")
            if entry[0] & 31:  # something stands before the body
                _envelope(envelope_of(entry), row, columns)
            columns["value"][row] = value_of(entry)
        except DecodeError as error:
            columns["value"][row], columns["unreadable"][row] = entry, str(error)
    return columns


class Batches:
    """Makes record batches of one schema for one topic; made in the task that needs them."""

    def __init__(self, schema: StructType, topic: str) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._topic = topic

    def batch(self, rows: int, columns: dict[str, Any]) -> pa.RecordBatch:
        """A record batch. A single value stands for the same one in every row, or none for null."""
        columns["topic"] = self._topic
        arrays = []
        for field in self.schema:
            values = columns.get(field.name)
            if isinstance(values, pa.Array):
                arrays.append(values.cast(field.type))
            elif values is None:
                arrays.append(pa.nulls(rows, field.type))
            elif isinstance(values, list) and len(values) == rows:
                arrays.append(pa.array(values, field.type))
            else:
                arrays.append(pa.repeat(pa.scalar(values, field.type), rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def of_block(self, block: Block) -> pa.RecordBatch:
        """What a query holds. A record that cannot be read is a row: it must not hold up others."""
        columns = columns_of(block.ids, block.records)
        columns.update(attempt=block.attempts, seq=block.numbers)
        return self.batch(len(block.ids), {"slot": block.slot, **columns})
