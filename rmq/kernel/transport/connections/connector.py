"""Make the connections of a transport.

The URL selects the class and the options of redis-py's connections.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer

from rmq.errors import ConfigurationError, EmbeddedError
from rmq.kernel.core.packages import VERSION
from rmq.kernel.transport.connections.pool import as_text
from rmq.kernel.transport.embedded.embedded import Embedded
from rmq.kernel.transport.errors import REDIS_ERRORS, translate
from rmq.kernel.transport.url import Address

CONNECT_TIMEOUT_S = 5.0  # to make a connection, or the client's timeout if it is shorter
# `CLIENT LIST` shows it as lib-name=redis-py(rmq_v...). Without it, newer versions of redis-py read
# their own version from a file for each connection, which takes 0.5 ms.
DRIVER: dict[str, Any] = {}
with contextlib.suppress(ImportError):
    from redis.driver_info import DriverInfo

    DRIVER["driver_info"] = DriverInfo().add_upstream_driver("rmq", VERSION)
# The kernel checks silent connections, because routers forget them after minutes.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class _Packer(HiredisRespSerializer):
    """Encodes the commands that redis-py itself sends on a blocking connection, such as SELECT."""

    def pack(self, *words: Any) -> list[bytes]:
        packed: list[bytes] = super().pack(*as_text(words))
        return packed


class Connector:
    """Creates connections to an address, or to the embedded server of a directory.

    Args:
        address: Address of the server.
        timeout_s: Maximum wait of a connection for a reply, in seconds.
        pool_class: Class ConnectionPool of redis-py, blocking or asyncio. RMQ uses this class only
            to read the URL, and has its own pools.
        retry_class: Class Retry of redis-py, blocking or asyncio. RMQ uses this class to turn off
            the retries of redis-py.
        embedded: Server of an `embedded://` address.
    """

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        pool_class: Any,
        retry_class: Any,
        embedded: Embedded | None,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._pool_class = pool_class
        self._retry_class = retry_class
        self.embedded = embedded
        self._is_closed = False
        self._factory = self._read_url()

    def new(self, kind: Any = None, **changes: Any) -> Any:
        """Return a new connection object of redis-py, which is not connected yet.

        Args:
            kind: Class of the connection, or None for redis-py's class for the URL.
            changes: Options that replace options of the URL.

        Raises:
            ConfigurationError: The client is closed.
        """
        if self._is_closed:
            raise ConfigurationError("this client is closed; make another, or close it later")
        factory = self._factory
        return (kind or factory.connection_class)(**{**factory.connection_kwargs, **changes})

    def with_timeout(self, timeout_s: float) -> Connector:
        """Return a connector to the same server with another timeout."""
        return Connector(
            self._address, timeout_s, self._pool_class, self._retry_class, self.embedded
        )

    def restart_embedded(self) -> None:
        """Restart the embedded server if it has ended.

        New connections then use the new socket of the server.
        """
        if self.embedded is None:
            return
        before = self.embedded.socket
        with contextlib.suppress(EmbeddedError):
            self.embedded.ensure()
        if self.embedded.socket != before:
            self._factory = self._read_url()

    def close(self) -> None:
        """Close this connector, so that it makes no more connections.

        If no other connector uses the embedded server, the method also stops the server.
        """
        self._is_closed = True
        if self.embedded is not None:
            self.embedded.close()

    def _read_url(self) -> Any:
        with self._translated_errors():
            url = self._address.url
            if self.embedded is not None:
                url = "unix://" + self.embedded.socket
            elif self._address.sentinels is not None:
                url = self._address.sentinels.data_url
            retry = self._retry_class(NoBackoff(), 0)
            factory = self._pool_class.from_url(url, retry=retry, **self._options())
            factory.connection_kwargs.pop("calls", None)  # RMQ's own
            factory.connection_class(**factory.connection_kwargs)  # refuses unknown options
            return factory

    def _options(self) -> dict[str, Any]:
        """Return all options of a connection, so that redis-py uses none of its defaults."""
        keepalive = {
            "socket_keepalive": True,
            "socket_keepalive_options": {
                getattr(socket, name): seconds
                for name, seconds in _KEEPALIVE.items()
                if hasattr(socket, name)
            },
        }
        scheme = self._address.scheme
        return {
            **DRIVER,
            **({"command_packer": _Packer()} if self._pool_class is ConnectionPool else {}),
            "decode_responses": False,
            "protocol": 2,  # each server and proxy supports it; RMQ does not need RESP3
            "socket_timeout": self._timeout_s,
            "socket_connect_timeout": min(self._timeout_s, CONNECT_TIMEOUT_S),
            **({} if scheme in ("unix", "embedded") else keepalive),
            **({"ssl_check_hostname": True} if self._address.is_tls else {}),
        }

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise ConfigurationError if the URL or an option of the URL is wrong."""
        try:
            yield
        except REDIS_ERRORS as error:
            raise translate(error, "connect", []) from error
        except ValueError as error:
            raise ConfigurationError(f"url: {self._address.shown}: {error}") from None
        except TypeError as error:
            option = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if option is None:
                raise
            raise ConfigurationError(
                f"url: {self._address.shown}: there is no option {option.group(1)!r}; correct its "
                "name or leave it out. Options are those of redis-py's connections, "
                "max_connections and calls"
            ) from None
