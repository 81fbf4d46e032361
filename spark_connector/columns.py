"""Convert the rows of a write to messages, and check the columns of the rows.

This module does not use Redis.
"""

from __future__ import annotations

import difflib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import islice, repeat
from operator import length_hint
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from rmq import Outgoing, Stage
from rmq.connectors import Merge, codec_of
from rmq.errors import EncodeError, InvalidValue, RMQError

_TEXT = (StringType, BinaryType)
WHOLE = (ByteType, ShortType, IntegerType, LongType)


class Column(NamedTuple):
    """A column that you can write, with the message field that it fills and its possible types."""

    field: str
    types: tuple[type[DataType], ...]
    hint: str


COLUMNS = {
    "value": Column("body", _TEXT, "binary or string"),
    "body": Column("body", _TEXT, "binary or string"),
    "priority": Column("priority", WHOLE, "int"),
    "deliver_at": Column("at", (TimestampType,), "timestamp"),
    "delay_ms": Column("delay", WHOLE, "bigint"),
    "merge_key": Column("merge_key", (StringType,), "string"),
    "time_range_ms": Column("time_range", WHOLE, "bigint"),
    "slot_basis": Column("slot_basis", _TEXT, "string or binary"),
    "key": Column("slot_basis", _TEXT, "string or binary"),
    "message_id": Column("id", _TEXT, "string or binary"),
    "dedup_key": Column("dedup_key", _TEXT, "string or binary"),
    "headers": Column("headers", (MapType,), "map<string,string>"),
    "type": Column("type", (StringType,), "string"),
    "group": Column("group", (StringType,), "string"),
    "share_key": Column("share_key", (StringType,), "string"),
    "weight": Column("weight", WHOLE, "int"),
    "topic": Column("topic", (StringType,), "string"),
}
_KNOWN = ", ".join(COLUMNS)
FROM_KAFKA = "map_from_entries(transform(headers, h -> (h.key, string(h.value))))"
# Rows that are encoded together. Larger slices would make longer entries of a stage.
SLICE_ROWS, SLICE_BYTES = 20_000, 16 * 1024 * 1024


_FIELDS = tuple(field.name for field in fields(Outgoing))
_DEFAULTS = {field.name: field.default for field in fields(Outgoing)}


class Encoded:
    """A codec for bodies that are already encoded. It checks each body by decoding it."""

    passes_bytes = True

    def __init__(self, name: str) -> None:
        self._codec = codec_of(name)
        self.name, self.number = name, self._codec.number

    def encode(self, body: Any) -> bytes:
        """Return the body unchanged. If the codec cannot decode the body, raise an error."""
        if self.number:
            try:
                self._codec.decode(body)
            except RMQError as error:
                raise EncodeError(
                    f"body: {error}; write such bodies, or leave the option codec out"
                ) from error
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        """Decode the bytes with the codec."""
        return self._codec.decode(data)


def spelled(schema: StructType, types: Mapping[str, tuple[type[DataType], ...]]) -> dict[str, str]:
    """Return the names of the known columns, with capital letters as in the schema.

    Other columns are ignored.

    Args:
        schema: Schema of the rows.
        types: Possible types of each column. The names of the columns are in lower case. If a
            column has a wrong type, the error suggests the last of these types.

    Raises:
        InvalidValue: A column has another type, or occurs twice.
    """
    found: dict[str, str] = {}
    for field in schema:
        name = field.name.lower()
        if name not in types:
            continue
        if name in found:
            raise InvalidValue(f"{found[name]}, {field.name}: two columns of one meaning; drop one")
        if not isinstance(field.dataType, types[name]):
            raise InvalidValue(
                f"{field.name}: {field.dataType.simpleString()}; cast it to "
                f"{types[name][-1]().simpleString()}"
            )
        found[name] = field.name
    return found


