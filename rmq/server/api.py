"""The HTTP API: the routes of all operations, and their records in the audit trail."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rmq.client.client import AsyncClient, parts_of
from rmq.errors import RMQError
from rmq.features.audit import http as audit_http
from rmq.features.audit_trail import http as audit_trail_http
from rmq.features.batches import http as batches_http
from rmq.features.claims import http as claims_http
from rmq.features.dead_letters import http as dead_letters_http
from rmq.features.dead_letters.jobs import http as jobs_http
from rmq.features.doctor import http as doctor_http
from rmq.features.events import http as events_http
from rmq.features.follow_ups import http as follow_ups_http
from rmq.features.groups import http as groups_http
from rmq.features.history import http as history_http
from rmq.features.http_consumers import http as http_consumers_http
from rmq.features.http_consumers.consumers import HttpConsumers
from rmq.features.http_consumers.receipts import ReceiptSigner
from rmq.features.messages import http as messages_http
from rmq.features.schedules import http as schedules_http
from rmq.features.spark import http as queries_http
from rmq.features.tokens import flows as token_flows
from rmq.features.topic_admin import http as topic_admin_http
from rmq.features.workers import http as workers_http
from rmq.http_framework import openapi, operation as web_operation, problems, requests
from rmq.http_framework.connection import connection_of
from rmq.http_framework.long_answers import LongAnswer
from rmq.http_framework.operation import Operation, RequestContext, Table
from rmq.http_framework.principal import ADDRESS, principal_of
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import Answer
from rmq.http_framework.scope import root_of
from rmq.http_framework.service import ServerState, ServiceStatus
from rmq.kernel.core.access import Role
from rmq.kernel.core.packages import VERSION
from rmq.server import leases
from rmq.server.config import POLLS, POLLS_ALL
from rmq.server.disclosure import Disclosure
from rmq.server.rates import LongPolls, Rates, Simultaneous
from rmq.server.record import record
from rmq.server.run_flow import run_flow

if TYPE_CHECKING:
    from rmq.kernel.transport.single.asyncio import AsyncTransport

TEXT_MAX = 500  # characters of all arguments in the audit trail
VALUE_MAX = 100  # characters of a single argument
# Programs send and receive so often that a few minutes would push out all other records.
NOT_RECORDED = frozenset(
    ("send_message", *(each.name for each in http_consumers_http.TABLE.operations))
)
# Arguments that contain texts of producers or customers, or that carry no information.
LEFT_OUT = frozenset(
    ("body", "body_base64", "headers", "merge_key", "dedup_key", "confirm", "topic")
)


@dataclass(slots=True)
class Act:
    """How an operation ended, for the audit trail.

    The value is "done", a kind of error, or a word from the handler.
    """

    result: str = "done"


@asynccontextmanager
async def recorded(
    context: RequestContext, operation: str, topic: str, arguments: Mapping[str, Any]
) -> AsyncIterator[Act]:
    """Record the operation of the `with` block in the audit trail, even if it fails.

    If Redis does not store the record, the function logs the record and raises no error. The
    operation is already done, and the client must learn this.

    Args:
        context: Context of the request.
        operation: Name of the operation.
        topic: Topic of the operation, or an empty string if the operation has no topic.
        arguments: Arguments of the operation.
    """
    act = Act()
    if operation == "set_topic":
        arguments = await _with_former(context, topic, arguments)
    try:
        yield act
    # This also catches a timeout. The operation may still have been done.
    except BaseException as error:
        act.result = error.kind if isinstance(error, ApiError) else type(error).__name__
        raise
    finally:
        detail = detail_of(arguments)
        text = f"{detail}: {act.result}" if detail else act.result
        await record(context.client, context.principal, context.address, operation, topic, text)


async def _with_former(
    context: RequestContext, topic: str, arguments: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the settings that change, each with its old and new value."""
    try:
        former = (await context.admin.settings(topic)).shown()
    except RMQError:
        return arguments  # the operation will raise the same error, or a more precise error
    return {
        name: f"{former[name]} -> {value}"
        for name, value in arguments.items()
        if name in former and str(former[name]) != str(value).strip()
    }


def detail_of(arguments: Mapping[str, Any]) -> str:
    """Format arguments for the audit trail.

    The function omits bodies, headers, and the names in LEFT_OUT.
    """
    parts = []
    for name, value in arguments.items():
        if name in LEFT_OUT or value is None or value is False or value == "":
            continue
        shown = str(len(value) if isinstance(value, list | tuple | set) else value)
        if len(shown) > VALUE_MAX:
            shown = shown[:VALUE_MAX] + "..."
        parts.append(name if value is True else f"{name}={shown}")
    text = ", ".join(parts)
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."


TABLE = Table("server")


class About(Answer):
    """Information about the server that sent this answer, and about its Redis."""

    version: str
    server: str
    leads: bool
    redis_version: str


