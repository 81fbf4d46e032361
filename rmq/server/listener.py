"""The thread that serves an ASGI application with uvicorn."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq.errors import ConfigurationError
from rmq.kernel.core import packages
from rmq.server.config import CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS, Address

if TYPE_CHECKING:
    from starlette.applications import Starlette


KEEP_ALIVE_S = 5
START_S = 10.0


class Listener:
    """Serves an application over HTTP from `start` to `stop`.

    Args:
        application: ASGI application.
        address: Address to listen on. Port 0 chooses a free port.
        connections: Maximum number of connections in total, and maximum number from one address.
        is_proxy: Function that returns whether an address belongs to a trusted proxy. The limit per
            address does not apply to a trusted proxy.
    """

    def __init__(
        self,
        application: Starlette,
        address: Address,
        connections: tuple[int, int] = (CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS),
        is_proxy: Callable[[str], bool] = lambda address: False,
    ) -> None:
        uvicorn = packages.load("uvicorn", "server", "rmq server")
        from rmq.server.protocol import HEAD_MAX, Connections, LimitedProtocol

        self._address = address
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                lifespan="on",
                http=functools.partial(LimitedProtocol, Connections(*connections, is_proxy)),
                proxy_headers=False,  # the guard reads them, from trusted proxies only
                ws="none",
                loop="asyncio",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=2,
                h11_max_incomplete_event_size=2 * HEAD_MAX,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="rmq-http", daemon=True)
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Start to listen, and return when the server answers requests.

        Raises:
            ConfigurationError: The address is not available.
        """
        host, port = self._address
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(kind, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            listening.close()
            raise ConfigurationError(
                f"listen: {self._address}: {error.strerror}; set another one: --listen HOST:PORT"
            ) from None
        self._socket = listening
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not self._server.started:
            raise ConfigurationError(f"listen: {self._address}: the HTTP server does not start")

    @property
    def url(self) -> str:
        """URL of the server."""
        assert self._socket is not None, "start it first"
        return f"http://{Address(self._address.host, self._socket.getsockname()[1])}"

    def stop(self, wait_s: float) -> None:
        """Finish the running requests, and stop."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        if self._socket is not None:
            self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])
