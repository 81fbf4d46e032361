"""Numbered messages in a slot, and what is open of their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.kernel.core import record, sequence
from rmq.kernel.producer import scripts
from tests.lua.box import Box, stored

P, Q = "0123456789", "abcdef0123"  # producers


def begin(box: Box, producer: str = P) -> None:
    """Send the report of a producer before its first message."""
    box.run(scripts.audit_report(box.keys, producer, 0, 0))


def told(
    box: Box, sent: int, ranges: Sequence[tuple[int, int]] = (), old: int = 0, producer: str = P
) -> int:
    """Send a later report of a producer, and return the reply."""
    return box.run(scripts.audit_report(box.keys, producer, old, sent, ranges))


def numbered(
    box: Box,
    number: int,
    producer: str = P,
    *,
    priority: int = 100,
    due: int | None = None,
    expires: int | None = None,
    others: bytes = b"",
    body: bytes = b"7",
) -> bytes:
    """Send a message with a number; its id."""
    whole = stored(0, b"", priority=0 if due else priority, due=due, expires=expires)
    head = bytes((whole[0] | record.HEADERS,)) + whole[1:4]
    rest = whole[8:] + record.length_prefixed(sequence.headers(producer, number, others)) + body
    id = box.ids()[0]
    assert (
        box.run(scripts.send(box.handle, box.keys, box.session(), [id], [head, rest])).codes == ""
    )
    return id


def merged(box: Box, number: int, key: bytes = b"key", range_ms: int = 500) -> bytes:
    """Merge a message with a number; its id."""
    whole = stored(0, b"", due=range_ms, key=key)
    id = box.ids()[0]
    head = bytes((whole[0] | record.HEADERS,)) + whole[1:4]
    envelope = whole[8:] + record.length_prefixed(sequence.headers(P, number))
    given = [head + b"first 0 1000 ", envelope, b"b"]
    box.run(scripts.merge(box.handle, box.keys, box.session(), [id], given))
    return id


def open_of(box: Box, producer: str = P) -> list[tuple[int, int | None]]:
    """Ranges of open numbers, without those that have not been told; None: the rest."""
    found = []
    for member in box.redis.zrange(box.keys.audit, 0, -1):
        name, last, first, *_ = member.decode().split(":")
        if name == producer:
            found.append((int(first), None if last == "~" else int(last)))
    return found
