"""What a consumer tells of an error, to bytes and back; and the entry that a script makes.

The entry: a byte of deliveries left, a byte of deliveries made, a letter for the reason, then what
the consumer told, msgpack of [type and message, traceback]. The twin of `lua/lib/failure.lua`.
"""

from __future__ import annotations

import traceback

import msgpack

from rmq.message import Failure

REASONS = {
    "f": "failed",
    "l": "lease ran out",
    "r": "rejected",
    "u": "undecodable",
    "x": "expired",
}
ERROR_CHARS, TRACEBACK_CHARS = 2_000, 12_000


def tell(error: BaseException | str | None) -> bytes:
    """An exception or a text as a consumer tells it, cut to size."""
    if error is None:
        return b""
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        lines = "".join(traceback.format_exception(error))
    else:
        text, lines = str(error), ""
    packed: bytes = msgpack.packb(
        [text[:ERROR_CHARS], lines[-TRACEBACK_CHARS:]], unicode_errors="replace"
    )
    return packed


def read(entry: bytes) -> Failure | None:
    """A failure entry; None where there is none."""
    if len(entry) < 3:
        return None
    reason = REASONS.get(chr(entry[2]), f"reason {chr(entry[2])!r}")
    error, lines = "", ""
    if len(entry) > 3:
        try:
            error, lines = msgpack.unpackb(entry[3:])
        except (ValueError, msgpack.UnpackException, TypeError):
            error = repr(entry[3:203])
    return Failure(reason, entry[1], str(error), str(lines))
