"""The record: a message as it stands in Redis, envelope and body.

    byte 1      codec * 32 + flags
    bytes 2-4   priority; 0 for a timed message without one
    bytes 5-8   low 32 bits of the slot's acceptance number, written by the script
    then, only where flagged and in this order:
      due       6 bytes, epoch ms; below 1e12 on the way in: a delay
      expiry    6 bytes, epoch ms; on the way in: ms after due
      merge key 2 bytes of length, then the key
      headers   2 bytes of length, then msgpack
    body        the rest; for a collecting message a list of 4 bytes of length and a body each

Eight bytes in front of a 100-byte body keep the record in the same allocation class as the body
alone. The twin of `lua/lib/record.lua`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgpack

from rmq.errors import DecodeError

TIMED, EXPIRES, MERGES, COLLECTS, HEADERS = 1, 2, 4, 8, 16
RESERVED = "rmq-"  # how the names of headers begin that RMQ itself adds
_NUMBER = b"\xa9rmq-audit"  # the header that rmq.Audit puts in front of the others
_NUMBER_BITS = 32

_heads: dict[tuple[int, int, int], bytes] = {}


def head(codec: int, flags: int, priority: int) -> bytes:
    """The first four bytes; cached, since a producer uses few."""
    made = _heads.get((codec, flags, priority))
    if made is None:
        if len(_heads) > 4096:
            _heads.clear()
        made = bytes((codec << 5 | flags,)) + priority.to_bytes(3, "big")
        _heads[codec, flags, priority] = made
    return made


def length_prefixed(data: bytes) -> bytes:
    """Two bytes of length and the data."""
    return len(data).to_bytes(2, "big") + data


class Record(NamedTuple):
    """What an envelope says."""

    codec: int
    flags: int
    priority: int
    offset_low: int
    due_ms: int
    expires_ms: int
    merge_key: str
    headers: dict[str, str]
    body: bytes


def read(data: bytes) -> Record:
    """Read a record.

    Raises:
        DecodeError: the bytes are cut short or their headers cannot be read.
    """
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
            key, at = data[at + 2 : at + 2 + size].decode(), at + 2 + size
        if flags & HEADERS:
            size = struct.unpack_from(">H", data, at)[0]
            headers, at = msgpack.unpackb(data[at + 2 : at + 2 + size]), at + 2 + size
            if not isinstance(headers, dict):
                raise ValueError("headers are not a map")
        if at > len(data):
            raise ValueError("cut short")
    except (ValueError, IndexError, struct.error, msgpack.UnpackException) as error:
        raise DecodeError(f"record of {len(data)} bytes cannot be read: {error}") from error
    return Record(
        data[0] >> 5,
        flags,
        int.from_bytes(data[1:4], "big"),
        int.from_bytes(data[4:8], "big"),
        due,
        expires,
        key,
        headers,
        data[at:],
    )


def audit_number(data: bytes) -> bytes:
    """The `<producer>.<number>` that `rmq.Audit` has put on a message; empty where there is none.

    The twin of `lua/lib/audit.lua`, whose `number_of` reads the first header only.
    """
    flags = data[0]
    at = 8 + (6 if flags & TIMED else 0) + (6 if flags & EXPIRES else 0)
    if flags & MERGES:
        at += 2 + int.from_bytes(data[at : at + 2])
    at += 5 if data[at + 2 : at + 3] == b"\xde" else 3
    if not flags & HEADERS or data[at : at + 10] != _NUMBER or len(data) < at + 11:
        return b""
    return data[at + 11 : at + 11 + data[at + 10] - 0xA0]


def collected_bodies(body: bytes) -> list[bytes]:
    """The bodies that a collecting message has gathered, oldest first.

    Raises:
        DecodeError: the list is cut short.
    """
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        at += 4 + size
        if at > len(body) or size > len(body):
            raise DecodeError("a collected body is cut short")
        found.append(body[at - size : at])
    return found


def offset_of(offset_low: int, newest: int) -> int:
    """The whole acceptance number, from its low 32 bits and the newest number of the slot.

    Exact for a message that at most 2^32 others of its slot have followed.
    """
    return newest - (newest - offset_low) % (1 << _NUMBER_BITS)


def user_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers that the sender gave."""
    return {name: text for name, text in headers.items() if not name.startswith(RESERVED)}


def marks(headers: dict[str, str]) -> dict[str, str]:
    """The headers that RMQ itself added."""
    return {name: text for name, text in headers.items() if name.startswith(RESERVED)}
