"""Write and read records, which are messages as Redis stores them.

    byte 1      codec * 32 + flags; flag 8 without flag 4 means a large body (lua/README.md)
    bytes 2-4   priority, or 0 for a timed message without a priority
    bytes 5-8   low 32 bits of the message's number in its slot, written by the script
    optional, by flag and in this order:
      due       6 bytes, epoch ms; in a send, a value below 1e12 is a delay
      expiry    6 bytes, epoch ms; in a send, ms after the due time
      merge key 2 bytes of length and the key
      headers   2 bytes of length and msgpack
    body        the rest; if the message collects several bodies, 4 bytes of length before each

Eight bytes before the body are few enough that a body of 100 bytes does not need a larger
allocation in Redis. `lua/lib/records/record.lua` reads the same format.

Redis stores a large body in a separate hash, and RMQ reads and writes it with plain commands. This
is faster, because Lua in Redis hashes every byte of a string that a script gets or creates. A body
of 10 KiB would cost 50 µs in three scripts, and costs 8 µs with plain commands. The record of a
large body has the flag `LARGE`, and ends with a reference instead of the body:

    size    4 bytes
    random  8 bytes; the hash has the body in a field named by the member and these bytes

`lua/lib/records/large_bodies.lua` reads the same format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgpack

from rmq.errors import DecodeError
from rmq.kernel.core.codec import COMPRESSED, JSON, MSGPACK, Compressed, SharedLimit
from rmq.kernel.core.groups import GROUP_MARK
from rmq.kernel.core.results import BATCH_MARK, KEEP_MARK
from rmq.kernel.core.score import PRIORITY_MIN

MIN_BYTES = 4096  # smaller bodies stay in their records
# A call with fewer bytes of large bodies keeps them in the records as well: the extra commands and
# round trips would cost more. Topics with limits per key ignore this, because their receives read
# many records.
MIN_BYTES_OF_CALL = 32768
LARGE, KIND = 8, 12  # first byte: a flag, and the bits in which only a large record has that flag
RANDOM = 8
REFERENCE = 4 + RANDOM


def reference(size: int, random: bytes) -> bytes:
    """Return the reference that a record has instead of a large body.

    Args:
        size: Size of the body, bytes.
        random: Eight random bytes.
    """
    return size.to_bytes(4, "big") + random


def with_reference(head: bytes, body: bytes, random: bytes) -> tuple[bytes, bytes]:
    """Replace a large body by a reference.

    Return two values: the record's first four bytes with the flag for a large body, and the
    reference.

    Args:
        head: First four bytes of the record.
        body: The large body.
        random: Eight random bytes.
    """
    return bytes((head[0] | LARGE,)) + head[1:], reference(len(body), random)


def joined(head: bytes, rest: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Put the large body into a record instead of its reference.

    Return two values: the record's first four bytes without the flag for a large body, and the
    rest.
    """
    return bytes((head[0] & ~LARGE,)) + head[1:], rest[:-REFERENCE] + body


def name_of(member: bytes, record: bytes) -> bytes:
    """Return the name of the hash field that has the large body of a record.

    You may give only the last bytes of the record.
    """
    return member + record[-RANDOM:]


def size_of(record: bytes) -> int:
    """Return the size of a record's large body, in bytes."""
    return int.from_bytes(record[-REFERENCE:-RANDOM], "big")


def with_body(record: bytes, body: bytes) -> bytes:
    """Return a record with its large body instead of the reference."""
    return bytes((record[0] & ~LARGE,)) + record[1:-REFERENCE] + body


def positions(records: Sequence[bytes]) -> list[int]:
    """Return the list positions of records that refer to large bodies."""
    return [at for at, record in enumerate(records) if record and record[0] & KIND == LARGE]


TIMED, EXPIRES, MERGES, COLLECTS, HEADERS = 1, 2, 4, 8, 16
SCHEDULE_MARK, SCHEDULE_TIME_MARK = "rmq-schedule", "rmq-schedule-time"  # name; epoch ms
RESERVED = "rmq-"  # prefix of the headers that RMQ itself adds
TYPE_MARK = "rmq-type"  # the header with the type of a message
_NUMBER = b"\xa9rmq-audit"  # the header that rmq.Audit puts before all other headers
_KEEP = bytes((0xA0 | len(KEEP_MARK),)) + KEEP_MARK.encode()
_NUMBER_BITS = 32
BARE = 8  # bytes before the body of a bare record


