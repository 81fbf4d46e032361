"""A route: what it reads from the request and answers, as the annotations of its function say.

A function that answers has the parameters that it needs, each a msgspec struct:

    context  the client of Redis, and the server (always)
    path     the parts of the path in braces
    query    what stands after the question mark
    body     the JSON that is sent

Its name is the operationId, its docstring the description, its return type the schema. An async
generator of lists answers with lines of NDJSON, which are sent while they are read.

A cursor says where a list goes on. It means something to the server alone, which keeps nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from rmq.kernel.core.access import Role
from rmq.web.principal import Principal
from rmq.web.problems import ApiError
from rmq.web.service import ServerState

if TYPE_CHECKING:
    from rmq.client.admin import AsyncAdmin
    from rmq.client.client import AsyncClient


T = TypeVar("T")


def write_cursor(position: object) -> str:
    """Return a position as a cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read_cursor(cursor: str, kind: type[T]) -> T:
    """Return the position that a cursor has.

    Raises:
        ApiError: it is no cursor of such a list.
    """
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        return msgspec.json.decode(text, type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise ApiError("invalid", "cursor: give one that a list has returned", "cursor") from None


MEDIA_TYPE = "application/x-ndjson"
SEND_S = 30.0  # for which a client may leave a page unread; then the connection is closed
_ENCODER = msgspec.json.Encoder()


class _Lines(StreamingResponse):
    """Lines of NDJSON. One that ends early breaks the connection, so that the client notices."""

    async def stream_response(self, send: Send) -> None:
        """Send all pages."""

        async def send_in_time(message: Any) -> None:
            async with asyncio.timeout(SEND_S):
                await send(message)

        await super().stream_response(send_in_time)


async def answer(
    pages: AsyncIterator[list[Any]],
    shown: Callable[[Any], Any],
    request: Request,
    headers: Mapping[str, str],
) -> Response:
    """Return a response that sends pages of lines; the first is read before it begins.

    Args:
        pages: lists of structs.
        shown: returns what of a page is shown.
        request: the request.
        headers: of the answer.
    """
    first: list[Any] = await anext(pages, [])
    if request.method == "HEAD":
        return Response(None, 200, headers, MEDIA_TYPE)

    async def sent() -> AsyncIterator[bytes]:
        yield _ENCODER.encode_lines(shown(first))
        async for page in pages:
            yield _ENCODER.encode_lines(shown(page))

    return _Lines(sent(), 200, headers, MEDIA_TYPE)


Handler = Callable[..., Any]  # a coroutine, or an async iterator of pages of lines
H = TypeVar("H", bound=Handler)

ALWAYS = ("invalid", "unauthorized", "forbidden", "redis-denied", "other-host", "too-many",
          "head-too-large", "internal", "unavailable")  # fmt: skip
OF_TOPICS = ("topic-not-found", "conflict")
OF_READS = ("timeout",)
OF_WRITES = ("cross-site", "too-slow", "too-large", "not-json", "outcome-unknown")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The things that answer a request: the client, and the state of this server.

    Attributes:
        client: of the Redis that is served.
        state: of this server.
        principal: who sent the request.
        address: from where it was sent.
        headers: of the request; names in any case.
    """

    client: AsyncClient
    state: ServerState
    principal: Principal
    address: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def admin(self) -> AsyncAdmin:
        """The verbs on topics."""
        return self.client.admin

    def require(self, role: Role) -> None:
        """Refuse a principal that lacks a role: for what one operation does with some values only.

        Raises:
            ApiError: it does.
        """
        if not self.principal.role.includes(role):
            raise ApiError(
                "forbidden", f"the role {self.principal.role} lacks the rights of {role}"
            )


def check_confirm(confirm: str | None, topic: str) -> None:
    """Refuse a request that destroys something and does not give the name of its topic.

    Raises:
        ApiError: it does not.
    """
    if confirm != topic:
        raise ApiError("invalid", "confirm: give the name of the topic", "confirm")


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    Attributes:
        method: of HTTP.
        path: below /api/v1, with its parts in braces.
        tag: what it is about.
        role: that a principal needs for it.
        status: of an answer that is no error.
        has_etag: whether a client may ask for what has changed, or change what has not.
        errors: kinds of its own, beside those that every operation, or every one on a topic, has.
        handler: the function that answers.
        types: the structs that it reads, by "path", "query" and "body"; and "return".
        has_lines: whether it answers with lines of NDJSON, which the handler yields page by page.
    """

    method: str
    path: str
    tag: str
    role: Role
    status: int
    has_etag: bool
    errors: tuple[str, ...]
    handler: Handler
    types: dict[str, Any] = field(default_factory=dict)
    has_lines: bool = False

    @property
    def name(self) -> str:
        """The operationId."""
        return self.handler.__name__

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"

    @property
    def all_errors(self) -> tuple[str, ...]:
        """The kinds of errors that it may answer with."""
        fields = getattr(self.types.get("body"), "__struct_fields__", ())
        of_reads = OF_READS if self.is_read or "dry_run" in fields else ()
        of_topics = OF_TOPICS if "{topic}" in self.path else ()
        return ALWAYS + of_reads + (() if self.is_read else OF_WRITES) + of_topics + self.errors

    def reads_only(self, given: Mapping[str, Any]) -> bool:
        """Return whether it changes nothing, given these: also a dry run."""
        return self.is_read or getattr(given.get("body"), "dry_run", False) is True


class Table:
    """The operations of one matter.

    Args:
        tag: the matter.
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.operations: list[Operation] = []

    def get(
        self, path: str, *errors: str, role: Role = Role.VIEWER, has_etag: bool = False
    ) -> Callable[[H], H]:
        """Register a function that reads."""
        return self._register("GET", path, role, 200, errors, has_etag)

    def post(self, path: str, *errors: str, role: Role, status: int = 200) -> Callable[[H], H]:
        """Register a function that does something; it has a body."""
        return self._register("POST", path, role, status, errors)

    def patch(self, path: str, *errors: str, role: Role) -> Callable[[H], H]:
        """Register a function that changes something, and answers with it; it has a body."""
        return self._register("PATCH", path, role, 200, errors, has_etag=True)

    def delete(self, path: str, *errors: str, role: Role) -> Callable[[H], H]:
        """Register a function that deletes something; it has no body."""
        return self._register("DELETE", path, role, 200, errors)

    def _register(
        self,
        method: str,
        path: str,
        role: Role,
        status: int,
        errors: tuple[str, ...],
        has_etag: bool = False,
    ) -> Callable[[H], H]:
        def register(handler: H) -> H:
            types = get_type_hints(handler)
            types.pop("context")
            has_lines = get_origin(types["return"]) is AsyncIterator
            if has_lines:
                ((types["return"],),) = (get_args(page) for page in get_args(types["return"]))
            assert ("body" in types) == (method in ("POST", "PATCH")), handler
            assert ("path" in types) == ("{" in path), handler
            assert inspect.getdoc(handler), handler
            operation = Operation(
                method, path, self.tag, role, status, has_etag, errors, handler, types, has_lines
            )
            self.operations.append(operation)
            return handler

        return register
