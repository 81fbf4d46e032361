"""Convert stored messages to columns, without an object for each message.

Most records have no optional fields before the body. Arrow reads these records without a Python
loop. For other records, one loop reads all fields. This module makes a column when it is first
used. So a column that is not in the schema costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rmq.connectors import (
    BARE,
    ID_BYTES,
    ID_CHARS,
    QueueBlock,
    fields_of,
    id_texts,
    is_bare,
    value_of,
)
from rmq.errors import DecodeError

_NUMBER = "rmq-audit"  # the header that rmq.Audit adds: <producer>.<number>
_TYPE = "rmq-type"  # the header with the type
_GROUP = "rmq-group"  # the header with the group, after the last \1
_RESERVED = "rmq-"  # prefix of headers that RMQ adds
_DERIVED = 0x80  # first bit of an id that was derived from a dedup key, and has no time
# Clears the bit that marks an id made by `Topic.new_id`. It is in the first byte of the id's time.
_NOT_KEPT = bytes(octet & ~0x40 for octet in range(256))
_BIGINT_MAX = (1 << 63) - 1
_NOT_BARE = b"\xff" * BARE  # used for a record that is too short; no record begins so
_END = (1 << 31) - 1  # end of a slice; Arrow 26 fails at an empty body without an end
_LOW = (1 << 32) - 1  # a record stores only these bits of its sequence number
_EMPTY: list[Any] = []  # headers of messages without headers
_VARIES = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|'[^']*'|\"[^\"]*\"|\d+", re.IGNORECASE)


@lru_cache(256)
def fingerprint(error: str) -> str | None:
    """Return a hash of an error's text. The hash ignores numbers, ids and quoted text."""
    if not error:
        return None
    return blake2b(_VARIES.sub("#", error).encode(), digest_size=8).hexdigest()


class _Fields(NamedTuple):
    """The fields of the records except the bodies, as one list for each column.

    If a record lacks a field, the item in the list is None.
    """

    due_ms: list[int | None]
    expires_ms: list[int | None]
    merge_keys: list[str | None]
    headers: list[dict[str, str] | None]
    starts: list[int]  # position of each body in its record
    errors: dict[int, str]  # reason why a record cannot be read, by row


