"""Types of arguments that the shell completes: topics, schedules, workers, ids of messages.

Completion is silent: where Redis is away or slow, or denies it, there is nothing to choose from.

Names of topics are read over a plain socket. A person presses Tab and waits. The client, and
redis-py below it, take several times as long to import as the rest of a completion takes, so this
asks a server at redis:// or unix:// by itself: one command that reads. Other addresses (TLS,
Sentinel, a Cluster, options in the URL) need the client.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import click
from click.shell_completion import CompletionItem

from rmq.terminal.options import CommonOptions

if TYPE_CHECKING:
    import rmq

    ParamType = click.ParamType[Any]
else:  # generic from click 8.2 on, and for type checkers only
    ParamType = click.ParamType

DEFAULT_URL = "redis://localhost:6379/0"  # of rmq.Client, whose import takes long
ANSWER_S = 0.15  # of one command; a person presses Tab and waits
MOST = 100  # names to choose from
READ = 50  # messages of which the ids are offered

Read = Callable[[CommonOptions, click.Context], Iterable[tuple[str, str]]]


def choices(ctx: click.Context, incomplete: str, read: Read) -> list[CompletionItem]:
    """Return the names that begin with what was typed.

    Args:
        ctx: of the command that is typed.
        incomplete: what was typed of the name.
        read: returns names, each with a help text.
    """
    options = ctx.find_root().obj or CommonOptions()
    try:
        url = options.url_asked
        if url is not None and url.startswith("embedded:"):  # it would start a server
            return []
        found = [
            CompletionItem(name, help=about)
            for name, about in read(options, ctx)
            if name.startswith(incomplete)
        ]
    except Exception:  # a half-typed --url, too; whatever it is, this is no place to say it
        return []
    return found[:MOST]


def _client(options: CommonOptions) -> rmq.Client:
    import rmq

    prefix = options.key_prefix
    return rmq.Client(options.url_asked, prefix=prefix, retry_for=0, timeout=ANSWER_S)


def _topics(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    names = topic_names(options.url_asked or DEFAULT_URL, options.key_prefix, ANSWER_S)
    if names is None:
        with _client(options) as client:
            names = client.admin.topics()
    return [(name, "") for name in names]


def _schedules(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    with _client(options) as client:
        return [(state.name, "") for state in client.admin.schedules(ctx.params["topic"])]


def _workers(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    with _client(options) as client:
        workers = client.admin.workers()
    return [(each.id, f"{each.host} {' '.join(each.topics)}") for each in workers]


def _named(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    """Names of what the group of the command is about."""
    group = ctx.parent.info_name if ctx.parent else None
    if group == "schedule":
        return _schedules(options, ctx)
    return _topics(options, ctx) if group == "topic" and ctx.info_name != "create" else []


def message_ids(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    """Ids of a topic's first messages: dead letters for rmq dlq, else those that wait, too."""
    dead_only = ctx.parent is not None and ctx.parent.info_name == "dlq"
    with _client(options) as client:
        found = client.admin.peek(ctx.params["topic"], READ, "dead")
        if not dead_only:
            found += client.admin.peek(ctx.params["topic"], READ)
    return [(str(each.id), each.failure.error if each.failure else "") for each in found]


class Name(ParamType):
    """A text that the shell completes from what Redis has."""

    name = "text"

    def __init__(self, read: Read) -> None:
        self._read = read

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with what was typed."""
        return choices(ctx, incomplete, self._read)


# By the name of the parameter; every command has them without doing anything.
_TYPES = {
    "topic": Name(_topics), "topics": Name(_topics), "of_topic": Name(_topics),
    "worker": Name(_workers), "name": Name(_named),
}  # fmt: skip


def complete_names(params: Iterable[click.Parameter]) -> None:
    """Let the shell complete the parameters whose names say what they are."""
    for param in params:
        if param.type is click.STRING and param.name in _TYPES:
            param.type = _TYPES[param.name]


REPLY_BYTES = 4 * 1024 * 1024  # of names; more are no help to a person


class _Server(NamedTuple):
    """Where a server listens, and the commands that it expects first."""

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
