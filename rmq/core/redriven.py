"""The record that a dead letter gets in the topic to which it is redriven."""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from rmq.core import record
from rmq.errors import DecodeError

FROM_MARK, ID_MARK = "rmq-redriven-from", "rmq-redriven-id"  # its topic before; its id there
AUDIT_MARK = "rmq-audit"  # a number belongs to the slot that the message leaves


class MovedRecord(NamedTuple):
    """A record as scripts that store messages take it.

    Attributes:
        head: its first four bytes.
        rest: from byte 9 on; times count from now.
        body_bytes: the size of the body in it.
    """

    head: bytes
    rest: bytes
    body_bytes: int


def moved(data: bytes, now_ms: int, topic: str, id: str) -> MovedRecord:
    """Return a record for another topic, from one whose large body is in it.

    Body, codec, headers, type, priority and merge key stay. It is due at once, as any redriven dead
    letter; an expiry that has passed is left out, another one keeps its time.

    Args:
        data: the record of the dead letter.
        now_ms: epoch ms, by the server that has it.
        topic: the name of its topic.
        id: its id there, as text.

    Raises:
        DecodeError: it cannot be read, or its large body is missing.
    """
    fields = record.read(data)
    record.check_body(fields.flags)
    codec = data[0] >> 5
    flags = fields.flags & (record.MERGES | record.COLLECTS) | record.HEADERS
    envelope = b""
    if not fields.priority:
        flags |= record.TIMED
        envelope = bytes(6)  # without a delay
    if fields.flags & record.EXPIRES and fields.expires_ms > now_ms:
        flags |= record.EXPIRES
        envelope += (fields.expires_ms - now_ms).to_bytes(6, "big")
    if fields.flags & record.MERGES:
        at = record.BARE + 6 * bool(fields.flags & record.TIMED)
        at += 6 * bool(fields.flags & record.EXPIRES)
        envelope += data[at : at + 2 + int.from_bytes(data[at : at + 2])]
    headers = {name: text for name, text in fields.headers.items() if name != AUDIT_MARK}
    headers |= {FROM_MARK: topic, ID_MARK: id}
    packed: bytes = msgpack.packb(headers)
    if len(packed) > 0xFFFF:
        raise DecodeError(f"its headers have {len(packed)} bytes")
    rest = envelope + record.length_prefixed(packed) + fields.body
    return MovedRecord(record.head(codec, flags, fields.priority), rest, len(fields.body))