@TABLE.get("/info")
async def get_info(context: RequestContext) -> About:
    """Return the version of the server and of its Redis."""
    facts = await context.client.server_info()
    version = facts.get("valkey_version") or facts.get("redis_version", "")
    state = context.state
    return About(version=VERSION, server=state.server, leads=state.leads(), redis_version=version)


class ServiceList(Answer):
    """The services of the server that sent the answer."""

    services: list[ServiceStatus]


@TABLE.get("/services")
async def list_services(context: RequestContext) -> ServiceList:
    """List the services of the server that sends the answer."""
    return ServiceList(services=list(context.state.services()))


BASE = "/api/v1"
TABLES = (
    topic_admin_http.TABLE, messages_http.TABLE, leases.TABLE, dead_letters_http.TABLE,
    jobs_http.TABLE, schedules_http.TABLE, queries_http.TABLE, claims_http.TABLE,
    audit_trail_http.TABLE, doctor_http.TABLE, audit_http.TABLE, TABLE,
    workers_http.TABLE, groups_http.TABLE, follow_ups_http.TABLE,
    batches_http.TABLE, events_http.TABLE, http_consumers_http.TABLE, history_http.TABLE,
)  # fmt: skip
BODY_MAX = 1024 * 1024  # bytes
BODY_S = 10.0  # time limit for receiving a body; then 408
ANSWER_S = 12.0  # time limit for a request; after it, 504, or 503 if something may have been done
SIMULTANEOUS = 4  # requests of one principal from one address that are answered at the same time
# Limit of a principal's refused requests in the audit trail, so that they do not push out all
# other records.
REFUSALS, REFUSALS_A_SECOND = 10, 0.1
_ENCODER = msgspec.json.Encoder()


