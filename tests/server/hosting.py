"""Applications that have the console mounted, served on a free port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from starlette.requests import HTTPConnection

from rmq.server import Principal, Role
from tests.server.running import PATIENCE_S, until

USERS = {
    "ann": Principal("ann", Role.ADMIN),
    "oli": Principal("oli", Role.OPERATOR),
    "vic": Principal("vic", Role.VIEWER),
}


async def principal(connection: HTTPConnection) -> Principal | None:
    """The user in the cookie of the host; a host of a test believes it."""
    return USERS.get(connection.cookies.get("user", ""))


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An ASGI application behind uvicorn, in a thread; yields its address."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2, ws="none")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started or not thread.is_alive(), "uvicorn")
        assert server.started
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@contextmanager
def answering(server: HTTPServer) -> Iterator[str]:
    """A server of the standard library, in a thread; yields its address."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served_wsgi(app: Any) -> Iterator[str]:
    """A WSGI application behind wsgiref with a thread for each request; yields its address."""
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIServer

    class Threaded(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    server = make_server("127.0.0.1", 0, app, server_class=Threaded, handler_class=_Quiet)
    with answering(server) as url:
        yield url
