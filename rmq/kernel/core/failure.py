"""Encode errors of handlers, decode stored failures, and compute fingerprints of failures.

A consumer sends the error of a handler as a msgpack list: [type and message, traceback, worker]. A
script stores this list in the failure entry of the message. The entry contains the last failed
attempt, and as many earlier attempts as its size allows. `lua/lib/settle/attempts.lua` describes
and writes the bytes of an entry. If an entry is damaged, RMQ decodes it as one attempt, with a time
in 1970 and the error "unreadable".

All dead letters with the same cause have the same fingerprint. The fingerprint is a hash of the
reason, the type of the exception, its normalised message, and the last traceback line in the user's
code. Normalising removes numbers, ids, quoted text and paths, because they differ between messages.
A fingerprint is the same in every process and version, so its rules are a part of RMQ's format.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import msgpack

REASONS = {
    "f": "failed",
    "l": "lease ran out",
    "r": "rejected",
    "u": "undecodable",
    "x": "expired",
    "n": "unhandled",
}
REDRIVEN = "redriven"
ERROR_CHARS, TRACEBACK_CHARS, WORKER_CHARS = 2_000, 12_000, 200
# Size of a cache of decoded failures, because failures repeat; at most 14 KiB each.
CACHED_ERRORS_MAX = 256

_EARLIER, _CARRIED = 1, 8  # flags: items follow; an earlier attempt left this error
_SAME_FLAGS = 1, 2, 4  # of an item: error, traceback or worker equal the previous item's
_SAME_FRAMES = 16  # flag of an item: the traceback equals the previous item's, except the error
_COUNTS = struct.Struct(">HBH")  # attempts, items, bytes of the items
_TIME_MAX = 253_402_300_799_000  # epoch ms, the last second of the year 9999
_NO_ATTEMPT = "xd"  # expired, redriven


class Failure(NamedTuple):
    """The last failure of a message.

    Attributes:
        reason: "failed", "lease ran out", "rejected", "undecodable", "expired" or "unhandled".
        deliveries: Number of deliveries so far.
        error: Type and message of the exception, shortened if they are long.
        traceback: Traceback of the exception, or ''.
    """

    reason: str
    deliveries: int
    error: str = ""
    traceback: str = ""


class Attempt(NamedTuple):
    """A failed attempt to handle a message, or the redrive or expiry of the message.

    Attributes:
        number: Number of the attempt, counted from the first send even after a redrive. None for a
            redrive or an expiry.
        at: Time of the failure, by the clock of Redis.
        reason: Reason as in `Failure.reason`, or "redriven".
        error: Type and message of the exception, or ''. RMQ keeps only its first 1024 bytes, except
            for the last attempt.
        traceback: Traceback of the exception, or ''. RMQ keeps only its last 2048 bytes, except for
            the last attempt.
        worker: Host and process id of the consumer that reported the failure, or ''.
    """

    number: int | None
    at: datetime
    reason: str
    error: str = ""
    traceback: str = ""
    worker: str = ""


class Rendered(NamedTuple):
    """An error as text, cut to size.

    Attributes:
        text: Type and message of the exception, or a reason.
        traceback: Traceback of the exception, or ''.
    """

    text: str
    traceback: str = ""


Error = BaseException | str | Rendered | None


def text_of(error: BaseException | str | None) -> str:
    """Return an exception or a string as text, shortened if the text is long. Never raises.

    The `__str__` of a user's exception may fail, but the failed message must still get its retry.
    """
    try:
        return str.__str__(str(error))[:ERROR_CHARS]
    except BaseException as problem:  # even sys.exit(), which must not end the process here
        return f"<str() of this {type(error).__name__} raised {type(problem).__name__}>"


def summary(error: BaseException) -> str:
    """Return the type and the text of an exception. Never raises."""
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception. Never raises."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as problem:  # raised by an exception group, a note, or a user's property
        return f"<the traceback cannot be shown: {type(problem).__name__}>"


@lru_cache(1)
def _host() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return ""


def this_worker() -> str:
    """Return the host and the process id of this process."""
    return f"{_host()}:{os.getpid()}"[-WORKER_CHARS:]


def render(error: Error) -> Rendered:
    """Return an error as text. Never raises.

    This function runs code of the exception's class, and this code may hang.
    """
    if isinstance(error, BaseException):
        return Rendered(summary(error)[:ERROR_CHARS], traceback_of(error)[-TRACEBACK_CHARS:])
    if isinstance(error, Rendered):
        return error
    return Rendered("" if error is None else text_of(error))


def encode(error: Error, worker: str = "") -> bytes:
    """Encode an error for a script, shortened if it is long. Never raises."""
    if error is None and not worker:
        return b""
    parts = [*render(error), *([worker] if worker else ())]
    packed: bytes = msgpack.packb(parts, unicode_errors="replace")
    return packed


def is_expired_lease(entry: bytes) -> bool:
    """Return whether a message failed because its lease expired.

    The argument is the failure entry of the message.
    """
    return entry[2:3] == b"l"


class _Entry(NamedTuple):
    deliveries: int
    reason: str
    flags: int
    at_ms: int
    attempts: int
    items: bytes
    details: bytes


# The scripts read a damaged entry in the same way, so that its message can still be delivered.
_UNREADABLE = _Entry(1, "f", 0, 0, 1, b"", msgpack.packb(["unreadable", ""]))


def _read(entry: bytes) -> _Entry:
    if len(entry) < 10 or entry[3] & ~(_EARLIER | _CARRIED):
        return _UNREADABLE
    made, reason, flags = entry[1], chr(entry[2]), entry[3]
    at_ms = int.from_bytes(entry[4:10], "big")
    if not flags & _EARLIER:
        return _Entry(made, reason, flags, at_ms, made, b"", entry[10:])
    if len(entry) < 15:
        return _UNREADABLE
    attempts, _, size = _COUNTS.unpack_from(entry, 10)
    items, details = entry[15 : 15 + size], entry[15 + size :]
    if len(items) < size:
        return _UNREADABLE
    return _Entry(made, reason, flags, at_ms, attempts, items, details)


def _texts(details: bytes) -> tuple[str, str, str]:
    """Decode error, traceback and worker. Return bytes that cannot be decoded as the error."""
    if not details:
        return "", "", ""
    try:
        error, lines, *rest = msgpack.unpackb(details)
    except (ValueError, msgpack.UnpackException, TypeError):
        return repr(details[:200]), "", ""
    return str(error), str(lines), str(rest[0]) if rest else ""


def reason_of(letter: str) -> str:
    """Return the word for a reason, which Redis stores as one letter."""
    return REDRIVEN if letter == "d" else REASONS.get(letter, f"reason {letter!r}")


def decode(entry: bytes) -> Failure | None:
    """Return the last failure of a message, from the bytes that Redis stores about its failures.

    If the entry is empty or ends with a redrive, return None.
    """
    if not entry or (parts := _read(entry)).reason == "d":
        return None
    return _failure(parts.reason, parts.deliveries, parts.details)


@lru_cache(CACHED_ERRORS_MAX)
def _failure(reason: str, deliveries: int, details: bytes) -> Failure:
    """Decode a failure without its time, so that the cache can share equal failures."""
    error, lines, _ = _texts(details)
    return Failure(reason_of(reason), deliveries, error, lines)


def attempts(entry: bytes) -> tuple[Attempt, ...]:
    """Return all failed attempts of a message, newest first, from the bytes that Redis stores."""
    return tuple(_attempts(entry)) if entry else ()


def _attempts(entry: bytes) -> Iterator[Attempt]:
    parts = _read(entry)
    number, reason, at_ms, flags = parts.attempts, parts.reason, parts.at_ms, parts.flags
    texts, at = _texts(parts.details), 0
    while True:
        is_attempt = reason not in _NO_ATTEMPT
        shown = ("", "", "") if flags & _CARRIED else texts
        when = datetime.fromtimestamp(min(at_ms, _TIME_MAX) / 1000, UTC)
        yield Attempt(number if is_attempt else None, when, reason_of(reason), *shown)
        number -= is_attempt
        if len(parts.items) < at + 8:
            return
        reason, flags = chr(parts.items[at]), parts.items[at + 1]
        at_ms = int.from_bytes(parts.items[at + 2 : at + 8], "big")
        texts, at = _item_texts(parts.items, at + 8, flags, texts)


def _item_texts(
    items: bytes, at: int, flags: int, newer: tuple[str, str, str]
) -> tuple[tuple[str, str, str], int]:
    texts: list[str] = []
    for place, same in enumerate(_SAME_FLAGS):
        if flags & same:
            texts.append(newer[place])
        elif place == 1 and flags & _SAME_FRAMES:
            texts.append(newer[1].removesuffix(newer[0] + "\n") + texts[0] + "\n")
        else:
            size = int.from_bytes(items[at : at + 2], "big")
            texts.append(items[at + 2 : at + 2 + size].decode(errors="ignore"))
            at += 2 + size
    return (texts[0], texts[1], texts[2]), at


DIGITS = 12  # hex; of 500 million topics with 1000 causes each, two causes collide in one topic
NORMALISED_CHARS = 400  # length of the part of an error that is compared

# The order matters: quoted text and paths may contain numbers, and a UUID contains hex digits.
_RULES = [
    (re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`"), "<text>"),
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s,;)\]}]+"), "<url>"),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/][^\s,;:)\]}]+"), "<path>"),
    (re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), "<id>"),
    (re.compile(r"0[xX][0-9a-fA-F]+"), "<n>"),
    # An id is a word of at least 8 letters and digits with a digit in it, like RMQ's own ids.
    (re.compile(r"\b(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{8,}\b"), "<id>"),
    (re.compile(r"\b[0-9a-fA-F]{16,}\b"), "<id>"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
]
_TYPE = re.compile(r"([A-Za-z_][\w.]{0,127})(?::\s|$)")
_FRAME = re.compile(r'^\s+File "([^"\n]+)", line \d+, in ([^\n]{1,200})$', re.MULTILINE)
# Frames of installed packages and of Python show where the error was raised, not which of the
# user's functions caused it.
_LIBRARY_FILE = re.compile(
    r"^<frozen |[\\/](?:site-packages|dist-packages|rmq[\\/]worker|lib[\\/]python\d[.\d]*)[\\/]"
)


def normalised(error: str) -> str:
    """Remove the parts of an error that differ between failures with the same cause."""
    text = error[:NORMALISED_CHARS].partition("\n")[0]
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text.strip()


def origin(traceback: str) -> str:
    """Return the last function of the user's code in a traceback, such as `orders.py:charge`.

    If the traceback has no code of the user, return ''.
    """
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if not _LIBRARY_FILE.search(frame[0])]
    if not own:
        return ""
    file, function = own[-1]
    name = re.split(r"[\\/]", file)[-1]
    return f"{name}:{function}"


@lru_cache(CACHED_ERRORS_MAX)
def fingerprint(failure: Failure | None) -> str:
    """Return the fingerprint of a failure, as 12 hex digits. Without a failure, return ''."""
    if failure is None:
        return ""
    match = _TYPE.match(failure.error)
    error_type = match[1] if match else ""
    message = normalised(failure.error[match.end() :] if match else failure.error)
    parts = (failure.reason, error_type, message, origin(failure.traceback))
    digest = hashlib.sha256("\x00".join(parts).encode("utf-8", "replace"))
    return digest.hexdigest()[:DIGITS]