class Api:
    """The API below `/api/v1`.

    Args:
        make_client: Function that creates the client of Redis, inside the event loop.
        state: State of this server.
        disclosure: Filter that removes from answers everything that the user or program may not
            see.
        operations: Operations to serve. Default: the operations in TABLES.
        polls: Maximum number of long polls and streams of a token.
    """

    def __init__(
        self,
        make_client: Callable[[], AbstractAsyncContextManager[AsyncClient]],
        state: ServerState,
        disclosure: Disclosure | None = None,
        operations: Sequence[Operation] | None = None,
        polls: int = POLLS,
    ) -> None:
        self._make_client = make_client
        self._state = state
        if operations is None:
            operations = [each for table in TABLES for each in table.operations]
        self._operations = operations
        self._client: AsyncClient | None = None
        self.disclosure = disclosure or Disclosure()
        self._documents: dict[str, bytes] = {}  # by root path
        self._refusals = Rates(REFUSALS_A_SECOND, REFUSALS)
        self._simultaneous = Simultaneous(SIMULTANEOUS)
        self._polls = LongPolls(polls, POLLS_ALL)
        self._consumers: HttpConsumers | None = None

    def routes(self) -> list[Route]:
        """Return the routes. There is one route for each path."""
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
        """Open the client of Redis while requests are served."""
        async with self._make_client() as client:
            self._client = client
            signer = ReceiptSigner(lambda: run_flow(client, token_flows.server_secret))
            parts = parts_of(client)
            transport = cast("AsyncTransport", parts.transport)
            self._consumers = HttpConsumers(transport, parts.prefix, parts.sessions, signer)
            try:
                yield
            finally:
                await self._consumers.close()

    @property
    def client(self) -> AsyncClient:
        """The client of Redis, while requests are served."""
        assert self._client is not None
        return self._client

    def context(self, scope: MutableMapping[str, Any]) -> RequestContext:
        """Return the context of a request.

        Call this only after the guard has accepted the request.
        """
        assert self._consumers is not None
        return RequestContext(
            self.client, self._state, principal_of(scope), scope[ADDRESS], Headers(scope=scope),
            self._consumers,
        )  # fmt: skip

    def admit(self, context: RequestContext) -> AbstractAsyncContextManager[None]:
        """Return a context manager that limits how many requests of a user run at the same time."""
        return self._simultaneous.of(f"{context.principal.name} {context.address}")

    async def require(
        self, context: RequestContext, role: Role, operation: str, topic: str
    ) -> None:
        """Check that the user or program has the role for an operation. Record a refusal.

        Raises:
            ApiError: The user or program does not have the role, or its token is for other topics.
        """
        try:
            context.require(role, topic)
        except ApiError as error:
            principal, address = context.principal, context.address
            if not self._refusals.take(f"{principal.name} {address}"):
                await record(context.client, principal, address, operation, topic, error.kind)
            raise

    def _recorded(
        self, operation: Operation, context: RequestContext, given: dict[str, Any]
    ) -> AbstractAsyncContextManager[Any]:
        """Return a context manager that records an operation in the audit trail.

        It records only operations that change or export something.
        """
        if operation.name in NOT_RECORDED or (operation.is_read and not operation.has_lines):
            return nullcontext()
        arguments = {
            name: getattr(part, name) for part in given.values() for name in part.__struct_fields__
        }
        arguments = {name: each for name, each in arguments.items() if each is not msgspec.UNSET}
        if isinstance(settings := arguments.get("settings"), topic_admin_http.Settings):
            arguments |= {"topic": arguments.pop("name", ""), "settings": settings.given() or None}
        if "by" in arguments and context.principal.kind != "local":
            # A caller may add a name, but cannot replace the principal's name.
            given["body"].by = context.principal.name + (
                f" ({given['body'].by})" if given["body"].by != requests.BY else ""
            )
            del arguments["by"]
        topic = str(arguments.get("topic", ""))
        return recorded(context, operation.name, topic, arguments)

    async def _answer_document(self, request: Request) -> Response:
        root = root_of(request.scope)
        document = self._documents.get(root)
        if document is None:
            document = msgspec.json.encode(openapi.document(self._operations, BASE, root))
            # Keep one document only: a client can send any number of root paths.
            self._documents = {root: document}
        return Response(document, media_type="application/json")

    def _endpoint(self, by_method: dict[str, Operation]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            operation = by_method["GET" if request.method == "HEAD" else request.method]
            request_id = secrets.token_hex(8)
            given: dict[str, Any] = {}
            try:
                if operation.is_long:
                    return await self._answer_long(operation, request, request_id)
                async with (
                    asyncio.timeout(ANSWER_S) as limit,
                    self.admit(self.context(request.scope)),
                ):
                    return await self._answer(operation, request, request_id, given, limit)
            except Exception as error:
                problem = problems.of_exception(error, request_id, operation.reads_only(given))
                return problems.answer(problem, request_id)

        return endpoint

    async def _answer(
        self, operation: Operation, request: Request, request_id: str, given: dict[str, Any],
        limit: asyncio.Timeout,
    ) -> Response:  # fmt: skip
        context = self.context(request.scope)
        await self._read(operation, request, context, given, limit)
        headers = {"X-Request-Id": request_id, "Cache-Control": "no-store"}
        shown = functools.partial(self.disclosure.shown, context.principal)
        async with self._recorded(operation, context, given):
            if operation.has_lines:
                return await web_operation.answer(
                    operation.handler(context, **given), shown, request, headers
                )
            answered = await operation.handler(context, **given)
        answer = _ENCODER.encode(shown(answered))
        if operation.has_etag:
            etag = requests.etag_of(answer)
            headers |= {"ETag": etag, "Cache-Control": "no-cache"}
            if operation.is_read and etag in request.headers.get("If-None-Match", ""):
                return Response(None, 304, headers)
        return Response(answer, operation.status, headers, "application/json")

    async def _answer_long(
        self, operation: Operation, request: Request, request_id: str
    ) -> Response:
        """Return the answer of a long poll or a stream.

        It waits for messages while it is written.
        """
        connection = connection_of(request.scope)
        if connection is None:
            raise ApiError("not-found", "only rmq server delivers messages, not a mounted console")
        context = replace(self.context(request.scope), connection=connection)
        given: dict[str, Any] = {}
        await self._read(operation, request, context, given)
        token = context.principal.token or f"{context.principal.kind}:{context.principal.name}"
        self._polls.begin(token)
        connection.begin_wait()

        def end() -> None:
            connection.end_wait()
            self._polls.end(token)

        pages = operation.handler(context, **given)
        headers = {"X-Request-Id": request_id, "Cache-Control": "no-store"}
        return LongAnswer(pages, connection, operation.has_lines, request_id, headers, end)

    async def _read(
        self, operation: Operation, request: Request, context: RequestContext,
        given: dict[str, Any], limit: asyncio.Timeout | None = None,
    ) -> None:  # fmt: skip
        """Check the rights of a request, and store its path, query and body in `given`."""
        topic = request.path_params.get("topic", "")
        await self.require(context, operation.role, operation.name, topic)
        for name, kind in operation.types.items():
            if name == "path":
                given[name] = msgspec.convert(request.path_params, kind)
            elif name == "query":
                given[name] = msgspec.convert(_query(request), kind, strict=False)
                if limit is not None:
                    _allow_wait(limit, getattr(given[name], "wait", 0.0))
            elif name == "body":
                body = await requests.read(request, "application/json", BODY_MAX, BODY_S)
                given[name] = _decoded(body, kind)
        if "query" not in operation.types and request.url.query:
            raise ApiError("invalid", "this path takes no query")
        for part in given.values():
            if getattr(part, "filter", None) is not None:
                self.disclosure.check_filter(context.principal, part.filter)


def _allow_wait(limit: asyncio.Timeout, wait_s: float) -> None:
    until = limit.when()
    if wait_s and until is not None:
        limit.reschedule(until + wait_s)


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
    except UnicodeDecodeError as error:
        raise ApiError("invalid", f"the body is not UTF-8 at byte {error.start}") from None
