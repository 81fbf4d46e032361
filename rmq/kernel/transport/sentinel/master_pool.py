"""Make and pool connections to the master that the sentinels name.

A former master that was frozen or disconnected may accept writes for ten seconds after it wakes up.
Four rules prevent clients from using such a server:

- A new connection goes to the server that the sentinels name. The pool uses the connection only if
  this server also reports that it is the master.
- After a query to the sentinels, the pool uses open connections for one second without a new query.
- If the sentinels name another server, the pool closes all idle connections. The pool also begins a
  new epoch, so that RMQ replaces subscriptions. The pool closes connections in use before their
  next use.
- After a slow reply, the pool queries the sentinels again. The pool uses the reply only if its
  server is still the master, because a frozen server answers old commands when it wakes up.

If no sentinel answers, the client continues with the last known master.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import hiredis
import redis
import redis.asyncio as aredis

from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.connections.failures import StaleConnection
from rmq.kernel.transport.connections.pool import SLOW_S, AsyncPool, PooledConnection
from rmq.kernel.transport.sentinel.master_finder import ANSWER_TIMEOUT_S, AsyncMasterFinder
from rmq.kernel.transport.url import Address, HostPort, Sentinels

ROLE = hiredis.pack_command(("ROLE",))


class NotMaster(redis.ConnectionError):
    """Raised if the sentinels name a server as the master, but this server has another role."""


def check_role(reply: Any, connection: Any) -> None:
    """Raise NotMaster unless the reply to ROLE says that the server is the master."""
    if reply[0] != b"master":
        raise NotMaster(
            f"{connection.host}:{connection.port} says that its role is {reply[0].decode()}, and "
            "the sentinels that it is the master"
        )


class AsyncMasterConnection(aredis.Connection):
    """A connection of redis-py that connects only to the master, and refuses any other server.

    Args:
        finder: Finds the master.
        options: Options of redis-py.
    """

    def __init__(self, *, finder: AsyncMasterFinder, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call, unused-ignore]
        self._finder = finder

    async def connect(self) -> None:
        """Connect to the master that the sentinels name, and check its role."""
        self.host, self.port = await self._finder.locate()
        await super().connect()  # type: ignore[no-untyped-call]
        await self.send_packed_command(  # type: ignore[no-untyped-call, unused-ignore]
            (ROLE,), check_health=False
        )
        check_role(await self.read_response(), self)


class AsyncMasterSSLConnection(AsyncMasterConnection, aredis.SSLConnection):
    """`AsyncMasterConnection` with TLS."""


class AsyncSentinelPool(AsyncPool):
    """Connections to the master of a service, for tasks of one event loop.

    Args:
        connector: Connector to the master and to the sentinels.
        address: Address of the sentinels.
        wait_s: Maximum wait of a caller for a connection, in seconds.
        timeout_s: Maximum wait of a connection for a reply, in seconds.
    """

    def __init__(
        self, connector: Connector, address: Address, wait_s: float, timeout_s: float
    ) -> None:
        self._finder = AsyncMasterFinder(*finder_arguments(connector, address, timeout_s))
        self._moves = 0  # `moves` of the finder at the last check of the idle connections
        kind = AsyncMasterSSLConnection if address.is_tls else AsyncMasterConnection
        new = partial(connector.new, kind, finder=self._finder)
        super().__init__(new, address.max_connections, wait_s, timeout_s)

    async def acquire(self) -> PooledConnection:
        """Return a connection to the current master, as `AsyncPool.acquire` describes."""
        await self._finder.refresh()
        while True:
            if self._moves != self._finder.moves:
                self._moves = self._finder.moves
                await super().close()
            pooled = await super().acquire()
            if self._finder.leads_to_master(pooled.connection):
                pooled.acquired_at = time.monotonic()
                return pooled
            await self.discard(pooled, with_idle=False)

    async def read(self, pooled: PooledConnection, count: int) -> list[Any]:
        """Read replies as `AsyncPool.read` does.

        If a former master replies slowly, the method treats the reply as lost.
        """
        slow_at = pooled.acquired_at + SLOW_S
        replies = await super().read(pooled, count)
        if time.monotonic() > slow_at:
            self._finder.forget()
            await self._finder.refresh()
            if not self._finder.confirms(pooled.connection):
                await super().close()
                raise StaleConnection("a former master answered late")
        return replies

    async def close(self) -> None:
        """Close the idle connections, and the connection to the sentinel."""
        await super().close()
        await self._finder.close()


def finder_arguments(
    connector: Connector, address: Address, timeout_s: float
) -> tuple[Sentinels, str, Callable[[HostPort], Any]]:
    """Return the arguments for a finder of the master: sentinels, URL, and a connect function."""
    sentinels = address.sentinels
    assert sentinels is not None
    connect = partial(_sentinel_connection, connector, sentinels, timeout_s)
    return sentinels, address.shown, connect


def _sentinel_connection(
    connector: Connector, sentinels: Sentinels, timeout_s: float, sentinel: HostPort
) -> Any:
    wait_s = min(timeout_s, ANSWER_TIMEOUT_S)
    return connector.new(
        host=sentinel[0],
        port=sentinel[1],
        db=0,
        username=sentinels.username,
        password=sentinels.password,
        protocol=2,
        socket_timeout=wait_s,
        socket_connect_timeout=wait_s,
    )
