"""Names of topics for the shell, read over a plain socket.

A person presses Tab and waits. The client, and redis-py below it, take several times as long to
import as the rest of a completion takes, so this asks a server at redis:// or unix:// by itself:
one command that reads. Other addresses (TLS, Sentinel, a Cluster, options in the URL) need the
client.
"""

from __future__ import annotations

import socket
import time
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

REPLY_BYTES = 4 * 1024 * 1024  # of names; more are no help to a person


class _Server(NamedTuple):
    """Where a server listens, and what it wants to be told first."""

    address: tuple[str, int] | str
    greeting: list[list[str]]


def _server(url: str) -> _Server | None:
    """Read a URL; None if it takes a client to connect to it."""
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.scheme not in ("redis", "unix"):
        return None
    greeting = []
    if parts.password:
        user = [unquote(parts.username)] if parts.username else []
        greeting.append(["AUTH", *user, unquote(parts.password)])
    elif parts.username:
        return None
    if parts.scheme == "unix":
        return _Server(unquote(parts.path), greeting)
    database = parts.path.strip("/")
    if database:
        greeting.append(["SELECT", database])
    return _Server((parts.hostname or "localhost", parts.port or 6379), greeting)


def topic_names(url: str, prefix: str, timeout_s: float) -> list[str] | None:
    """Return the names of all topics; None if it takes a client to read them.

    Raises:
        OSError: the server is away, or slow.
        ValueError: it is none, refuses, or has too many.
    """
    server = _server(url)
    if server is None:
        return None
    deadline = time.monotonic() + timeout_s
    if isinstance(server.address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        connection.connect(server.address)
    else:
        connection = socket.create_connection(server.address, timeout_s)
    with connection:
        connection.sendall(
            b"".join(map(_packed, [*server.greeting, ["SMEMBERS", f"{prefix}:topics"]]))
        )
        reply = _Reply(connection, deadline)
        for _ in server.greeting:
            reply.line(b"+")
        names = [reply.text(int(reply.line(b"$"))) for _ in range(int(reply.line(b"*")))]
    return sorted(names)


def _packed(words: list[str]) -> bytes:
    data = [word.encode() for word in words]
    return b"*%d\r\n" % len(data) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in data)


class _Reply:
    """Reads a reply from a socket until a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._read, self._at = bytearray(), 0

    def _more(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        chunk = self._connection.recv(65536)
        self._read += chunk
        if not chunk or len(self._read) > REPLY_BYTES:
            raise ValueError("the reply is cut short, or too long")

    def line(self, kind: bytes) -> bytes:
        """Return the next line, which begins with a mark for its kind."""
        while (end := self._read.find(b"\r\n", self._at)) < 0:
            self._more()
        line = bytes(self._read[self._at : end])
        self._at = end + 2
        if line[:1] != kind:
            raise ValueError(f"the server answered {line[:80]!r}")
        return line[1:]

    def text(self, size: int) -> str:
        """Return a text of so many bytes."""
        while len(self._read) < self._at + size + 2:
            self._more()
        text = self._read[self._at : self._at + size].decode()
        self._at += size + 2
        return text