def queue_position(record: bytes) -> int:
    """Return the position that a message had in the queue before its first failure.

    The position is the priority or the due time. A missing record gets the lowest priority.
    """
    place = int.from_bytes(record[1:4], "big") or int.from_bytes(record[8:14], "big")
    return place or PRIORITY_MIN


@lru_cache(4096)  # a producer uses few combinations
def head(codec: int, flags: int, priority: int) -> bytes:
    """Return the first four bytes of a record: its codec, its flags and its priority."""
    return bytes((codec << 5 | flags,)) + priority.to_bytes(3, "big")


def length_prefixed(data: bytes) -> bytes:
    """Return the data with their length in front, as two bytes."""
    return len(data).to_bytes(2, "big") + data


def envelope(
    codec: int,
    priority: int,
    *,
    due_ms: int | None = None,
    expires_ms: int = 0,
    merge_key: str = "",
    collects: bool = False,
) -> tuple[bytes, bytes]:
    """Build the part of a record before its body.

    Return two values: bytes 1 to 4 (the head), and the bytes from byte 9 to the body (the
    envelope). A script adds bytes 5 to 8 later.

    Args:
        codec: Number of the body's codec.
        priority: Priority. It may be 0 only with a due time.
        due_ms: Due time in epoch ms, or a delay below 1e12 ms. None if the message is due
            immediately.
        expires_ms: Lifetime after the due time, in ms, or 0 for no limit.
        merge_key: Merge key in the form that Redis stores. Empty if the message does not merge.
        collects: Whether the message collects the bodies of the messages that merge with it.
    """
    flags, fields = 0, b""
    if due_ms is not None:
        flags, fields = TIMED, due_ms.to_bytes(6, "big")
    if expires_ms:
        flags |= EXPIRES
        fields += expires_ms.to_bytes(6, "big")
    if merge_key:
        flags |= MERGES | (COLLECTS if collects else 0)
        fields += length_prefixed(merge_key.encode())
    return head(codec, flags, priority), fields


def with_headers(head: bytes, envelope: bytes, headers: bytes) -> tuple[bytes, bytes]:
    """Add headers to the head and the envelope of a record.

    The function `envelope` makes these two parts. They must not have headers yet. The result is the
    new head and the new envelope. The argument `headers` is a msgpack map.
    """
    return bytes((head[0] | HEADERS,)) + head[1:], envelope + length_prefixed(headers)


class Record(NamedTuple):
    """The fields of a record, which is a message as Redis stores it.

    If the body is large and was not fetched, `body` is a reference. `check_body` refuses such a
    record.
    """

    codec: int
    flags: int
    priority: int
    offset_low: int
    due_ms: int
    expires_ms: int
    merge_key: str
    headers: dict[str, str]
    body: bytes


def fields_of(data: bytes) -> tuple[int, int, str, dict[str, str], int]:
    """Read the fields before the body of a record.

    Return the due time and the expiry in ms, the merge key, the headers, and the position of the
    body.

    Raises:
        DecodeError: The bytes are incomplete, or their headers cannot be read.
    """
    if not data:
        raise DecodeError("its record is missing, or shorter than 8 bytes")
    try:
        flags = data[0] & 31
        at, due, expires, key, headers = 8, 0, 0, "", {}
        if len(data) < at:
            raise ValueError("cut short")
        if flags & TIMED:
            due, at = int.from_bytes(data[at : at + 6], "big"), at + 6
        if flags & EXPIRES:
            expires, at = int.from_bytes(data[at : at + 6], "big"), at + 6
        if flags & MERGES:
            size = struct.unpack_from(">H", data, at)[0]
            key, at = _without_type(data[at + 2 : at + 2 + size].decode()), at + 2 + size
        if flags & HEADERS:
            size = struct.unpack_from(">H", data, at)[0]
            headers, at = msgpack.unpackb(data[at + 2 : at + 2 + size]), at + 2 + size
            if not isinstance(headers, dict):
                raise ValueError("headers are not a map")
        if at > len(data):
            raise ValueError("cut short")
    except (ValueError, IndexError, struct.error, msgpack.UnpackException) as error:
        raise DecodeError(f"record of {len(data)} bytes cannot be read: {error}") from error
    return due, expires, key, headers, at