def checked(schema: StructType) -> dict[str, str]:
    """Check the columns of a write. Return the column name for each message field.

    Raises:
        InvalidValue: A column is missing, unknown, of another type, or occurs twice.
    """
    columns: dict[str, str] = {}
    for given in schema:
        column = COLUMNS.get(given.name.lower())
        if column is None:
            near = difflib.get_close_matches(given.name.lower(), COLUMNS, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else f"known are {_KNOWN}"
            raise InvalidValue(f"{given.name}: a write has no such column; {hint}; drop the others")
        kind = given.dataType
        fits = isinstance(kind, column.types)
        if isinstance(kind, MapType):
            fits = fits and isinstance(kind.keyType, StringType)
            fits = fits and isinstance(kind.valueType, StringType)
        if not fits:
            hint = (
                "this is the type of Kafka's headers; use " + FROM_KAFKA
                if column.field == "headers" and isinstance(kind, ArrayType)
                else f"cast it to {column.hint}"
            )
            raise InvalidValue(f"{given.name}: {kind.simpleString()}; {hint}")
        if column.field in columns:
            raise InvalidValue(
                f"{columns[column.field]}, {given.name}: two columns of one meaning; drop one"
            )
        columns[column.field] = given.name
    if "body" not in columns:
        raise InvalidValue("value: the column is missing; it is the body, binary or string")
    if "time_range" in columns and "merge_key" not in columns:
        raise InvalidValue("time_range_ms: given without merge_key; drop it, or add merge_key")
    if "merge_key" in columns and "time_range" not in columns:
        raise InvalidValue("merge_key: given without time_range_ms; drop it, or add time_range_ms")
    return columns


def _binary(array: pa.Array) -> list[Any]:
    values: list[Any] = array.cast(pa.binary()).to_pylist()
    return values


def _spans(array: pa.Array) -> list[Any]:
    return [None if ms is None else ms / 1000 for ms in array.to_pylist()]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000  # range of datetime: years 1 to 9999


def _times(array: pa.Array) -> list[Any]:
    """Convert timestamps to epoch ms.

    The function rounds up, so that no message is delivered too early. RMQ accepts epoch ms only in
    a limited range, so that it can detect numbers in other units. A time outside this range becomes
    a datetime, which RMQ accepts in any case.
    """
    us = pc.cast(pc.cast(array, pa.timestamp("us", "UTC")), pa.int64()).to_pylist()
    return [None if time is None else _time(-(-time // 1000)) for time in us]


def _time(ms: int) -> int | datetime:
    if 1e11 <= ms <= 1e14:
        return ms
    return _EPOCH + timedelta(milliseconds=min(max(ms, _FIRST_MS), _LAST_MS))


def _maps(array: pa.Array) -> list[Any]:
    if not array.items.null_count:
        return [None if pairs is None else dict(pairs) for pairs in array.to_pylist()]
    return [
        None if pairs is None else {key: value for key, value in pairs if value is not None}
        for pairs in array.to_pylist()
    ]


def _plain(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


_READ: dict[str, Callable[[pa.Array], list[Any]]] = {
    "body": _binary, "at": _times, "delay": _spans, "time_range": _spans, "headers": _maps,
}  # fmt: skip


# Columns that are passed whole to `Stage.push_bodies`, each with the name of its parameter.
_WHOLE_COLUMNS = {
    "priority": "priorities", "slot_basis": "slot_bases", "headers": "headers", "type": "types",
    "group": "groups",
}  # fmt: skip


class _Bodies(list[Any]):
    """A list of bodies that remembers how many bodies the last loop has read."""

    left: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        self.left = super().__iter__()
        return self.left

    @property
    def read(self) -> int:
        return len(self) - length_hint(self.left)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small record batches, so that RMQ encodes more rows together.

    Spark makes batches of at most 10 000 rows.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        rows = sum(each.num_rows for each in waiting) + batch.num_rows
        if waiting and (rows > SLICE_ROWS or sum(each.nbytes for each in waiting) > SLICE_BYTES):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined[0] if joined else batches[0]


class Rows:
    """Converts record batches to messages.

    The object remembers the number of the current row for error messages.
    """

    def __init__(self, columns: dict[str, str], merge: Merge, key_header: str | None) -> None:
        self._columns = columns
        self._key_header = key_header
        self._topic = columns.get("topic")
        columns = {field: name for field, name in columns.items() if field != "topic"}
        self._fields_of = columns
        self._merge = merge
        self._before = 0  # rows of the partition before the current batch
        self._rows: Sequence[int] = range(1)  # positions of the slice's rows in their batch
        self._bodies = _Bodies()
        merges = ("merge",) if "merge_key" in columns else ()
        with_key = ("headers",) if key_header else ()
        last = max(_FIELDS.index(field) for field in (*columns, *merges, *with_key))
        self._fields = _FIELDS[: last + 1]
        self._is_simple = columns.keys() <= {"body", *_WHOLE_COLUMNS}

    @property
    def row(self) -> int:
        """Number of the last row that was read. The first row of a partition is 1."""
        return self._before + self._rows[max(0, self._bodies.read - 1)] + 1

    def push(self, batch: pa.RecordBatch, stage_of: Callable[[str | None], Stage]) -> None:
        """Store the messages of a record batch until the commit publishes them.

        A stage keeps messages outside of all queues until the commit. The method encodes the batch
        in parts.
        """
        each = max(1, batch.nbytes // max(1, batch.num_rows))
        step = max(1, min(SLICE_ROWS, SLICE_BYTES // each))
        for topic, rows in self._by_topic(batch).items():
            of_topic = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
            for at in range(0, len(rows), step):
                self._rows, self._bodies = rows[at : at + step], _Bodies()
                self._push(of_topic.slice(at, step), stage_of(topic))
        self._before += batch.num_rows
        self._rows, self._bodies = range(1), _Bodies()

    def _by_topic(self, batch: pa.RecordBatch) -> dict[str | None, Sequence[int]]:
        if self._topic is None:
            return {None: range(batch.num_rows)}
        rows: dict[str | None, list[int]] = defaultdict(list)
        for row, topic in enumerate(batch.column(self._topic).to_pylist()):
            rows[topic].append(row)
        return {**rows}

    def _push(self, rows: pa.RecordBatch, stage: Stage) -> None:
        values = self._values(rows)
        if self._is_simple:
            columns = {_WHOLE_COLUMNS[field]: values[field] for field in values}
            stage.push_bodies(self._bodies, **columns)
        else:
            # Work column by column, with `repeat` for constants, so that no object is created for
            # each row.
            outs = [values.get(field, repeat(_DEFAULTS[field])) for field in self._fields[1:]]
            stage.push(map(Outgoing, self._bodies, *outs))

    def _values(self, batch: pa.RecordBatch) -> dict[str, list[Any]]:
        """Return all fields of the messages of some rows, except the bodies."""
        read = _READ | ({"slot_basis": _binary} if self._is_simple else {})
        values = {
            field: read.get(field, _plain)(batch.column(name))
            for field, name in self._fields_of.items()
        }
        self._bodies = _Bodies(values.pop("body"))
        if batch.column(self._columns["body"]).null_count:
            deque(islice(self._bodies, self._bodies.index(None) + 1), 0)
            raise InvalidValue(f"{self._columns['body']}: null; a message has a body")
        if self._key_header:
            self._add_keys(values, self._key_header)
        if "merge_key" in values:
            values["merge"] = [
                "first" if key is None else self._merge for key in values["merge_key"]
            ]
        return values

    def _add_keys(self, values: dict[str, list[Any]], name: str) -> None:
        """Store the key of each row in a header of its message.

        If a row already has this header, the header stays.
        """
        keys, given = values["slot_basis"], values.get("headers") or repeat(None)
        headers: list[dict[str, str] | None] = []
        for row, (key, pairs) in enumerate(zip(keys, given, strict=False)):
            try:
                text = key.decode() if isinstance(key, bytes) else key
            except UnicodeDecodeError:
                deque(islice(self._bodies, row + 1), 0)
                raise InvalidValue(
                    f"{self._columns['slot_basis']}: it is not UTF-8, so it cannot be a header; "
                    "encode it, for example with base64(), or leave keyHeader out"
                ) from None
            headers.append(pairs if text is None else {name: text, **(pairs or {})})
        values["headers"] = headers

    def explain(self, error: RMQError, partition: int) -> None:
        """Convert an error about a message, so that it names columns instead of message fields."""
        head, colon, rest = str(error).partition(":")
        words = [self._columns.get(word.rstrip(","), word) for word in head.split(" ")]
        error.args = (" ".join(words) + colon + rest, *error.args[1:])
        error.add_note(f"Row {self.row} of partition {partition}. Nothing of it is published.")
