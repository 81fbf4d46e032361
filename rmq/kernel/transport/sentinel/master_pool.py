"""Connections to the master that the sentinels name, and pools of them.

Four rules keep a client away from a server that was the master, and does not know yet that it is
none (one that was stopped, or cut off, accepts writes for ten seconds after it wakes up):
- a new connection goes where the sentinels say, and is used only if the server says `master`, too;
- kept connections are used for a second without asking the sentinels again;
- when they name another server, all idle connections are closed, and a new epoch begins, so that
  subscriptions are made anew. Connections that were in use are closed before their next use;
- after a slow reply they are asked again. It counts only if its server is the master still, because
  one that stood still answers, when it wakes up, what was sent to it before its failover.

Where no sentinel answers, the client goes on with the master that it knows.
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
from rmq.kernel.transport.connections.pool import (
    SLOW_S,
    AsyncPool,
    PooledConnection,
    StaleConnection,
)
from rmq.kernel.transport.sentinel.master_finder import ANSWER_TIMEOUT_S, AsyncMasterFinder
from rmq.kernel.transport.url import Address, HostPort, Sentinels

ROLE = hiredis.pack_command(("ROLE",))


class NotMaster(redis.ConnectionError):
    """The server that the sentinels named does not say that it is the master."""


def check_role(reply: Any, connection: Any) -> None:
    """Raise NotMaster unless a server says that it is the master. `reply`: to ROLE."""
    if reply[0] != b"master":
        raise NotMaster(
            f"{connection.host}:{connection.port} says that its role is {reply[0].decode()}, and "
            "the sentinels that it is the master"
        )


class AsyncMasterConnection(aredis.Connection):
    """A connection of redis-py that goes to the master, and demands that it be one.

    Args:
        finder: knows where it is.
        options: of redis-py.
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
    """`AsyncMasterConnection` by TLS."""


class AsyncSentinelPool(AsyncPool):
    """Connections for tasks of one event loop, to the master of a service.

    Args:
        connector: how to connect to the master, and to the sentinels.
        address: of the sentinels.
        wait_s: as of `AsyncPool`.
        timeout_s: as of `AsyncPool`.
    """

    def __init__(
        self, connector: Connector, address: Address, wait_s: float, timeout_s: float
    ) -> None:
        self._finder = AsyncMasterFinder(*how_to_ask(connector, address, timeout_s))
        self._moves = 0  # of the finder, when the connections here were looked at
        kind = AsyncMasterSSLConnection if address.is_tls else AsyncMasterConnection
        new = partial(connector.new, kind, finder=self._finder)
        super().__init__(new, address.max_connections, wait_s, timeout_s)

    async def take(self) -> PooledConnection:
        """As `AsyncPool.take`, for a connection to the present master."""
        await self._finder.refresh()
        while True:
            if self._moves != self._finder.moves:
                self._moves = self._finder.moves
                await super().close()
            pooled = await super().take()
            if self._finder.leads_to_master(pooled.connection):
                pooled.taken_at = time.monotonic()
                return pooled
            await self.discard(pooled, with_idle=False)

    async def read(self, pooled: PooledConnection, count: int) -> list[Any]:
        """As `AsyncPool.read`. A slow reply of a former master counts as lost."""
        slow_at = pooled.taken_at + SLOW_S
        replies = await super().read(pooled, count)
        if time.monotonic() > slow_at:
            self._finder.forget()
            await self._finder.refresh()
            if not self._finder.confirms(pooled.connection):
                await super().close()
                raise StaleConnection("a former master answered late")
        return replies

    async def close(self) -> None:
        """As `AsyncPool.close`."""
        await super().close()
        await self._finder.close()


def how_to_ask(
    connector: Connector, address: Address, timeout_s: float
) -> tuple[Sentinels, str, Callable[[HostPort], Any]]:
    """Return what a finder needs: the sentinels, the URL, and how to connect to one of them."""
    sentinels = address.sentinels
    assert sentinels is not None
    connect = partial(_sentinel_connection, connector, sentinels, timeout_s)
    return sentinels, address.shown, connect


def _sentinel_connection(
    connector: Connector, sentinels: Sentinels, timeout_s: float, sentinel: HostPort
) -> Any:
    """Return a connection to a sentinel, not yet connected."""
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
