"""The ASGI applications: one for `rmq server`, and `ConsoleApp` for other applications.

Another application mounts `ConsoleApp` below a path and authenticates users. Only `rmq server` runs
services.

Starlette runs the lifespan only of the outermost application. So a mounted application does not
learn when the other application starts or stops. Instead, the first request in an event loop starts
a task that opens a client of Redis. The task closes the client when the loop ends or when you call
`aclose`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rmq.client.client import AsyncClient
from rmq.errors import ConfigurationError
from rmq.http_framework.principal import Principal, can_be_name
from rmq.http_framework.scope import RootPath, root_of
from rmq.http_framework.service import ServerState
from rmq.kernel.core import packages
from rmq.kernel.core.access import Role
from rmq.kernel.core.keys import check_name
from rmq.kernel.transport import url as urls
from rmq.server.authentication import Authentication, Refused
from rmq.server.config import POLLS, RATE, ServerConfig, read_hosts

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from rmq.server.api import Api
    from rmq.server.console import Console
    from rmq.server.metrics import ServerMetrics


Found = Principal | None
FindPrincipal = Callable[["HTTPConnection"], Found | Awaitable[Found]]


class ConsoleApp:
    """Serves `/console` and `/api/v1` inside another ASGI application.

    Args:
        redis: URL of Redis, or a client of the host application. The client belongs to one event
            loop, and you must close the client yourself.
        principal: Function that returns the user, or None if the user has no access. Its argument
            is Starlette's `HTTPConnection`, without a body: `session`, `user`, `cookies`,
            `headers`, `scope`. It can be a coroutine function. If it is a plain function, RMQ calls
            it in a thread. RMQ calls it for every request, and every 1.5 s while a browser shows a
            live page.
        prefix: Prefix of all keys in Redis. If you pass a client as `redis`, its prefix applies.
        sign_in_url: Sign-in page of the host application. RMQ replaces "{path}" in the URL by the
            quoted path to return to. With None, pages answer 403 if there is no user.
        hosts: Host names with which browsers reach the host application, without ports, in addition
            to the names of this machine. If the host application checks the header Host, you can
            pass "*" to allow any name.
        redact: Headers and fields of bodies whose values only admins may see.
        rate: Maximum number of requests per second of a user from one address.
        streams: Whether live pages are streams of events. If False, browsers fetch live pages every
            few seconds. Use False under WSGI, because a stream would occupy a thread.

    Guarantee:
        RMQ does the same checks as `rmq server`. It checks roles, CSRF tokens and host names, sets
        the content security policy, and limits the size of bodies. The audit trail records the
        name of the user.

    Raises:
        ConfigurationError: The URL or an argument is not valid, or a package of the extra "server"
            is missing.
    """

    def __init__(
        self,
        redis: str | AsyncClient | None = None,
        *,
        principal: FindPrincipal,
        prefix: str | None = None,
        sign_in_url: str | None = None,
        hosts: Collection[str] = (),
        redact: Collection[str] = (),
        rate: float = RATE,
        streams: bool = True,
    ) -> None:
        if isinstance(redis, AsyncClient) and prefix is not None:
            raise ConfigurationError("prefix: the client already has a prefix; set only one")
        self._redis, self._prefix = redis, prefix
        self._principal = principal
        self._is_coroutine = inspect.iscoroutinefunction(principal)
        self._sign_in_url = sign_in_url
        self._hosts = {*OWN_NAMES, *_names(hosts)}
        self._redact, self._rate, self._streams = tuple(redact), rate, streams
        self._by_loop: dict[asyncio.AbstractEventLoop, _Running] = {}
        if isinstance(redis, str):
            urls.parse(redis)
        if prefix is not None:
            check_name(prefix, "prefix")
        self._make()  # checks the configuration now instead of at the first request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI connection: a request, or the events of a lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await (await self._running())(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def aclose(self) -> None:
        """Close the connections to Redis. A later request opens them again.

        You need not call this, because the connections also close when the event loop ends.
        """
        here = asyncio.get_running_loop()
        for loop, running in list(self._by_loop.items()):
            del self._by_loop[loop]
            if loop is here:
                await running.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(running.cancel)

    async def _running(self) -> ASGIApp:
        """Return the application for this event loop. Its client of Redis is open."""
        loop = asyncio.get_running_loop()
        running = self._by_loop.get(loop)
        if running is None or running.has_ended:
            for other in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[other]
            running = self._by_loop[loop] = _Running(*self._make())
        await running.opened()
        return running.app

    def _make(self) -> tuple[ASGIApp, Callable[[], AbstractAsyncContextManager[None]]]:
        api = make_api(self._client, ServerState(), self._redact)  # checks for missing packages
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import RedirectResponse
        from starlette.routing import Route

        from rmq.server.console import Console
        from rmq.server.guard import Guard
        from rmq.server.pages import WITHOUT_SIGN_IN

        async def to_console(request: Request) -> Response:
            return RedirectResponse(root_of(request.scope) + "/console")

        authentication = Authentication("host", find=self._find)
        console = Console(
            api, WITHOUT_SIGN_IN, sign_in_url=self._sign_in_url, streams=self._streams
        )
        app = Starlette(
            routes=[Route("/", to_console), *api.routes(), *console.routes()],
            exception_handlers={HTTPException: _refuse},
        )
        guard = Guard(app, self._hosts, authentication, self._rate)
        return guard, functools.partial(_opened, api, authentication, console, SECRET_MOUNTED_S)

    def _client(self) -> AbstractAsyncContextManager[AsyncClient]:
        if isinstance(self._redis, AsyncClient):
            return nullcontext(self._redis)
        return open_client(self._redis, self._prefix)

    async def _find(self, scope: Scope) -> Principal | None:
        """Return the user that the host application names, as a `Principal`."""
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import HTTPConnection

        connection = HTTPConnection(scope)
        answer: Found | Awaitable[Found]
        if self._is_coroutine:
            answer = self._principal(connection)
        else:
            find: Callable[[HTTPConnection], object] = self._principal
            answer = cast("Found | Awaitable[Found]", await run_in_threadpool(find, connection))
        found = await answer if inspect.isawaitable(answer) else answer
        if found is None:
            return None
        name, role = found.name, found.role
        if not can_be_name(name):
            raise Refused("the host application names no user")
        if role not in tuple(Role):
            raise Refused(f"the host application gives the role {role!r}: {', '.join(Role)}")
        return replace(found, role=Role(role), kind="host", session=None, token=None)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await self._running()
            await send({"type": "lifespan.startup.complete"})
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})


class _Running:
    """The application in one event loop.

    Args:
        app: Application that answers requests.
        context: Context manager that is open while the application runs.
    """

    def __init__(
        self, app: ASGIApp, context: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        self.app = app
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The task inherits the context variables of the first request, for example a trace's span.
        self._task = asyncio.get_running_loop().create_task(
            self._keep_open(context), name="rmq-console", context=contextvars.Context()
        )

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def opened(self) -> None:
        await asyncio.shield(self._opened)

    def cancel(self) -> None:
        self._task.cancel()

    async def close(self) -> None:
        self.cancel()
        await asyncio.wait((self._task,))

    async def _keep_open(self, context: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        try:
            async with context():
                self._opened.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)
        finally:
            self._opened.cancel()


def _names(hosts: Collection[str]) -> tuple[str, ...]:
    try:
        return read_hosts(hosts if isinstance(hosts, str) else list(hosts)) if hosts else ()
    except ValueError as error:
        raise ConfigurationError(f"hosts: {error}") from None


Problems = Callable[[], list[str]]
TIMEOUT_S = 5.0  # limit for a reply of Redis
RETRY_FOR_S = 2.0
CONNECTIONS = 16
# Longest wait for the CSRF secret at the start. If Redis does not answer in this time, the secret
# is read later.
SECRET_WAIT_S = 2.0
SECRET_MOUNTED_S = 1.0  # the same limit for a mounted application; its first request waits
PATHS = ("/livez", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1", "/console")
OWN_NAMES = ("localhost", "127.0.0.1", "::1")


def open_client(url: str | None, prefix: str | None) -> AsyncClient:
    """Create a client of Redis. Its calls time out before the HTTP request times out."""
    return AsyncClient(
        url, prefix=prefix, retry_for=RETRY_FOR_S, timeout=TIMEOUT_S, max_connections=CONNECTIONS
    )


def make_api(
    make_client: Callable[[], AbstractAsyncContextManager[AsyncClient]],
    state: ServerState,
    redact: Collection[str],
    polls: int = POLLS,
) -> Api:
    """Create `/api/v1`.

    Args:
        make_client: Function that creates the client of Redis.
        state: State of this server.
        redact: Headers and fields of bodies whose values only admins may see.
        polls: Maximum number of long polls and streams of a token.

    Raises:
        ConfigurationError: A package of the extra "server" is missing.
    """
    for package in ("starlette", "msgspec", "jinja2", "sse_starlette"):
        packages.load(package, "server", "rmq server")
    from rmq.server.api import Api
    from rmq.server.disclosure import Disclosure

    return Api(make_client, state, Disclosure(redact), polls=polls)


def make_application(
    live: Problems,
    ready: Problems,
    metrics: ServerMetrics,
    api: Api,
    authentication: Authentication,
    config: ServerConfig,
) -> Starlette:
    """Create the application of the server: probes, metrics, the API and the console.

    /livez    200, or 503 if a part of the process hangs and a restart can help. If Redis is
              unavailable, the answer is still 200.
    /readyz   200 if Redis runs scripts for this server, otherwise 503
    /metrics  for Prometheus
    /api/v1   operations of Admin
    /console  pages for people

    Args:
        live: Function that returns the names of the parts of the process that hang.
        ready: Function that returns the reasons why the server cannot work at the moment.
        metrics: Metrics for `/metrics`.
        api: Operations for `/api/v1`.
        authentication: Authentication of requests.
        config: Host names, rates, and the path below which a proxy serves the server.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse, RedirectResponse
    from starlette.routing import Route

    from rmq.http_framework import problems
    from rmq.http_framework.problems import ApiError
    from rmq.http_framework.readings import Readings
    from rmq.server.console import Console, packed
    from rmq.server.guard import Guard

    def probe(problems: Problems) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            found = problems()
            return JSONResponse({"ok": not found, "problems": found}, 503 if found else 200)

        return answer

    readings = Readings()

    async def answer_metrics(request: Request) -> Response:
        context = api.context(request.scope)
        try:
            context.require(Role.VIEWER)
        except ApiError as error:
            return problems.answer(error, secrets.token_hex(8))
        async with api.admit(context):
            text = await readings.get("metrics", lambda: run_in_threadpool(metrics.text), 0.0)
        return packed(request, text, 200, {"Vary": "Accept-Encoding"}, metrics.content_type)

    async def index(request: Request) -> Response:
        root = root_of(request.scope)
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(f"{root}/console")
        return JSONResponse({"paths": [root + path for path in PATHS]})

    console = Console(api)
    hosts = {*OWN_NAMES, config.listen.host, *config.hosts}

    def lifespan(app: Starlette) -> AbstractAsyncContextManager[None]:
        return _opened(api, authentication, console, SECRET_WAIT_S)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/livez", probe(live)),
            Route("/readyz", probe(ready)),
            Route("/metrics", answer_metrics),
            *api.routes(),
            *console.routes(),
        ],
        lifespan=lifespan,
        middleware=[
            Middleware(RootPath, root=config.root_path),
            Middleware(Guard, hosts=hosts, authentication=authentication, rate=config.rate),
        ],
        exception_handlers={HTTPException: _refuse},
    )


@asynccontextmanager
async def _opened(
    api: Api, authentication: Authentication, console: Console, wait_s: float
) -> AsyncIterator[None]:
    """Open a client of Redis while the application serves requests.

    Before the first request, wait at most `wait_s` seconds for the CSRF secret.
    """
    async with api.lifespan():
        authentication.open(api.client)
        try:
            await authentication.opened(wait_s)
            yield
        finally:
            await console.close()
            authentication.close()


async def _refuse(request: Request, error: Exception) -> Response:
    from starlette.exceptions import HTTPException

    from rmq.http_framework import problems

    assert isinstance(error, HTTPException)
    id = secrets.token_hex(8)
    return problems.answer(problems.of_exception(error, id), id, dict(error.headers or {}))
