"""The protocol of a connection: uvicorn's, within limits of time, size and number.

uvicorn waits for the rest of a head or a body as long as the client likes, so a few slow clients
could hold all connections. Here a head and a body have an end, a head is checked before it is
parsed (`take_head`), and where there are too many connections, those that wait for their client
give way.

Nothing here is imported before a listener is made: uvicorn is an extra.

A head has one reading: what two programs could read in two ways is refused. A proxy before the
server and the server itself must agree where a request ends, or the rest of one is taken for
another (request smuggling). So there is one way to tell the length of a body, a single
Content-Length of digits; chunked bodies, folded lines and line feeds alone are refused.
"""

from __future__ import annotations

import asyncio
import http
import re
import secrets
from collections.abc import Callable
from typing import Any

from rmq.kernel.core import packages
from rmq.web import problems

HEAD_MAX = 16 * 1024  # bytes
LINE_MAX = 15 * 1024  # of the first line, which has the URL
HEADERS_MAX = 100
_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LINE = re.compile(rb"[A-Z]{1,16} /[\x21-\x7e]* HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
FOR_PROBES = 16  # connections beyond the most, which answer probes alone
_PROBE = re.compile(rb"(?:GET|HEAD) [^ ?]*/(?:livez|readyz)[ ?]")


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


HEAD_S = 10.0  # for a whole head, from its first byte or the connection on
BODY_S = 30.0
LINGER_S = 1.0  # what a refused client still sends is read and thrown away for so long
_H11Protocol: Any = packages.load(
    "uvicorn.protocols.http.h11_impl", "server", "rmq server"
).H11Protocol
_KINDS = {400: "invalid", 408: "too-slow", 431: "head-too-large", 503: "too-many-connections"}


class Connections:
    """The connections of a listener.

    Args:
        most: how many there may be.
        most_per_address: of these, from one address.
        is_proxy: whether an address is a proxy's, from which all may come.
    """

    def __init__(self, most: int, most_per_address: int, is_proxy: Callable[[str], bool]) -> None:
        self._most, self._most_per_address, self._is_proxy = most, most_per_address, is_proxy
        self._all: dict[LimitedProtocol, str] = {}  # the oldest first

    def add(self, connection: LimitedProtocol, address: str) -> bool:
        """Add a connection; where there are too many, end one that waits for its client.

        If none waits, some more connections are added that answer probes alone.

        Returns:
            Whether there was room.
        """
        of_address = [each for each, other in self._all.items() if other == address]
        if len(of_address) >= self._most_per_address and not self._is_proxy(address):
            candidates = of_address
        elif len(self._all) >= self._most:
            candidates = list(self._all)
        else:
            candidates = []
        if candidates:
            waiting = next((each for each in candidates if each.waits_for_client), None)
            if waiting is not None:
                self.remove(waiting)
                waiting.refuse(408, "others need the connection")
            elif len(self._all) >= self._most + FOR_PROBES:
                return False
            else:
                connection.answers_probes_alone = True
        self._all[connection] = address
        return True

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a connection."""
        self._all.pop(connection, None)


class LimitedProtocol(_H11Protocol):  # type: ignore[misc]
    """A connection within limits; uvicorn makes it.

    Args:
        connections: those of its listener; the other arguments are uvicorn's.
    """

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._siblings = connections
        self._buffer = bytearray()
        self._body_left = 0
        self._is_refused = False
        self.answers_probes_alone = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin, or refuse a connection that is one too many."""
        super().connection_made(transport)
        self._limit(HEAD_S, "the head of the request did not come")
        if not self._siblings.add(self, self.client[0] if self.client else ""):
            self.refuse(503, "there are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its time limits."""
        self._siblings.remove(self)
        self._unlimit()
        super().connection_lost(exc)

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing goes on until its client sends more, or reads what was answered."""
        return self._body_left > 0 or not self._is_answering or self.flow.write_paused

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._is_refused:
            return
        self._buffer += data
        self._pass_on()

    def on_response_complete(self) -> None:
        """Go on with what the client has sent meanwhile."""
        super().on_response_complete()
        self._pass_on()

    def shutdown(self) -> None:
        """Finish the answer, and close; a stream has no end to wait for, and is closed at once."""
        super().shutdown()
        if self._is_answering and self.cycle.response_started and _asks_for_stream(self.scope):
            self.transport.close()

    def _pass_on(self) -> None:
        """Give uvicorn whole heads, and of bodies what has come."""
        while self._buffer and not self._is_refused and not self.transport.is_closing():
            if self._body_left:
                part = bytes(self._buffer[: self._body_left])
                del self._buffer[: len(part)]
                self._body_left -= len(part)
                if not self._body_left:
                    self._unlimit()
                super().data_received(part)
            elif self._is_answering:  # the next request comes early
                if len(self._buffer) > HEAD_MAX:
                    self.flow.pause_reading()
                return
            elif not self._pass_on_head():
                return

    def _pass_on_head(self) -> bool:
        """Give uvicorn a head; return whether it was whole."""
        try:
            head = take_head(self._buffer)
            self._body_left = 0 if head is None else body_length(head)
        except BadHead as bad:
            self.refuse(bad.status, str(bad))
            return False
        if head is None:
            self._unset_keepalive_if_required()
            if self._timer is None:
                self._limit(HEAD_S, "the head of the request did not come")
            return False
        self._unlimit()
        if self.answers_probes_alone and not _PROBE.match(head):
            self.refuse(503, "there are too many connections")
            return False
        if self._body_left:
            self._limit(BODY_S, "the body of the request did not come")
        super().data_received(head + b"\r\n\r\n")
        return True

    def _limit(self, seconds: float, detail: str) -> None:
        self._unlimit()
        self._timer = self.loop.call_later(seconds, self.refuse, 408, detail)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse(self, status: int, detail: str) -> None:
        """Answer that a request is refused, if nothing was answered, and close."""
        self._unlimit()
        if self.transport.is_closing():
            return
        if self._is_refused:
            self.transport.close()
            return
        self._is_refused = True
        if not (self._is_answering and self.cycle.response_started):
            error = problems.ApiError(_KINDS[status], detail)
            text = bytes(problems.answer(error, secrets.token_hex(8)).body)
            self.transport.write(
                b"HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\n"
                b"Content-Length: %d\r\nConnection: close\r\nRetry-After: 2\r\n"
                b"X-Content-Type-Options: nosniff\r\n\r\n%s"
                % (status, http.HTTPStatus(status).phrase.encode(), len(text), text)
            )
        if self._is_answering:
            self.cycle.disconnected = True  # what the application says is not sent any more
            self.cycle.message_event.set()
        # A client that is still sending would lose the answer if the connection was reset.
        self.transport.write_eof()
        # `close` would wait for a client that reads nothing.
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)


def _asks_for_stream(scope: Any) -> bool:
    return any(
        name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"]
    )
