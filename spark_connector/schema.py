"""The columns of a read, and the conversion of messages to Arrow record batches.

Spark compares the first batch with the schema, including time zones and nulls. So arrays are made
for the fields of the schema, and no type is guessed from the messages.
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
)
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
# The first octet of an id without the mark of ids that are kept to be sent again.
_NOT_KEPT = bytes(octet & ~0x40 for octet in range(256))
_EMPTY: list[Any] = []  # the headers of messages that have none
_VARIES = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|'[^']*'|\"[^\"]*\"|\d+", re.IGNORECASE)


def _schema(fields: Iterable[Field]) -> StructType:
    return StructType([StructField(*field) for field in fields])


def stream_schema(headers: bool) -> StructType:
    """Return the columns of a streaming read."""
    return _schema(_MESSAGE + _TAKEN + (_HEADERS if headers else ()))


def snapshot_schema(headers: bool) -> StructType:
    """Return the columns of a batch read."""
    return _schema(_MESSAGE + _LOOKED_AT + (_HEADERS if headers else ()))


def refuse_other_schema(given: StructType, ours: StructType) -> None:
    """Refuse a schema that the caller has given.

    Raises:
        InvalidValue: it differs from ours.
    """
    if [(f.name, f.dataType) for f in given] != [(f.name, f.dataType) for f in ours]:
        raise InvalidValue(
            f"schema: {given.simpleString():.200}; this source has {ours.simpleString()}; leave "
            "schema() out, and select or cast afterwards"
        )


def fingerprint(error: str) -> str | None:
    """Return a hash that ignores numbers, ids and quoted text in an error."""
    if not error:
        return None
    return blake2b(_VARIES.sub("#", error).encode(), digest_size=8).hexdigest()


def _texts(ids: bytes) -> pa.Array:
    text = pa.py_buffer(id_texts(ids))
    fixed = pa.Array.from_buffers(pa.binary(ID_CHARS), len(ids) // ID_BYTES, [None, text])
    return fixed.cast(pa.binary()).cast(pa.string())


def _made_at(ids: bytes) -> pa.Array:
    """Return the times at which ids were made; null for an id derived from a dedup key."""
    stamps = bytearray(len(ids) // 2)
    for index in range(6):  # big-endian ms in the id, little-endian here
        stamps[index::8] = ids[5 - index :: ID_BYTES]
    stamps[5::8] = stamps[5::8].translate(_NOT_KEPT)
    ms = pa.Array.from_buffers(
        pa.int64(), len(ids) // ID_BYTES, [None, pa.py_buffer(bytes(stamps))]
    )
    if max(ids[::ID_BYTES], default=0) & _DERIVED:
        ms = pc.if_else(pc.less(ms, _DERIVED << 40), ms, pa.scalar(None, pa.int64()))
    return ms.cast(pa.timestamp("ms", "UTC"))


def _read_envelope(record: Record, row: int, columns: dict[str, list[Any]]) -> None:
    if record.due_ms:
        columns["deliver_at"][row] = record.due_ms * 1000
    if record.expires_ms:
        columns["expires_at"][row] = record.expires_ms * 1000
    columns["merge_key"][row] = record.merge_key or None
    producer, _, number = record.headers.get(_NUMBER, "").rpartition(".")
    if producer and number.isdecimal():
        columns["producer"][row], columns["producer_seq"][row] = producer, int(number)
    columns["headers"][row] = [
        (name, text) for name, text in record.headers.items() if not name.startswith("rmq-")
    ]


def columns_of(ids: Sequence[bytes], records: Sequence[bytes]) -> dict[str, Any]:
    """Return the columns of every read, and `unreadable`: why a record could not be read."""
    joined = b"".join(ids)
    columns: dict[str, Any] = {"message_id": _texts(joined), "timestamp": _made_at(joined)}
    heads = {record[:4] for record in records}
    if all(head and is_bare(head[0]) for head in heads):
        columns["value"] = [record[BARE:] for record in records]
        columns["headers"] = _EMPTY
    else:
        columns |= _read_each(records)
    if len(heads) == 1:
        columns["priority"] = int.from_bytes(heads.pop()[1:], "big") or None
    else:
        columns["priority"] = [int.from_bytes(record[1:4], "big") or None for record in records]
    return columns


def _read_each(records: Sequence[bytes]) -> dict[str, list[Any]]:
    """Return the columns that are read record by record."""
    names = ("value", "deliver_at", "expires_at", "merge_key", "producer", "producer_seq")
    empty: list[Any] = [None] * len(records)
    columns = {name: empty.copy() for name in (*names, "unreadable")}
    columns["headers"] = [[] for _ in records]
    for row, entry in enumerate(records):
        try:
            if not entry:
                raise DecodeError("its record is missing")
            if entry[0] & 31:  # there are fields before the body
                _read_envelope(envelope_of(entry), row, columns)
            columns["value"][row] = value_of(entry)
        except DecodeError as error:
            columns["value"][row], columns["unreadable"][row] = entry, str(error)
    return columns


class Batches:
    """Make record batches of one schema for one topic; created in the task that uses it."""

    def __init__(self, schema: StructType, topic: str) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._topic = topic

    def batch(self, rows: int, columns: dict[str, Any]) -> pa.RecordBatch:
        """Return a record batch. A single value fills every row; a missing column is null."""
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
        """Return a block as a batch. An unreadable record is a row, so that it blocks no others."""
        columns = columns_of(block.ids, block.records)
        columns.update(attempt=block.attempts, seq=block.numbers)
        return self.batch(len(block.ids), {"slot": block.slot, **columns})
