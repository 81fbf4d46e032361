"""Failures: errors as consumers send them, and failure entries as scripts store them.

An entry: a byte of deliveries left, a byte of deliveries made, a letter for the reason, then the
error that the consumer sent, msgpack of [type and message, traceback].
The twin of `lua/lib/dead_letters.lua`.
"""

from __future__ import annotations

import traceback
from functools import lru_cache

import msgpack

from rmq.core.message import Failure

REASONS = {
    "f": "failed",
    "l": "lease ran out",
    "r": "rejected",
    "u": "undecodable",
    "x": "expired",
    "n": "unhandled",
}
ERROR_CHARS, TRACEBACK_CHARS = 2_000, 12_000
REMEMBERED = 256  # decoded entries: those of one cause are often alike, and have 14 KiB at most


def text_of(error: BaseException | str | None) -> str:
    """Return the text of an exception or a string; never raises.

    A user's `__str__` may raise, or return something other than a string. The message that failed
    must still get its retry.
    """
    try:
        return str.__str__(str(error))
    except BaseException as problem:  # even sys.exit(): this is not the place to end a process
        return f"<str() of this {type(error).__name__} raised {type(problem).__name__}>"


def summary(error: BaseException) -> str:
    """Return the type and the text of an exception; never raises."""
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception; never raises."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as problem:  # of an exception group, a note, or a property of the user's
        return f"<the traceback cannot be shown: {type(problem).__name__}>"


def encode(error: BaseException | str | None) -> bytes:
    """Encode an exception or a text for a script, cut to size; never raises."""
    if error is None:
        return b""
    if isinstance(error, BaseException):
        text, lines = summary(error), traceback_of(error)
    else:
        text, lines = text_of(error), ""
    packed: bytes = msgpack.packb(
        [text[:ERROR_CHARS], lines[-TRACEBACK_CHARS:]], unicode_errors="replace"
    )
    return packed


def is_expired_lease(entry: bytes) -> bool:
    """Return whether a failure entry says that a lease expired."""
    return entry[2:3] == b"l"


@lru_cache(REMEMBERED)
def decode(entry: bytes) -> Failure | None:
    """Decode a failure entry; return None for an empty one."""
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
