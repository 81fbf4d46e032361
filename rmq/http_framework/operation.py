"""Define routes of the HTTP API by the annotations of handler functions.

A handler function takes the parameters that it needs. Each parameter is a msgspec struct:

    context  the client of Redis, and the state of the server (always)
    path     the parts of the path in braces
    query    the query string
    body     the JSON body of the request

The name of the function is the operationId, its docstring is the description, and its return type
is the schema of the answer. A handler can also be an async generator of lists. The answer then has
lines of NDJSON, and the server sends each list immediately. A cursor is the position at which a
list continues. Only the server can read a cursor, and the server stores nothing for it.
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

from rmq.http_framework.connection import Connection
from rmq.http_framework.principal import Principal
from rmq.http_framework.problems import ApiError
from rmq.http_framework.service import ServerState
from rmq.kernel.core.access import Role

if TYPE_CHECKING:
    from rmq.client.admin import AsyncAdmin
    from rmq.client.client import AsyncClient
    from rmq.features.http_consumers.consumers import HttpConsumers


T = TypeVar("T")


def write_cursor(position: object) -> str:
    """Return a cursor for a position."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read_cursor(cursor: str, kind: type[T]) -> T:
    """Return the position in a cursor.

    Raises:
        ApiError: The text is not a cursor of this kind of list.
    """
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        return msgspec.json.decode(text, type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise ApiError("invalid", "cursor: use a cursor that a list returned", "cursor") from None


MEDIA_TYPE = "application/x-ndjson"
SEND_S = 30.0  # longest wait for a client to read a page; then the connection is closed
_ENCODER = msgspec.json.Encoder()


class _Lines(StreamingResponse):
    """A response of NDJSON lines.

    After an error, the server closes the connection before the response is complete, so that the
    client notices the error.
    """

    async def stream_response(self, send: Send) -> None:
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
    """Return a response that sends pages of lines as a stream.

    The function reads the first page before it sends the status. So if the first page fails, the
    response has an error status.

    Args:
        pages: Lists of structs.
        shown: Function that removes from a page everything that the user or program may not see.
        request: The request to answer.
        headers: Headers of the response.
    """
    first: list[Any] = await anext(pages, [])
    if request.method == "HEAD":
        return Response(None, 200, headers, MEDIA_TYPE)

    async def sent() -> AsyncIterator[bytes]:
        yield _ENCODER.encode_lines(shown(first))
        async for page in pages:
            yield _ENCODER.encode_lines(shown(page))

    return _Lines(sent(), 200, headers, MEDIA_TYPE)


Handler = Callable[..., Any]  # a coroutine function, or an async generator of pages of lines
H = TypeVar("H", bound=Handler)

ALWAYS = ("invalid", "unauthorized", "forbidden", "redis-denied", "other-host", "too-many",
          "head-too-large", "internal", "unavailable")  # fmt: skip
OF_TOPICS = ("topic-not-found", "conflict")
OF_READS = ("timeout",)
OF_LONG = ("too-many-polls", "busy")
_NOT_GIVEN: Any = None  # in a context of a short operation, or of a mounted application
OF_WRITES = ("cross-site", "too-slow", "too-large", "not-json", "outcome-unknown")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Everything that a handler needs to answer a request.

    Attributes:
        client: Client of the Redis that this server serves.
        state: State of this server.
        principal: User or program that sent the request.
        address: Network address of the sender.
        headers: Headers of the request. Their names are case-insensitive.
        consumers: Consumers with which this server receives messages for clients.
        connection: Connection of the client. Only long operations have it.
    """

    client: AsyncClient
    state: ServerState
    principal: Principal
    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    consumers: HttpConsumers = _NOT_GIVEN
    connection: Connection = _NOT_GIVEN

    @property
    def admin(self) -> AsyncAdmin:
        """The `Admin` object, for operations on topics."""
        return self.client.admin

    def require(self, role: Role, topic: str = "") -> None:
        """Check that the user or program has a role, and may use the topic.

        Raises:
            ApiError: The user or program does not have the role, or its token is for other topics.
        """
        if not self.principal.role.includes(role):
            raise ApiError(
                "forbidden", f"the role {self.principal.role} lacks the rights of {role}"
            )
        if topic and not self.principal.may_use(topic):
            raise ApiError(
                "forbidden", f"topic: your token is for {' '.join(self.principal.topics)}", "topic"
            )


def check_confirm(confirm: str | None, name: str, name_of: str = "topic") -> None:
    """Check that a destructive request repeats the name of the object that it changes.

    Raises:
        ApiError: The name is missing or differs.
    """
    if confirm != name:
        raise ApiError("invalid", f"confirm: give the name of the {name_of}", "confirm")


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the HTTP API: a method of a path.

    Attributes:
        method: HTTP method.
        path: Path below /api/v1, with parameters in braces.
        tag: Subject of the operation. The OpenAPI document groups operations by subject.
        role: Role that the user or program needs.
        status: HTTP status of a successful answer.
        has_etag: Whether the operation supports ETags. A read uses If-None-Match, and a change uses
            If-Match.
        errors: Kinds of errors that this operation has in addition to the usual errors.
        handler: Function that handles requests.
        types: Types of the handler's parameters "path", "query" and "body", and type of its
            "return" value.
        has_lines: Whether the handler yields pages of NDJSON lines.
        is_long: Whether the client waits for messages. The handler is then an async generator,
            which `long_answers` describes.
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
    is_long: bool = False

    @property
    def name(self) -> str:
        """Name of the operation in the OpenAPI document (operationId)."""
        return self.handler.__name__

    @property
    def is_read(self) -> bool:
        """Whether the operation changes nothing."""
        return self.method == "GET"

    @property
    def all_errors(self) -> tuple[str, ...]:
        """All kinds of errors that the operation can return."""
        fields = getattr(self.types.get("body"), "__struct_fields__", ())
        of_reads = OF_READS if self.is_read or "dry_run" in fields else ()
        of_topics = OF_TOPICS if "{topic}" in self.path else ()
        of_long = OF_LONG if self.is_long else ()
        of_writes = () if self.is_read else OF_WRITES
        return ALWAYS + of_reads + of_writes + of_topics + of_long + self.errors

    def reads_only(self, given: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments changes nothing, for example a dry run."""
        return self.is_read or getattr(given.get("body"), "dry_run", False) is True


class Table:
    """The operations for one subject, for example for topics.

    Args:
        tag: Name of the subject.
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.operations: list[Operation] = []

    def get(
        self, path: str, *errors: str, role: Role = Role.VIEWER, has_etag: bool = False
    ) -> Callable[[H], H]:
        """Register a handler that reads data."""
        return self._register("GET", path, role, 200, errors, has_etag)

    def post(
        self, path: str, *errors: str, role: Role, status: int = 200, is_long: bool = False
    ) -> Callable[[H], H]:
        """Register a handler for an action. Its requests have a body."""
        return self._register("POST", path, role, status, errors, is_long=is_long)

    def patch(self, path: str, *errors: str, role: Role) -> Callable[[H], H]:
        """Register a handler that changes an object and returns it. Its requests have a body."""
        return self._register("PATCH", path, role, 200, errors, has_etag=True)

    def delete(self, path: str, *errors: str, role: Role) -> Callable[[H], H]:
        """Register a handler that deletes an object. Its requests have no body."""
        return self._register("DELETE", path, role, 200, errors)

    def _register(
        self,
        method: str,
        path: str,
        role: Role,
        status: int,
        errors: tuple[str, ...],
        has_etag: bool = False,
        is_long: bool = False,
    ) -> Callable[[H], H]:
        def register(handler: H) -> H:
            types = get_type_hints(handler)
            types.pop("context")
            has_lines = False
            if get_origin(types["return"]) is AsyncIterator:
                (page,) = get_args(types["return"])
                has_lines = get_origin(page) is list
                types["return"] = get_args(page)[0] if has_lines else page
            assert ("body" in types) == (method in ("POST", "PATCH")), handler
            assert ("path" in types) == ("{" in path), handler
            assert inspect.getdoc(handler), handler
            operation = Operation(
                method, path, self.tag, role, status, has_etag, errors, handler, types, has_lines,
                is_long,
            )  # fmt: skip
            self.operations.append(operation)
            return handler

        return register