class Stored:
    """Messages as Redis stores them.

    Args:
        ids: Ids of 16 bytes each, one after another.
        records: Records, in the order of the ids.
    """

    def __init__(self, ids: bytes, records: Sequence[bytes]) -> None:
        self._ids, self._records, self._count = ids, records, len(records)

    def columns(self) -> dict[str, Callable[[], Any]]:
        """Return the columns that every read has.

        The value of each column is a function that creates the column.
        """
        return {
            "message_id": self._message_ids,
            "timestamp": self._made_at,
            "value": lambda: self._bodies[0],
            "deliver_at": lambda: times(self.due_ms()),
            "expires_at": lambda: times(self._fields.expires_ms) if self._enveloped else None,
            "priority": self._priorities,
            "merge_key": lambda: self._fields.merge_keys if self._enveloped else None,
            "type": lambda: self.header(_TYPE),
            "group": self._groups,
            "producer": lambda: self._numbers[0],
            "producer_seq": lambda: self._numbers[1],
            "headers": self._headers,
            "unreadable": self._unreadable,
        }

    def pieces(self, most: int) -> Iterator[tuple[int, int, Stored]]:
        """Yield the messages in parts. Each part has about `most` bytes of bodies.

        For a compressed body, the size after decompression counts. If no body is compressed or a
        list of bodies, there is only one part, because stored bodies are small.
        """
        if not any(map(self._is_packed, self._enveloped)):
            yield 0, self._count, self
            return
        start = size = 0
        values: list[bytes] = []
        errors: dict[int, str] = {}
        for row in range(self._count):
            values.append(self._body(row, row - start, errors))
            size += len(values[-1])
            if size >= most or row + 1 == self._count:
                ids = self._ids[start * ID_BYTES : (row + 1) * ID_BYTES]
                piece = Stored(ids, self._records[start : row + 1])
                piece._bodies = values, errors
                yield start, row + 1, piece
                start, size, values, errors = row + 1, 0, [], {}

    # --- ids ---------------------------------------------------------------------------------

    def _message_ids(self) -> pa.Array:
        text = pa.py_buffer(id_texts(self._ids))
        fixed = pa.Array.from_buffers(pa.binary(ID_CHARS), self._count, [None, text])
        return fixed.cast(pa.binary()).cast(pa.string())

    def _made_at(self) -> pa.Array:
        """Return the time in each id. The time is null if the id comes from a dedup key."""
        ids = self._ids
        stamps = bytearray(8 * self._count)
        for index in range(6):  # the id has big-endian ms, this array little-endian
            stamps[index::8] = ids[5 - index :: ID_BYTES]
        stamps[5::8] = stamps[5::8].translate(_NOT_KEPT)
        ms = _int64(stamps)
        if max(ids[::ID_BYTES], default=0) & _DERIVED:
            ms = pc.if_else(pc.less(ms, _DERIVED << 40), ms, pa.scalar(None, pa.int64()))
        return ms.cast(pa.timestamp("ms", "UTC"))

    # --- heads -------------------------------------------------------------------------------

    @cached_property
    def _array(self) -> pa.Array:
        return pa.array(self._records, pa.binary())

    @cached_property
    def _heads(self) -> bytes:
        if not self._count:
            return b""
        heads: bytes = pc.binary_slice(self._array, 0, BARE).buffers()[2].to_pybytes()
        if len(heads) < BARE * self._count:
            heads = b"".join(
                record[:BARE] if len(record) >= BARE else _NOT_BARE for record in self._records
            )
        return heads

    def _head_numbers(self, start: int, stop: int) -> pa.Array:
        numbers = bytearray(8 * self._count)
        for index in range(stop - start):
            numbers[index::8] = self._heads[stop - 1 - index :: BARE]
        for row in self._fields.errors if self._enveloped else ():
            numbers[8 * row : 8 * row + 8] = bytes(8)
        return _int64(numbers)

    def _priorities(self) -> pa.Array:
        numbers = self._head_numbers(1, 4)
        return pc.if_else(pc.equal(numbers, 0), pa.scalar(None, pa.int64()), numbers)

    def offsets(self, newest: int) -> pa.Array:
        """Return the sequence number of each message in its slot (part of the topic).

        `newest` is the sequence number of the slot's newest message.
        """
        behind = pc.bit_wise_and(pc.subtract(newest, self._head_numbers(4, 8)), _LOW)
        offsets = pc.subtract(newest, behind)
        if self._enveloped and self._fields.errors:
            is_read = [row not in self._fields.errors for row in range(self._count)]
            offsets = pc.if_else(pa.array(is_read), offsets, 0)
        return offsets

    # --- fields before a body ------------------------------------------------------------------

    @cached_property
    def _enveloped(self) -> list[int]:
        """The positions of the rows that Arrow alone cannot read.

        The bodies of these rows do not start at a fixed position.
        """
        firsts = self._heads[::BARE]
        bare = {first for first in set(firsts) if is_bare(first)}
        if not firsts.translate(None, bytes(bare)):
            return []
        return [row for row, first in enumerate(firsts) if first not in bare]

    @cached_property
    def _fields(self) -> _Fields:
        count = self._count
        due, expires, keys, headers, starts, errors = fields = _Fields(
            [None] * count, [None] * count, [None] * count, [None] * count, [BARE] * count, {}
        )
        for row in self._enveloped:
            record = self._records[row]
            try:
                if not record:
                    raise DecodeError("its record is missing")
                due_ms, expires_ms, key, found, start = fields_of(record)
                if found and set(map(type, found.values())) != {str}:  # another client wrote it
                    raise DecodeError("its headers are not text")
            except DecodeError as error:
                errors[row] = str(error)
                continue
            due[row], expires[row], keys[row] = due_ms or None, expires_ms or None, key or None
            starts[row] = start
            if found:
                headers[row] = found
        return fields

    def header(self, name: str) -> list[str | None] | None:
        """Return the value of a header for each message, or None if no message has the header."""
        if not self._enveloped:
            return None
        return [each.get(name) if each else None for each in self._fields.headers]

    def _groups(self) -> list[str | None] | None:
        marks = self.header(_GROUP)
        return marks and [mark and mark.rpartition("\1")[2] for mark in marks]

    def due_ms(self) -> list[int | None] | None:
        """Return the due time of each message, or None if no record has a due time."""
        return self._fields.due_ms if self._enveloped else None

    @cached_property
    def _numbers(self) -> tuple[list[str | None] | None, list[int | None] | None]:
        """The number that `rmq.Audit` gave to each message, and the producer of each message."""
        if not self._enveloped:
            return None, None
        producers: list[str | None] = [None] * self._count
        numbers: list[int | None] = [None] * self._count
        for row in self._enveloped:
            headers = self._fields.headers[row]
            if headers and _NUMBER in headers:
                producer, _, number = headers[_NUMBER].rpartition(".")
                is_number = number.isdecimal() and len(number) <= len(str(_BIGINT_MAX))
                if producer and is_number and int(number) <= _BIGINT_MAX:
                    producers[row], numbers[row] = producer, int(number)
        return producers, numbers

    def _headers(self) -> list[list[tuple[str, str]]]:
        if not self._enveloped:
            return _EMPTY
        return [
            [(name, text) for name, text in headers.items() if not name.startswith(_RESERVED)]
            if headers
            else _EMPTY
            for headers in self._fields.headers
        ]

    # --- bodies --------------------------------------------------------------------------------

    @cached_property
    def _bodies(self) -> tuple[list[bytes] | pa.Array, dict[int, str]]:
        """The bodies, and the errors of unreadable rows.

        The body of an unreadable row is its whole record.
        """
        errors: dict[int, str] = {}
        if not self._enveloped:
            return pc.binary_slice(self._array, BARE, _END), errors
        values = [record[BARE:] for record in self._records]
        for row in self._enveloped:
            values[row] = self._body(row, row, errors)
        return values, errors

    def _is_packed(self, row: int) -> bool:
        first = self._records[row][:1]
        return bool(first) and (first[0] & 8 != 0 or not is_bare(first[0] & 0xE0))

    def _body(self, row: int, place: int, errors: dict[int, str]) -> bytes:
        """Return the body of a row.

        If the body is unreadable, record the error and return the record.
        """
        record, error = self._records[row], self._fields.errors.get(row)
        if error is None:
            if not self._is_packed(row):
                return record[self._fields.starts[row] :]
            try:
                return value_of(record)
            except DecodeError as problem:
                error = str(problem)
        errors[place] = error
        return record

    def _unreadable(self) -> list[str | None] | None:
        errors = self._bodies[1]
        return [errors.get(row) for row in range(self._count)] if errors else None


