"""The operations as Starlette's routes, and the client of Redis while they are served."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rmq.client.client import AsyncClient
from rmq.server.http import request_body
from rmq.server.http.acts import NOT_RECORDED, record, recorded
from rmq.server.http.api import (
    about,
    audits,
    bodies,
    dead_letters,
    jobs,
    leases,
    lines,
    messages,
    openapi,
    problems,
    queries,
    schedules,
    topics,
    views,
)
from rmq.server.http.api.disclosure import Disclosure
from rmq.server.http.api.operation import At, Operation
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import ADDRESS, Role, principal_of
from rmq.server.http.rates import Places, Rates
from rmq.server.http.root_path import root_of
from rmq.server.service import ServiceStatus

BASE = "/api/v1"
TABLES = (
    topics.TABLE, messages.TABLE, leases.TABLE, dead_letters.TABLE, jobs.TABLE, schedules.TABLE,
    queries.TABLE, audits.TABLE, about.TABLE,
)  # fmt: skip
BODY_MAX = 1024 * 1024  # bytes
BODY_S = 10.0  # to send a body; 408 then
ANSWER_S = 12.0  # a request takes no longer; 504 then, or 503 if something may have been done
PLACES = 4  # requests of a principal from an address that are answered at a time
# Of one principal's refused requests so many are in the audit trail, where they would drive out
# all other lines.
REFUSALS, REFUSALS_A_SECOND = 10, 0.1
_ENCODER = msgspec.json.Encoder()


class Api:
    """`/api/v1`.

    Args:
        make_client: makes the client of Redis, in the event loop.
        server: the id of this server.
        leads: whether it leads.
        services: returns how its services do.
        disclosure: takes out of answers what a principal is not shown.
        operations: all of them; None: those of TABLES.
        missing: returns what the last audits of this server found missing, by topic.
    """

    def __init__(
        self,
        make_client: Callable[[], AbstractAsyncContextManager[AsyncClient]],
        server: str,
        leads: Callable[[], bool],
        services: Callable[[], Sequence[ServiceStatus]],
        disclosure: Disclosure | None = None,
        operations: Sequence[Operation] | None = None,
        missing: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._make_client = make_client
        self._facts = server, leads, services
        self._missing = missing
        if operations is None:
            operations = [each for table in TABLES for each in table.operations]
        self._operations = operations
        self._client: AsyncClient | None = None
        self.disclosure = disclosure or Disclosure()
        self._documents: dict[str, bytes] = {}  # by root path
        self._refusals = Rates(REFUSALS_A_SECOND, REFUSALS)
        self._places = Places(PLACES)

    def routes(self) -> list[Route]:
        """Return a route for each path."""
        by_path: dict[str, dict[str, Operation]] = {}
        for each in self._operations:
            by_path.setdefault(each.path, {})[each.method] = each
        return [
            Route(BASE + "/openapi.json", self._answer_document),
            *(
                Route(BASE + path, self._endpoint(by_method), methods=list(by_method))
                for path, by_method in by_path.items()
            ),
        ]

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Have a client of Redis while requests are served."""
        async with self._make_client() as client:
            self._client = client
            yield

    @property
    def client(self) -> AsyncClient:
        """The client of Redis, while requests are served."""
        assert self._client is not None
        return self._client

    def at(self, scope: MutableMapping[str, Any]) -> At:
        """Return what answers a request; `scope` is the one that the guard has seen."""
        return At(
            self.client, *self._facts, principal_of(scope), scope[ADDRESS], self._missing,
            Headers(scope=scope),
        )  # fmt: skip

    def place(self, at: At) -> AbstractAsyncContextManager[None]:
        """Return a block in which a request of somebody is answered, or a page is made."""
        return self._places.of(f"{at.principal.name} {at.address}")

    async def require(self, at: At, role: Role, operation: str, topic: str) -> None:
        """Refuse a principal that lacks the role of an operation, and note that.

        Raises:
            ApiError: it does.
        """
        try:
            at.require(role)
        except ApiError as error:
            if not self._refusals.take(f"{at.principal.name} {at.address}"):
                await record(at.client, at.principal, at.address, operation, topic, error.kind)
            raise

    def _recorded(
        self, operation: Operation, at: At, given: dict[str, Any]
    ) -> AbstractAsyncContextManager[Any]:
        """Return a block for what an operation does: what changes something, and exports."""
        if operation.name in NOT_RECORDED or (operation.is_read and not operation.has_lines):
            return nullcontext()
        arguments = {
            name: getattr(part, name) for part in given.values() for name in part.__struct_fields__
        }
        arguments = {name: each for name, each in arguments.items() if each is not msgspec.UNSET}
        if isinstance(settings := arguments.get("settings"), bodies.Settings):
            arguments |= {"topic": arguments.pop("name", ""), "settings": settings.given() or None}
        if "by" in arguments and at.principal.kind != "local":
            # Whoever asks may add a name, and not put on another's.
            given["body"].by = at.principal.name + (
                f" ({given['body'].by})" if given["body"].by != bodies.BY else ""
            )
            del arguments["by"]
        topic = str(arguments.get("topic", ""))
        return recorded(at, operation.name, topic, arguments)

    async def _answer_document(self, request: Request) -> Response:
        root = root_of(request.scope)
        document = self._documents.get(root)
        if document is None:
            document = msgspec.json.encode(openapi.document(self._operations, BASE, root))
            self._documents = {root: document}  # there is one, unless the request made it up
        return Response(document, media_type="application/json")

    def _endpoint(self, by_method: dict[str, Operation]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            operation = by_method["GET" if request.method == "HEAD" else request.method]
            request_id = secrets.token_hex(8)
            given: dict[str, Any] = {}
            try:
                async with asyncio.timeout(ANSWER_S), self.place(self.at(request.scope)):
                    return await self._answer(operation, request, request_id, given)
            except Exception as error:
                told = problems.of_exception(error, request_id, operation.reads_only(given))
                return problems.answer(told, request_id)

        return endpoint

    async def _answer(
        self, operation: Operation, request: Request, request_id: str, given: dict[str, Any]
    ) -> Response:
        at = self.at(request.scope)
        topic = request.path_params.get("topic", "")
        await self.require(at, operation.role, operation.name, topic)
        for name, kind in operation.types.items():
            if name == "path":
                given[name] = msgspec.convert(request.path_params, kind)
            elif name == "query":
                given[name] = msgspec.convert(_query(request), kind, strict=False)
            elif name == "body":
                given[name] = _decoded(
                    await request_body.read(request, "application/json", BODY_MAX, BODY_S), kind
                )
        if "query" not in operation.types and request.url.query:
            raise ApiError("invalid", "this path takes no query")
        for part in given.values():
            if getattr(part, "filter", None) is not None:
                self.disclosure.check_filter(at.principal, part.filter)
        headers = {"X-Request-Id": request_id, "Cache-Control": "no-store"}
        shown = functools.partial(self.disclosure.shown, at.principal)
        async with self._recorded(operation, at, given):
            if operation.has_lines:
                return await lines.answer(operation.handler(at, **given), shown, request, headers)
            answered = await operation.handler(at, **given)
        answer = _ENCODER.encode(shown(answered))
        if operation.has_etag:
            etag = views.etag_of(answer)
            headers |= {"ETag": etag, "Cache-Control": "no-cache"}
            if operation.is_read and etag in request.headers.get("If-None-Match", ""):
                return Response(None, 304, headers)
        return Response(answer, operation.status, headers, "application/json")


def _query(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) < len(pairs):
        raise ApiError("invalid", "a parameter is given twice")
    return given


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise ApiError("invalid", "the body is nested too deeply") from None
