"""The ASGI application of the server: probes, metrics, and what else is mounted.

/livez    200 unless something hangs in the process, which a new one may mend; a Redis that is away
          is no reason to kill it
/readyz   200 while Redis runs scripts for this server, else 503
/metrics  for Prometheus
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmq.core import optional_imports

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from rmq.server.http.metrics import ServerMetrics

Problems = Callable[[], list[str]]


def make_application(
    live: Problems, ready: Problems, metrics: ServerMetrics, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """Return the application.

    Args:
        live: returns what hangs in the process.
        ready: returns why it is of no use at the moment.
        metrics: what `/metrics` shows.
        routes: of the other parts.
    """
    optional_imports.load("starlette", "server", "rmq server")
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

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
        return JSONResponse({"paths": ["/livez", "/readyz", "/metrics"]})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/livez", probe(live)),
            Route("/readyz", probe(ready)),
            Route("/metrics", answer_metrics),
            *routes,
        ]
    )
