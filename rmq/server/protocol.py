"""uvicorn's protocol of a connection, with limits of time, size and number.

uvicorn waits without a limit for the rest of a head or a body. So a few slow clients could occupy
all connections. This protocol limits the time for a head and for a body. It also checks a head
before uvicorn parses it (`take_head`). If there are too many connections, the protocol closes
connections that wait for their client. Import this module only to create a listener, because
uvicorn is an extra.

The protocol refuses a request that two programs could read differently. A proxy and the server
could disagree about the end of such a request, and treat its rest as another request (request
smuggling). So the head must give the length of a body by a single Content-Length with only digits.
The protocol refuses chunked bodies, folded lines, and line feeds without a carriage return.
"""

from __future__ import annotations

import asyncio
import http
import re
import secrets
from collections.abc import Callable
from typing import Any

from rmq.http_framework import connection, problems
from rmq.kernel.core import packages

HEAD_MAX = 16 * 1024  # bytes
LINE_MAX = 15 * 1024  # bytes of the first line, which contains the URL
HEADERS_MAX = 100
_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LINE = re.compile(rb"[A-Z]{1,16} /[\x21-\x7e]* HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
FOR_PROBES = 16  # connections beyond the limit, for probes only
_PROBE = re.compile(rb"(?:GET|HEAD) [^ ?]*/(?:livez|readyz)[ ?]")


class BadHead(Exception):
    """The protocol refuses the head of a request.

    Attributes:
        status: HTTP status of the answer.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def take_head(received: bytearray) -> bytes | None:
    """Remove the head of a request from the received bytes.

    Returns:
        The head, without the empty line at its end. If the head is not complete, the function
        returns None and removes nothing.

    Raises:
        BadHead: The head is too large, or has a line feed without a carriage return.
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
    """Return the length of the body that belongs to a head.

    Args:
        head: Head of a request, without the empty line at its end.

    Raises:
        BadHead: The head is not valid, or two programs could read it differently.
    """
    line, *headers = head.split(b"\r\n")
    if not _LINE.fullmatch(line):
        raise BadHead(400, "the first line is not METHOD /PATH HTTP/1.1")
    if len(headers) > HEADERS_MAX:
        raise BadHead(431, f"a request has at most {HEADERS_MAX} headers")
    lengths = []
    for header in headers:
        match = _HEADER.fullmatch(header)
        if match is None:
            raise BadHead(400, "a header is not NAME: VALUE on one line")
        name = match[1].lower()
        if name == b"transfer-encoding":
            raise BadHead(400, "send Content-Length; Transfer-Encoding is not supported")
        if name == b"content-length":
            lengths.append(match[2].rstrip(b" \t"))
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise BadHead(400, "Content-Length must be one number")
    return int(lengths[0]) if lengths else 0


HEAD_S = 10.0  # limit for a whole head, from its first byte or from the start of the connection
BODY_S = 30.0
WRITTEN_S = 0.02  # time between two looks whether a reply is written
LINGER_S = 1.0  # time for which further bytes of a refused client are read and dropped
_H11Protocol: Any = packages.load(
    "uvicorn.protocols.http.h11_impl", "server", "rmq server"
).H11Protocol
_KINDS = {400: "invalid", 408: "too-slow", 431: "head-too-large", 503: "too-many-connections"}


class Connections:
    """The connections of a listener.

    Args:
        most: Maximum number of connections.
        most_per_address: Maximum number of connections from one address.
        is_proxy: Function that returns whether an address belongs to a trusted proxy. The limit per
            address does not apply to a trusted proxy.
    """

    def __init__(self, most: int, most_per_address: int, is_proxy: Callable[[str], bool]) -> None:
        self._most, self._most_per_address, self._is_proxy = most, most_per_address, is_proxy
        self._all: dict[LimitedProtocol, str] = {}  # oldest first

    def add(self, connection: LimitedProtocol, address: str) -> bool:
        """Add a connection. If there are too many, close a connection that waits for its client.

        If no connection waits, the method accepts up to FOR_PROBES connections beyond the limit.
        These connections answer only health probes.

        Returns:
            Whether the connection was accepted.
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
                waiting.refuse(408, "other clients need the connection")
            elif len(self._all) >= self._most + FOR_PROBES:
                return False
            else:
                connection.answers_probes_alone = True
        self._all[connection] = address
        return True

    def remove(self, connection: LimitedProtocol) -> None:
        """Remove a connection that is closed or waits for messages."""
        self._all.pop(connection, None)

    def put_back(self, connection: LimitedProtocol, address: str) -> None:
        """Count a connection again because it no longer waits for messages.

        The number of connections may then exceed the limits.
        """
        self._all[connection] = address


class LimitedProtocol(_H11Protocol):  # type: ignore[misc]
    """A client connection with limits of time, size and number. uvicorn creates it.

    Args:
        connections: Connections of the listener. All other arguments are uvicorn's own.
    """

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._siblings = connections
        self._buffer = bytearray()
        self._body_left = 0
        self._is_refused = False
        self.answers_probes_alone = False
        self._timer: asyncio.TimerHandle | None = None
        self._held: Any = None  # cycle of a long poll or a stream
        self._is_broken = False  # whether bytes of an answer were lost
        self._on_end: Callable[[], object] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept a new connection, or refuse it if there are too many connections."""
        super().connection_made(transport)
        self._limit(HEAD_S, "the head of the request did not come")
        if not self._siblings.add(self, self.client[0] if self.client else ""):
            self.refuse(503, "there are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and its time limits."""
        self._siblings.remove(self)
        self._unlimit()
        super().connection_lost(exc)
        self._is_broken = exc is not None
        self._call_on_end()

    @property
    def waits_for_client(self) -> bool:
        """Whether the connection waits until its client sends a request or reads an answer."""
        return self._body_left > 0 or not self._is_answering or self.flow.write_paused

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Receive bytes from the client."""
        if self._is_refused:
            return
        self._buffer += data
        self._pass_on()

    def on_response_complete(self) -> None:
        """Continue with the bytes that the client has sent during the response."""
        super().on_response_complete()
        self._pass_on()

    def shutdown(self) -> None:
        """Finish the current answer, and close the connection.

        A stream of events closes immediately.
        """
        super().shutdown()
        self._call_on_end()
        if self._is_answering and self.cycle.response_started and _asks_for_stream(self.scope):
            self.transport.close()

    def _pass_on(self) -> None:
        """Pass complete request heads, and the bytes of bodies that have arrived, to uvicorn."""
        while self._buffer and not self._is_refused and not self.transport.is_closing():
            if self._body_left:
                part = bytes(self._buffer[: self._body_left])
                del self._buffer[: len(part)]
                self._body_left -= len(part)
                if not self._body_left:
                    self._unlimit()
                super().data_received(part)
            elif self._is_answering:  # the next request arrived early
                if len(self._buffer) > HEAD_MAX:
                    self.flow.pause_reading()
                return
            elif not self._pass_on_head():
                return

    def _pass_on_head(self) -> bool:
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
        if self.scope is not None:
            self.scope[connection.KEY] = self  # the task of the request starts after this call
        return True

    # --- a long poll or a stream: see `rmq.http_framework.connection` ---

    @property
    def is_ending(self) -> bool:
        """Whether the client has disconnected, or the server stops."""
        return bool(self._held.disconnected or not self._held.keep_alive or self._is_broken)

    def begin_wait(self) -> None:
        """Stop counting the connection for the listener's limit while it waits for messages."""
        self._siblings.remove(self)
        self._held = self.cycle

    def end_wait(self) -> None:
        """Count the connection for the listener's limit again."""
        self._on_end = None
        if not self.transport.is_closing():
            self._siblings.put_back(self, self.client[0] if self.client else "")

    def on_end(self, call: Callable[[], object]) -> None:
        """Register a function to call once when `is_ending` is true or becomes true."""
        self._on_end = call
        if self.is_ending:
            self._call_on_end()

    def _call_on_end(self) -> None:
        call, self._on_end = self._on_end, None
        if call is not None:
            call()

    async def written(self, wait_s: float) -> bool:
        """Wait until the operating system has all bytes of the reply.

        Return False if the client disconnects first, or if the wait takes longer than `wait_s`
        seconds.
        """
        until = self.loop.time() + wait_s
        while not (self._held.disconnected or self._is_broken) and self.loop.time() < until:
            if not self.transport.get_write_buffer_size():
                return True
            await asyncio.sleep(WRITTEN_S)
        return False

    def _limit(self, seconds: float, detail: str) -> None:
        self._unlimit()
        self._timer = self.loop.call_later(seconds, self.refuse, 408, detail)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def refuse(self, status: int, detail: str) -> None:
        """Refuse the request, and close the connection. If an answer has begun, only close it."""
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
            self.cycle.disconnected = True  # drop everything that the application still sends
            self.cycle.message_event.set()
        # Resetting the connection would lose the answer if the client is still sending.
        self.transport.write_eof()
        # `close` would wait for a client that does not read.
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)


def _asks_for_stream(scope: Any) -> bool:
    return any(
        name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"]
    )
