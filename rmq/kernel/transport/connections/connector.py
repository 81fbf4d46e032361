"""Make the connections of a transport: redis-py's class for a URL, and the options of each one."""

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

CONNECT_TIMEOUT_S = 5.0  # to make a connection, unless the client waits less for a reply
# The kernel checks silent connections, because routers forget them after minutes.
# `CLIENT LIST` tells RMQ's connections by it: lib-name=redis-py(rmq_v...). A redis-py that
# has it, and is not given it, reads its own version from a file for each connection: 0.5 ms.
DRIVER: dict[str, Any] = {}
with contextlib.suppress(ImportError):
    from redis.driver_info import DriverInfo

    DRIVER["driver_info"] = DriverInfo().add_upstream_driver("rmq", VERSION)
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class _Packer(HiredisRespSerializer):
    """Packs the commands of redis-py itself, such as SELECT; its async connections have another."""

    def pack(self, *words: Any) -> list[bytes]:
        """Return a command as it is sent."""
        packed: list[bytes] = super().pack(*as_text(words))
        return packed


class Connector:
    """Makes connections to an address, or to the embedded server of a directory.

    Args:
        address: the server.
        timeout_s: how long a connection waits for a reply.
        pool_class: redis-py's ConnectionPool, sync or asyncio; RMQ has pools of its own, and takes
            from this one how a URL becomes a connection.
        retry_class: the Retry that belongs to it; RMQ alone repeats commands.
        embedded: the server of an `embedded://` address.
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
        """Return a new connection of redis-py, not yet connected.

        Args:
            kind: the class; by default redis-py's for the URL.
            changes: of its options.

        Raises:
            ConfigurationError: the client is closed.
        """
        if self._is_closed:
            raise ConfigurationError("this client is closed; make another, or close it later")
        factory = self._factory
        return (kind or factory.connection_class)(**{**factory.connection_kwargs, **changes})

    def with_timeout(self, timeout_s: float) -> Connector:
        """Return a connector to the same server whose connections wait no longer for a reply."""
        return Connector(
            self._address, timeout_s, self._pool_class, self._retry_class, self.embedded
        )

    def restart_embedded(self) -> None:
        """Start the embedded server again if it is gone; new connections go where it is now."""
        if self.embedded is None:
            return
        before = self.embedded.socket
        with contextlib.suppress(EmbeddedError):
            self.embedded.ensure()
        if self.embedded.socket != before:
            self._factory = self._read_url()

    def close(self) -> None:
        """Make no more connections; close the embedded server if this is its last user."""
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
        """The options of every connection, whatever the defaults of this redis-py are."""
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
            "protocol": 2,  # every server and proxy speaks it; RMQ needs nothing of RESP3
            "socket_timeout": self._timeout_s,
            "socket_connect_timeout": min(self._timeout_s, CONNECT_TIMEOUT_S),
            **({} if scheme in ("unix", "embedded") else keepalive),
            **({"ssl_check_hostname": True} if self._address.is_tls else {}),
        }

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise ConfigurationError where the URL or an option of it cannot work."""
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