def _int64(octets: bytearray) -> pa.Array:
    """Return an Arrow array of little-endian numbers of 8 bytes each."""
    return pa.Array.from_buffers(pa.int64(), len(octets) // 8, [None, pa.py_buffer(bytes(octets))])


def times(values: Sequence[int | None] | None) -> pa.Array | None:
    """Convert times in epoch ms to Arrow timestamps."""
    return None if values is None else pa.array(values, pa.timestamp("ms", "UTC"))


def queue_columns(block: QueueBlock, stored: Stored) -> dict[str, Any]:
    """Return the columns of a page of a queue.

    Each column has its values, or a function that creates the values.
    """
    queue, failures = block.queue, _Failures(block)

    def deliver_at() -> pa.Array | None:
        due = stored.due_ms()
        if by_place := block.due_ms():
            if due is None:
                due = [ms or None for ms in by_place]
            else:
                due = [ms or own for ms, own in zip(by_place, due, strict=True)]
        return times(due)

    return {
        **stored.columns(),
        "topic": block.topic,
        "queue": queue,
        "slot": block.slot,
        "offset": lambda: stored.offsets(block.newest),
        "score": lambda: list(block.scores),
        "deliver_at": deliver_at,
        "attempt": block.deliveries,
        "lease_until": lambda: times(block.leases_until_ms()),
        "held_by_query": lambda: block.held_by_query() if queue == "prepare" else None,
        "died": lambda: times([int(score) for score in block.scores]) if queue == "dead" else None,
        "reason": failures.reasons,
        "error": failures.errors,
        "error_fingerprint": failures.fingerprints,
        "attempts": failures.attempts,
    }


class _Failures:
    """The last failure of each message of a page, as one list for each column.

    Without failures, the lists are empty.
    """

    def __init__(self, block: QueueBlock) -> None:
        self._block = block

    @cached_property
    def _last(self) -> list[Any] | None:
        return self._block.last_failures() if any(self._block.failures) else None

    def reasons(self) -> list[str | None] | None:
        return self._last and [last.reason if last else None for last in self._last]

    def errors(self) -> list[str | None] | None:
        return self._last and [(last.error or None) if last else None for last in self._last]

    def fingerprints(self) -> list[str | None] | None:
        return self._last and [fingerprint(last.error) if last else None for last in self._last]

    def attempts(self) -> list[list[dict[str, Any]]] | None:
        if not any(self._block.failures):
            return None
        return [
            [
                {
                    "attempt": attempt.number, "time": attempt.at, "reason": attempt.reason,
                    "worker": attempt.worker or None, "error": attempt.error or None,
                    "traceback": attempt.traceback or None,
                }
                for attempt in attempts
            ]
            for attempts in self._block.attempts()
        ]  # fmt: skip
