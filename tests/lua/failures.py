"""Failure entries, spelled apart from lua/lib/settle/attempts.lua."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def head(left: int, made: int, reason: str) -> bytes:
    """Return how an entry of the failures hash begins."""
    return bytes((left, made)) + reason.encode()


def failure(
    left: int,
    made: int,
    reason: str,
    told: bytes = b"",
    *,
    at: int,
    carried: bool = False,
    attempts: int | None = None,
    items: Sequence[bytes] = (),
) -> bytes:
    """Return an entry of the failures hash. `items`: earlier attempts, the newest first."""
    flags = bytes((8 * carried + bool(items),))
    history = b"".join(items)
    counts = struct.pack(">HBH", made if attempts is None else attempts, len(items), len(history))
    when = at.to_bytes(6, "big")
    return head(left, made, reason) + flags + when + (counts if items else b"") + history + told


def item(reason: str, at: int, flags: int = 7, *texts: bytes) -> bytes:
    """Return an earlier attempt, as it is kept in an entry of the failures hash."""
    kept = b"".join(len(text).to_bytes(2, "big") + text for text in texts)
    return reason.encode() + bytes((flags,)) + at.to_bytes(6, "big") + kept