def read(data: bytes) -> Record:
    """Read a record. Raise DecodeError in the same cases as `fields_of`."""
    due, expires, key, headers, at = fields_of(data)
    return Record(
        data[0] >> 5,
        data[0] & 31,
        int.from_bytes(data[1:4], "big"),
        int.from_bytes(data[4:8], "big"),
        due,
        expires,
        key,
        headers,
        data[at:],
    )


def moved(fields: Record, headers: dict[str, str], expires_ms: int = 0) -> tuple[bytes, bytes]:
    """Build the record of a message that moves to another topic and gets other headers.

    Return two values: the first four bytes of the new record, and its bytes from byte 9 on.

    The function does not change body, codec, priority and merge key. The message is due
    immediately.

    Args:
        fields: The record.
        headers: All headers of the new record.
        expires_ms: Lifetime from now in ms, or 0 for no limit.

    Raises:
        DecodeError: The large body is missing, or the headers are too large.
    """
    check_body(fields.flags)
    packed: bytes = msgpack.packb(headers)
    if len(packed) > 0xFFFF:
        raise DecodeError(f"its headers have {len(packed)} bytes")
    key = fields.merge_key and merge_key_of_type(fields.merge_key, fields.headers.get(TYPE_MARK))
    head, before = envelope(
        fields.codec, fields.priority, due_ms=None if fields.priority else 0,
        expires_ms=expires_ms, merge_key=key, collects=bool(fields.flags & COLLECTS),
    )  # fmt: skip
    head, before = with_headers(head, before, packed)
    return head, before + fields.body


def merge_key_of_type(key: str, message_type: str | None) -> str:
    """Return a merge key in the form that Redis stores.

    This form contains the message type, so that messages of different types do not merge. The
    caller's own key must not begin with NUL.
    """
    return key if message_type is None else f"\0{message_type}\0{key}"


def _without_type(key: str) -> str:
    return key[1:].partition("\0")[2] if key.startswith("\0") else key


def headers_of(data: bytes) -> dict[str, str]:
    """Return all headers of a valid record, including the headers that RMQ added."""
    if not data[0] & HEADERS:
        return {}
    at = _headers_at(data)
    headers: dict[str, str] = msgpack.unpackb(
        data[at + 2 : at + 2 + int.from_bytes(data[at : at + 2])]
    )
    return headers


def _headers_at(data: bytes) -> int:
    flags = data[0]
    at = 8 + (6 if flags & TIMED else 0) + (6 if flags & EXPIRES else 0)
    return at + 2 + int.from_bytes(data[at : at + 2]) if flags & MERGES else at


def _first_header_at(data: bytes) -> int:
    at = _headers_at(data)
    return at + (5 if data[at + 2 : at + 3] == b"\xde" else 3)


def type_of(data: bytes) -> str | None:
    """Return the message type in a valid record, or None."""
    return headers_of(data).get(TYPE_MARK) if data[0] & HEADERS else None


def check_body(flags: int) -> None:
    """Raise an error for a record whose large body was not found.

    Such a record still has the flag for a large body.

    Raises:
        DecodeError: The record refers to a large body.
    """
    if flags & KIND == LARGE:
        raise DecodeError("its large body is missing: was it removed from Redis by hand?")


def audit_number(data: bytes) -> bytes:
    """Return the `<producer>.<number>` that `rmq.Audit` has added to a message, or empty bytes.

    The function reads only the first header, as the function `number_of` of `lua/lib/audit.lua`
    does.
    """
    at = _first_header_at(data)
    if not data[0] & HEADERS or data[at : at + 10] != _NUMBER or len(data) < at + 11:
        return b""
    return data[at + 11 : at + 11 + data[at + 10] - 0xA0]


def keep_of(data: bytes) -> int:
    """Return for how many seconds RMQ keeps the result of a message, or 0.

    The function reads only the first header. If the message has an audit number, it reads the
    second header instead. The function `keep_of` of `lua/lib/results/keep_mark.lua` does the same.
    """
    text = mark_of(data).removesuffix(b"b")
    return int(text) if text.isdigit() else 0


def mark_of(data: bytes) -> bytes:
    """Return the header that RMQ adds to messages with a kept result and to members of a batch.

    The mark is a number of seconds. If the message is a member of a batch, the letter b follows,
    and the number may be 0. Without this header, return b"".
    """
    if not data[0] & HEADERS:
        return b""
    at = _first_header_at(data)
    if data[at : at + 10] == _NUMBER:
        at += 11 + (data[at + 10] & 31)
    if data[at : at + 9] != _KEEP:
        return b""
    return data[at + 10 : at + 10 + (data[at + 9] & 31)]


