"""Fingerprints: what dead letters of one cause have in common.

A fingerprint is made of the reason, the type of the exception, its message without what differs
from message to message (numbers, ids, quoted text, paths), and the last place in the user's code.
It is the same in every process and version; a change of the rules here is a change of RMQ's format.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from rmq.core.failure import REMEMBERED, Failure

DIGITS = 12  # hex: of a thousand groups, two are alike in one topic of 500 million
NORMALISED_CHARS = 400  # of the error that are looked at

# The order matters: what is quoted or a path may hold numbers, a UUID holds hex.
_RULES = [
    (re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`"), "<text>"),
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s,;)\]}]+"), "<url>"),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/][^\s,;:)\]}]+"), "<path>"),
    (re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), "<id>"),
    (re.compile(r"0[xX][0-9a-fA-F]+"), "<n>"),
    # An id: letters and digits in one word of at least 8, which has a digit. So are RMQ's own.
    (re.compile(r"\b(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{8,}\b"), "<id>"),
    (re.compile(r"\b[0-9a-fA-F]{16,}\b"), "<id>"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
]
_TYPE = re.compile(r"([A-Za-z_][\w.]{0,127})(?::\s|$)")
_FRAME = re.compile(r'^\s+File "([^"\n]+)", line \d+, in ([^\n]{1,200})$', re.MULTILINE)
# Frames of installed packages and of Python itself tell where it broke, not in which of the user's
# functions.
_FOREIGN = re.compile(
    r"^<frozen |[\\/](?:site-packages|dist-packages|rmq[\\/]worker|lib[\\/]python\d[.\d]*)[\\/]"
)


def normalised(error: str) -> str:
    """Return an error without what differs between failures of one cause."""
    text = error[:NORMALISED_CHARS].partition("\n")[0]
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text.strip()


def origin(traceback: str) -> str:
    """Return the last place in the user's code, as `orders.py:charge`; '' where none is known."""
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])]
    if not own:
        return ""
    file, function = own[-1]
    name = re.split(r"[\\/]", file)[-1]
    return f"{name}:{function}"


@lru_cache(REMEMBERED)
def fingerprint(failure: Failure | None) -> str:
    """Return the fingerprint of a failure: 12 hex digits; '' where there is none."""
    if failure is None:
        return ""
    match = _TYPE.match(failure.error)
    error_type = match[1] if match else ""
    message = normalised(failure.error[match.end() :] if match else failure.error)
    parts = (failure.reason, error_type, message, origin(failure.traceback))
    digest = hashlib.sha256("\x00".join(parts).encode("utf-8", "replace"))
    return digest.hexdigest()[:DIGITS]
