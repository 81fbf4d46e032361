"""The ASGI application of the server: probes, metrics, and what else is mounted.

/livez    200 unless something hangs in the process, which a new one may mend; a Redis that is away
          is no reason to kill it
/readyz   200 while Redis runs scripts for this server, else 503
/metrics  for Prometheus
/api/v1   the verbs of Admin
/console  pages for people
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from rmq.client.client import AsyncClient
from rmq.core import optional_imports
from rmq.server.http.authentication import Authentication
from rmq.server.http.root_path import RootPath, root_of
from rmq.server.service import ServiceStatus

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from rmq.server.console.application import Console
    from rmq.server.http.api.application import Api
    from rmq.server.http.metrics import ServerMetrics

Problems = Callable[[], list[str]]
TIMEOUT_S = 5.0  # of a reply of Redis
RETRY_FOR_S = 2.0
CONNECTIONS = 16
SECRET_WAIT_S = 2.0  # for the secret of forms, at the start; without Redis it is read later
SECRET_MOUNTED_S = 1.0  # the same of a mounted application, for which its first request waits
PATHS = ("/livez", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1", "/console")
OWN_NAMES = ("localhost", "127.0.0.1", "::1")


def open_client(url: str | None, prefix: str | None) -> AsyncClient:
    """Return a client of Redis that fails in time for a request over HTTP to be answered."""
    return AsyncClient(
        url, prefix=prefix, retry_for=RETRY_FOR_S, timeout=TIMEOUT_S, max_connections=CONNECTIONS
    )


def make_api(
    make_client: Callable[[], AbstractAsyncContextManager[AsyncClient]],
    server: str,
    leads: Callable[[], bool],
    services: Callable[[], Sequence[ServiceStatus]],
    redact: Collection[str] = (),
    missing: Callable[[], Mapping[str, int]] = dict,
) -> Api:
    """Return `/api/v1`; the arguments are those of `Api`, and what is redacted.

    Raises:
        ConfigurationError: a package of the extra "server" is missing.
    """
    optional_imports.load("starlette", "server", "rmq server")
    optional_imports.load("msgspec", "server", "rmq server")
    optional_imports.load("jinja2", "server", "rmq server")
    optional_imports.load("sse_starlette", "server", "rmq server")
    from rmq.server.http.api.application import Api
    from rmq.server.http.api.disclosure import Disclosure

    return Api(make_client, server, leads, services, Disclosure(redact), missing=missing)


def make_application(
    live: Problems,
    ready: Problems,
    metrics: ServerMetrics,
    api: Api,
    authentication: Authentication,
    hosts: Collection[str],
    rate: float,
    root_path: str,
) -> Starlette:
    """Return the application.

    Args:
        live: returns what hangs in the process.
        ready: returns why it is of no use at the moment.
        metrics: what `/metrics` shows.
        api: what `/api/v1` answers.
        authentication: finds out who asks.
        hosts: names of the server, without those of this machine.
        rate: requests a second that a principal may make from an address.
        root_path: below which a reverse proxy serves it; empty: at the top.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from rmq.server.console.application import Console
    from rmq.server.http.guard import Guard

    def probe(problems: Problems) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            found = problems()
            return JSONResponse({"ok": not found, "problems": found}, 503 if found else 200)

        return answer

    async def answer_metrics(request: Request) -> Response:
        return Response(
            await run_in_threadpool(metrics.text), headers={"Content-Type": metrics.content_type}
        )

    async def index(request: Request) -> Response:
        root = root_of(request.scope)
        return JSONResponse({"paths": [root + path for path in PATHS]})

    console = Console(api)

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
            Middleware(RootPath, root=root_path),
            Middleware(Guard, hosts={*OWN_NAMES, *hosts}, authentication=authentication, rate=rate),
        ],
        exception_handlers={HTTPException: _refuse},
    )


def make_mounted(
    api: Api,
    authentication: Authentication,
    hosts: Collection[str],
    rate: float,
    sign_in_url: str | None,
    streams: bool,
) -> tuple[ASGIApp, Callable[[], AbstractAsyncContextManager[None]]]:
    """Return an application of the API and the console, and what opens it; see `ConsoleApp`."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    from rmq.server.console.application import Console
    from rmq.server.console.pages import WITHOUT_SIGN_IN
    from rmq.server.http.guard import Guard

    async def to_console(request: Request) -> Response:
        return RedirectResponse(root_of(request.scope) + "/console")

    console = Console(api, WITHOUT_SIGN_IN, sign_in_url=sign_in_url, streams=streams)
    app = Starlette(
        routes=[Route("/", to_console), *api.routes(), *console.routes()],
        exception_handlers={HTTPException: _refuse},
    )
    guard = Guard(app, hosts, authentication, rate)
    return guard, functools.partial(_opened, api, authentication, console, SECRET_MOUNTED_S)


@asynccontextmanager
async def _opened(
    api: Api, authentication: Authentication, console: Console, wait_s: float
) -> AsyncIterator[None]:
    """Have a client of Redis while requests are served; wait so long for the secret of forms."""
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

    from rmq.server.http.api import problems

    assert isinstance(error, HTTPException)
    id = secrets.token_hex(8)
    return problems.answer(problems.of_exception(error, id), id, dict(error.headers or {}))
