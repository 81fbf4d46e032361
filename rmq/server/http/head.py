"""The head of a request, held to one reading: what two programs could read in two ways is refused.

A proxy before the server and the server itself must agree where a request ends, or the rest of one
is taken for another (request smuggling). So there is one way to tell the length of a body, a single
Content-Length of digits; chunked bodies, folded lines and line feeds alone are refused.
"""

from __future__ import annotations

import re

HEAD_MAX = 16 * 1024  # bytes
LINE_MAX = 15 * 1024  # of the first line, which has the URL
HEADERS_MAX = 100
_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LINE = re.compile(rb"[A-Z]{1,16} /[\x21-\x7e]* HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")


class BadHead(Exception):
    """A head that is refused.

    Attributes:
        status: of the answer.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def take_head(received: bytearray) -> bytes | None:
    """Take the head of a request off the bytes that a client has sent.

    Returns:
        The head, without the empty line at its end; None: the end has not come, and nothing is
        taken.

    Raises:
        BadHead: it is too large already, or has a line feed alone.
    """
    end = received.find(b"\r\n\r\n")
    seen = bytes(received if end < 0 else received[:end])
    if _LINE_FEED.search(seen):
        raise BadHead(400, "a line ends without a carriage return")
    if len(seen.partition(b"\r\n")[0]) > LINE_MAX:
        raise BadHead(400, f"the first line of a request has at most {LINE_MAX} bytes")
    if len(seen) > HEAD_MAX:
        raise BadHead(431, f"the head of a request has at most {HEAD_MAX} bytes")
    if end < 0:
        return None
    del received[: end + 4]
    return seen


def body_length(head: bytes) -> int:
    """Return the length of the body that a head announces.

    Args:
        head: of a request, without the empty line at its end.

    Raises:
        BadHead: it is no head, or could be read in two ways.
    """
    line, *headers = head.split(b"\r\n")
    if not _LINE.fullmatch(line):
        raise BadHead(400, "the first line is no METHOD /PATH HTTP/1.1")
    if len(headers) > HEADERS_MAX:
        raise BadHead(431, f"a request has at most {HEADERS_MAX} headers")
    lengths = []
    for header in headers:
        match = _HEADER.fullmatch(header)
        if match is None:
            raise BadHead(400, "a header is no NAME: VALUE on one line")
        name = match[1].lower()
        if name == b"transfer-encoding":
            raise BadHead(400, "give Content-Length; Transfer-Encoding is not taken")
        if name == b"content-length":
            lengths.append(match[2].rstrip(b" \t"))
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise BadHead(400, "Content-Length must be one number")
    return int(lengths[0]) if lengths else 0
