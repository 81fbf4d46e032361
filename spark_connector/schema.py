"""The columns of a read, and the record batches that have them.

Spark compares the first batch with the schema, including time zones and nulls. So arrays are made
for the fields of the schema, and no type is guessed from the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import pyarrow as pa
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

from rmq.connectors import Block, QueueBlock
from rmq.errors import InvalidValue
from spark_connector.decode import Stored, queue_columns
from spark_connector.pushdown import Condition, rows_that_fit
from spark_connector.versions import arrow_schema

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
    ("type", StringType(), True),
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
_QUERY: tuple[Field, ...] = (("query", StringType(), False),)
VALUES_BYTES = 16 * 1024 * 1024  # of the bodies of one batch of a queue


def _schema(fields: Iterable[Field]) -> StructType:
    return StructType([StructField(*field) for field in fields])


def stream_schema(headers: bool, query: bool = False) -> StructType:
    """Return the columns of a streaming read. `query`: name the query, for `reject` and `nack`."""
    return _schema(_MESSAGE + _TAKEN + (_HEADERS if headers else ()) + (_QUERY if query else ()))


def snapshot_schema(headers: bool, columns: Sequence[str] | None = None) -> StructType:
    """Return the columns of a batch read.

    Args:
        headers: whether they include `headers`.
        columns: only these, in this order; None: all.

    Raises:
        InvalidValue: there is no such column.
    """
    fields = _MESSAGE + _LOOKED_AT + (_HEADERS if headers else ())
    if columns is None:
        return _schema(fields)
    by_name = {field[0]: field for field in (*fields, *_HEADERS)}
    for name in columns:
        if name not in by_name:
            raise InvalidValue(
                f"columns: a batch read has no {name!r}; known are {', '.join(by_name)}"
            )
    return _schema(by_name[name] for name in columns)


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


class Batches:
    """Make record batches of one schema; created in the task that uses it.

    `query`: the run of the query that reads them, if it is one. `conditions`: of a queue, which
    rows to make.
    """

    def __init__(
        self, schema: StructType, query: str = "", conditions: Sequence[Condition] = ()
    ) -> None:
        self._query = query
        self._conditions = conditions
        self.schema: pa.Schema = arrow_schema(schema)
        self.has_bodies = not {"value", "unreadable"}.isdisjoint(self.schema.names)

    def batch(self, rows: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
        """Return a record batch. A single value fills every row; a missing column is null.

        A column may be a function that makes it; it is called if the schema has the column.
        """
        arrays = []
        for field in self.schema:
            values = columns.get(field.name)
            if callable(values):
                values = values()
            if isinstance(values, pa.Array):
                arrays.append(values.cast(field.type))
            elif values is None:
                arrays.append(pa.nulls(rows, field.type))
            elif isinstance(values, list) and len(values) == rows:
                arrays.append(pa.array(values, field.type))
            else:
                arrays.append(pa.repeat(pa.scalar(values, field.type), rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def of_blocks(self, blocks: Sequence[Block]) -> pa.RecordBatch:
        """Return blocks, of any slots and topics, as one batch: small batches cost the most.

        An unreadable record is a row, so that it blocks no others.
        """
        records = list(chain.from_iterable(block.records for block in blocks))
        counts = [len(block.records) for block in blocks]
        columns: dict[str, Any] = Stored(b"".join(block.ids for block in blocks), records).columns()
        columns.update(
            topic=_each([block.topic for block in blocks], counts),
            slot=_each([block.slot for block in blocks], counts),
            attempt=list(chain.from_iterable(block.attempts for block in blocks)),
            seq=list(chain.from_iterable(block.numbers for block in blocks)),
            query=self._query,
        )
        return self.batch(len(records), columns)

    def of_queue(self, block: QueueBlock) -> Iterator[pa.RecordBatch]:
        """Yield a page of a queue as batches.

        A batch ends where its bodies come to VALUES_BYTES: few stored bytes may decompress to many.
        """
        if self._conditions:
            columns = queue_columns(block, Stored(block.ids, block.records))
            rows = rows_that_fit(self._conditions, columns, len(block.records))
            if len(rows) < len(block.records):
                block = block.only(rows)
        if not self.has_bodies:
            stored = Stored(block.ids, block.records)
            yield self.batch(len(block.records), queue_columns(block, stored))
            return
        for start, stop, stored in Stored(block.ids, block.records).pieces(VALUES_BYTES):
            part = block if stop - start == len(block.records) else block.part(start, stop)
            yield self.batch(stop - start, queue_columns(part, stored))


def _each(values: list[Any], counts: list[int]) -> Any:
    """Return a value for each row, of which a block has so many; one value where all are equal."""
    if values.count(values[0]) == len(values):
        return values[0]
    return list(chain.from_iterable(map(repeat, values, counts)))