def is_member(data: bytes) -> bool:
    """Return whether a message is a member of a batch. Read only one header."""
    return mark_of(data).endswith(b"b")


def batch_of(data: bytes) -> str:
    """Return the batch of a message as `<topic> <slot> <name> <id>`. Without a batch, return ''."""
    return headers_of(data).get(BATCH_MARK, "") if data[0] & HEADERS else ""


def collected_bodies(body: bytes) -> list[bytes]:
    """Split the body of a message that collects several bodies. Return these bodies, oldest first.

    Raises:
        DecodeError: The list is incomplete.
    """
    bodies, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        at += 4 + size
        if at > len(body) or size > len(body):
            raise DecodeError("a collected body is cut short")
        bodies.append(body[at - size : at])
    return bodies


def offset_of(offset_low: int, newest: int) -> int:
    """Return a message's full number in its slot, from the low 32 bits of this number.

    A slot of a topic numbers the messages that it accepts. The result is exact if the slot accepted
    less than 2^32 messages after this message.

    Args:
        offset_low: Low 32 bits of the number.
        newest: Number of the slot's newest message.
    """
    return newest - (newest - offset_low) % (1 << _NUMBER_BITS)


def number_of(data: bytes, newest: int) -> int | None:
    """Return a message's number in its slot of the topic.

    If the record of the message is incomplete, return None.
    """
    if len(data) < BARE:
        return None
    return offset_of(int.from_bytes(data[4:BARE], "big"), newest)


def shown_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers except type and group, which have their own fields in the output."""
    return {name: text for name, text in headers.items() if name not in (TYPE_MARK, GROUP_MARK)}


def user_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers that the sender gave."""
    return {name: text for name, text in headers.items() if not name.startswith(RESERVED)}


def marks(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers that RMQ itself added to a message."""
    return {name: text for name, text in headers.items() if name.startswith(RESERVED)}


def is_bare(first: int) -> bool:
    """Return whether a record has only fixed fields and an uncompressed body.

    The argument is the record's first byte. The fixed fields have BARE bytes.
    """
    return not first & 31 and first >> 5 != Compressed.number


def value_of(data: bytes | Record) -> bytes:
    """Decompress the body of a record, and return the bytes that its codec wrote.

    If the message collects several bodies, the result is an encoded list of these bodies. The list
    is JSON if all bodies are JSON, otherwise it is msgpack.

    Raises:
        DecodeError: The record is incomplete, or cannot be decompressed.
    """
    if isinstance(data, bytes) and is_bare(data[0]):
        return data[BARE:]
    record = read(data) if isinstance(data, bytes) else data
    shared = SharedLimit()
    bodies = [shared.unpack(record.codec, body) for body in bodies_of(record)]
    if not record.flags & COLLECTS:
        return bodies[0][1]
    if all(number == JSON.number for number, _ in bodies):
        return b"[" + b",".join(body for _, body in bodies) + b"]"
    packed = [body if number == MSGPACK.number else msgpack.packb(body) for number, body in bodies]
    header: bytes = msgpack.Packer().pack_array_header(len(packed))
    return header + b"".join(packed)


def bodies_of(record: Record) -> list[bytes]:
    """Return all bodies of a message that collects bodies. For another message, return its body.

    Raises:
        DecodeError: A body is missing or incomplete.
    """
    check_body(record.flags)
    return collected_bodies(record.body) if record.flags & COLLECTS else [record.body]


def beginning_of(record: Record, most: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Decompress only the beginning of the bodies of a record.

    Args:
        record: The record.
        most: Maximum number of bytes to decompress.

    Returns:
        Two values: the bodies, each with the number of its codec, and whether all bodies are
            complete.

    Raises:
        DecodeError: A body is missing, incomplete, or damaged within these bytes.
    """
    found, left = [], most
    for body in bodies_of(record):
        number, data = record.codec, body[: left + 1]
        if number == Compressed.number:
            codec, data = COMPRESSED.unpack(body, left + 1, cut=True)
            number = codec.number
        found.append((number, data[:left]))
        if len(data) > left:
            return found, False
        left -= len(data)
    return found, True
