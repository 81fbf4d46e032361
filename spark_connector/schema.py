"""Define the columns of a read, and create record batches with these columns.

Spark compares the first batch with the schema, including time zones and nulls. So the arrays use
the types of the schema, not types that Arrow finds in the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
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

from rmq import AckedMessage
from rmq.connectors import Block, QueueBlock
from rmq.errors import InvalidValue
from spark_connector.decode import Stored, queue_columns, times
from spark_connector.pushdown import Condition, rows_that_fit
from spark_connector.versions import arrow_schema

# Name, type, and whether the column may be null.
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
    ("group", StringType(), True),
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
_ATTEMPT: tuple[Field, ...] = (
    ("attempt", IntegerType(), True),
    ("time", TimestampType(), False),
    ("reason", StringType(), False),
    ("worker", StringType(), True),
    ("error", StringType(), True),
    ("traceback", StringType(), True),
)
_KEPT: tuple[Field, ...] = (
    *(field for field in _MESSAGE if field[0] != "attempt"),
    ("acked_at", TimestampType(), False),
    _UNREADABLE,
)
_QUERY: tuple[Field, ...] = (("query", StringType(), False),)
# Columns of a batch read that do not need the records of messages.
_WITHOUT_RECORDS = frozenset(
    (
        "message_id", "topic", "queue", "slot", "timestamp", "score", "attempt", "lease_until",
        "held_by_query", "died", "reason", "error", "error_fingerprint", "attempts",
    )
)  # fmt: skip
VALUES_BYTES = 16 * 1024 * 1024  # maximum size of the bodies in one batch of a queue


def _schema(fields: Iterable[Field]) -> StructType:
    return StructType([StructField(*field) for field in fields])


_ATTEMPTS: tuple[Field, ...] = (
    ("attempts", ArrayType(_schema(_ATTEMPT), containsNull=False), True),
)
_KNOWN = frozenset(
    name for name, *_ in _MESSAGE + _TAKEN + _LOOKED_AT + _KEPT + _HEADERS + _QUERY + _ATTEMPTS
)


def _headers(headers: bool | tuple[str, ...]) -> tuple[Field, ...]:
    if not isinstance(headers, tuple):
        return _HEADERS if headers else ()
    for name in headers:
        if name.lower() in _KNOWN:
            raise InvalidValue(
                f"includeHeaders: {name!r} is already a column; give true, and read it from headers"
            )
    return tuple((name, StringType(), True) for name in headers)


def stream_schema(headers: bool | tuple[str, ...], query: bool = False) -> StructType:
    """Return the columns of a streaming read.

    Args:
        headers: True for one column `headers` with all headers. Or names of headers, each of which
            becomes a column of its own.
        query: Whether to add the column `query`, which the functions `reject` and `nack` need.

    Raises:
        InvalidValue: A header has the same name as another column.
    """
    return _schema(_MESSAGE + _TAKEN + _headers(headers) + (_QUERY if query else ()))


def snapshot_schema(
    headers: bool | tuple[str, ...],
    columns: Sequence[str] | None = None,
    attempts: bool = False,
) -> StructType:
    """Return the columns of a batch read.

    Args:
        headers: Headers as for `stream_schema`.
        columns: Names of the wanted columns in lower case, in their order. Default: all columns.
        attempts: True to add the column `attempts`.

    Raises:
        InvalidValue: A column does not exist, or a header has the name of a column.
    """
    fields = _MESSAGE + _LOOKED_AT + _headers(headers) + (_ATTEMPTS if attempts else ())
    return _selected(fields, columns, (*_HEADERS, *_ATTEMPTS))


def history_schema(
    headers: bool | tuple[str, ...], columns: Sequence[str] | None = None
) -> StructType:
    """Return the columns of a read of the history.

    The parameters are the same as for `snapshot_schema`.
    """
    return _selected(_KEPT + _headers(headers), columns, _HEADERS)


def _selected(
    fields: tuple[Field, ...], columns: Sequence[str] | None, more: tuple[Field, ...]
) -> StructType:
    if columns is None:
        return _schema(fields)
    by_name = {field[0].lower(): field for field in (*fields, *more)}
    for name in columns:
        if name not in by_name:
            raise InvalidValue(
                f"columns: a batch read has no {name!r}; known are {', '.join(by_name)}"
            )
    return _schema(by_name[name] for name in columns)


def refuse_other_schema(given: StructType, ours: StructType) -> None:
    """Raise an error if a schema differs from the schema of this data source.

    Raises:
        InvalidValue: The schemas differ.
    """
    if [(f.name, f.dataType) for f in given] != [(f.name, f.dataType) for f in ours]:
        raise InvalidValue(
            f"schema: {given.simpleString():.200}; this source has {ours.simpleString()}; leave "
            "schema() out, and select or cast afterwards"
        )


class Batches:
    """Creates record batches of one schema. Create this object in the task that uses it.

    `query` identifies the streaming query, or is empty. The object omits rows of a queue that do
    not meet all `conditions`.
    """

    def __init__(
        self, schema: StructType, query: str = "", conditions: Sequence[Condition] = ()
    ) -> None:
        self._query = query
        self._conditions = conditions
        self.schema: pa.Schema = arrow_schema(schema)
        self._headers = [name for name in self.schema.names if name not in _KNOWN]
        self.has_bodies = not {"value", "unreadable"}.isdisjoint(self.schema.names)
        needed = {*self.schema.names, *(each.column for each in conditions)}
        self.has_records = not needed <= _WITHOUT_RECORDS

    def batch(self, rows: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
        """Return a record batch.

        If you pass a single value for a column, the value fills every row. If a column is missing,
        its values are null. You can also pass a function that creates the column. The method calls
        the function only if the schema has the column.
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
        """Join blocks of messages into larger batches, because small batches are slow.

        The blocks may have any slots and topics. An unreadable record becomes a row as well, so
        that it does not block other messages.
        """
        records = list(chain.from_iterable(block.records for block in blocks))
        counts = [len(block.records) for block in blocks]
        stored = Stored(b"".join(block.ids for block in blocks), records)
        columns: dict[str, Any] = stored.columns()
        columns.update(
            self._headers_of(stored),
            topic=_each([block.topic for block in blocks], counts),
            slot=_each([block.slot for block in blocks], counts),
            attempt=list(chain.from_iterable(block.attempts for block in blocks)),
            seq=list(chain.from_iterable(block.numbers for block in blocks)),
            query=self._query,
        )
        return self.batch(len(records), columns)

    def of_queue(self, block: QueueBlock) -> Iterator[pa.RecordBatch]:
        """Yield a page of a queue as batches.

        A batch ends when its bodies have VALUES_BYTES bytes, because a small stored body can become
        very large when it is decompressed.
        """
        if self._conditions:
            columns = queue_columns(block, Stored(block.ids, block.records))
            rows = rows_that_fit(self._conditions, columns, len(block.records))
            if len(rows) < len(block.records):
                block = block.only(rows)
        if not self.has_bodies:
            stored = Stored(block.ids, block.records)
            yield self._of_queue(block, stored)
            return
        for start, stop, stored in Stored(block.ids, block.records).pieces(VALUES_BYTES):
            part = block if stop - start == len(block.records) else block.part(start, stop)
            yield self._of_queue(part, stored)

    def _of_queue(self, block: QueueBlock, stored: Stored) -> pa.RecordBatch:
        columns = queue_columns(block, stored) | self._headers_of(stored)
        return self.batch(len(block.records), columns)

    def of_history(self, topic: str, messages: Sequence[AckedMessage]) -> Iterator[pa.RecordBatch]:
        """Yield a page of a topic's history as batches.

        The batches have the same size as in `of_queue`.
        """
        whole = Stored(b"".join(one.id for one in messages), [one.record for one in messages])
        for start, stop, stored in whole.pieces(VALUES_BYTES):
            part = messages[start:stop]
            columns = stored.columns() | self._headers_of(stored)
            columns |= {"topic": topic, "slot": [one.slot for one in part]}
            columns["acked_at"] = times([int(one.entry.partition("-")[0]) for one in part])
            yield self.batch(len(part), columns)

    def _headers_of(self, stored: Stored) -> dict[str, Any]:
        return {name: partial(stored.header, name) for name in self._headers}


def _each(values: list[Any], counts: list[int]) -> Any:
    """Repeat each value for all rows of its block.

    If all values are equal, return a single value.
    """
    if values.count(values[0]) == len(values):
        return values[0]
    return list(chain.from_iterable(map(repeat, values, counts)))
