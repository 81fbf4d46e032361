"""Encode and decode entries. An entry says how a message has ended, or how far its handler is.

Scripts store the entries. `lua/lib/results/results.lua` describes the bytes. The scripts write the
outcome (a letter) and the time. If the message was handled, its consumer adds the details.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

OUTCOMES = {
    "s": "succeeded",
    "h": "handed_over",
    "d": "dead",
    "c": "cancelled",
    "e": "expired",
    "p": "purged",
    "o": "dropped",
}
RUNNING = "running"
HANDED_OVER = b"h"  # the result of a delivery that is settled before it is handled
TOO_LARGE, NOT_ENCODABLE = "too_large", "not_encodable"  # kinds of values that are not stored
_HEAD = 7  # bytes before the details: the letter and the time

Kind = int | str | None  # number of a value's codec; TOO_LARGE or NOT_ENCODABLE; None: no value


class Entry(NamedTuple):
    """How a message has ended, or the progress of a message whose handler runs.

    Attributes:
        outcome: A value of OUTCOMES, or RUNNING while the handler runs.
        at_ms: Time of the end, or of the report, in epoch ms.
        worker: Worker that handled the message, or "" if it is unknown.
        attempts: Number of attempts so far, including a running attempt. 0 if it is unknown.
        started_ms: Start of the last attempt in epoch ms, or 0 if it is unknown.
        kind: Number of the codec that encoded the value, or TOO_LARGE, or NOT_ENCODABLE. None if
            there is no value.
        value: The encoded value.
        failure: Failure entry of a message that did not succeed, or empty (see
            `rmq/kernel/core/failure.py`).
        fraction: Progress from 0 to 1, only while the handler runs.
        text: Text of the progress, only while the handler runs.
    """

    outcome: str
    at_ms: int
    worker: str = ""
    attempts: int = 0
    started_ms: int = 0
    kind: Kind = None
    value: bytes = b""
    failure: bytes = b""
    fraction: float = 0.0
    text: str = ""


def encode_success(
    worker: str, attempts: int, started_ms: int, kind: Kind = None, value: bytes = b""
) -> bytes:
    """Encode the result of a delivery that succeeded, for the script `ack_then`."""
    packed: bytes = msgpack.packb([worker, attempts, started_ms, kind])
    return b"s" + packed + value


def encode_progress(fraction: float, text: str, attempt: int, worker: str) -> bytes:
    """Encode the progress of a delivery for the script `progress`."""
    packed: bytes = msgpack.packb([fraction, text, attempt, worker])
    return packed


def decode(entry: bytes) -> Entry | None:
    """Decode the stored result of a message, or the progress of its handler.

    Return None if the entry is empty, or if its first bytes cannot be decoded. Details that cannot
    be decoded are left out.
    """
    letter, details = entry[:1].decode("latin-1"), entry[_HEAD:]
    if len(entry) < _HEAD or letter not in (*OUTCOMES, "r"):
        return None
    at_ms = int.from_bytes(entry[1:_HEAD], "big")
    if letter not in "shr":
        return Entry(OUTCOMES[letter], at_ms, failure=details)
    unpacker = msgpack.Unpacker()
    unpacker.feed(details)
    try:
        if letter == "r":
            fraction, text, attempt, worker = unpacker.unpack()
            return Entry(RUNNING, at_ms, worker, attempt, fraction=fraction, text=text)
        worker, attempts, started_ms, kind = unpacker.unpack()
    except (ValueError, TypeError, msgpack.UnpackException):
        return Entry(OUTCOMES.get(letter, RUNNING), at_ms)
    value = details[unpacker.tell() :]
    return Entry(OUTCOMES[letter], at_ms, worker, attempts, started_ms, kind, value)
