# Generated from rmq/kernel/transport/sentinel/master_pool.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.kernel.transport.sentinel.master_pool`."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import redis

from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.connections.failures import StaleConnection
from rmq.kernel.transport.connections.pool import SLOW_S, Pool, PooledConnection
from rmq.kernel.transport.sentinel.master_finder_blocking import MasterFinder
from rmq.kernel.transport.sentinel.master_pool import ROLE, check_role, finder_arguments
from rmq.kernel.transport.url import Address


class MasterConnection(redis.Connection):
    """A connection of redis-py that connects only to the master, and refuses any other server.

    Args:
        finder: Finds the master.
        options: Options of redis-py.
    """

    def __init__(self, *, finder: MasterFinder, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call, unused-ignore]
        self._finder = finder

    def connect(self) -> None:
        """Connect to the master that the sentinels name, and check its role."""
        self.host, self.port = self._finder.locate()
        super().connect()  # type: ignore[no-untyped-call]
        self.send_packed_command(  # type: ignore[no-untyped-call, unused-ignore]
            (ROLE,), check_health=False
        )
        check_role(self.read_response(), self)


class MasterSSLConnection(MasterConnection, redis.SSLConnection):
    """`MasterConnection` with TLS."""


class SentinelPool(Pool):
    """Connections to the master of a service, for threads.

    Args:
        connector: Connector to the master and to the sentinels.
        address: Address of the sentinels.
        wait_s: Maximum wait of a caller for a connection, in seconds.
        timeout_s: Maximum wait of a connection for a reply, in seconds.
    """

    def __init__(
        self, connector: Connector, address: Address, wait_s: float, timeout_s: float
    ) -> None:
        self._finder = MasterFinder(*finder_arguments(connector, address, timeout_s))
        self._moves = 0  # `moves` of the finder at the last check of the idle connections
        kind = MasterSSLConnection if address.is_tls else MasterConnection
        new = partial(connector.new, kind, finder=self._finder)
        super().__init__(new, address.max_connections, wait_s, timeout_s)

    def acquire(self) -> PooledConnection:
        """Return a connection to the current master, as `Pool.acquire` describes."""
        self._finder.refresh()
        while True:
            if self._moves != self._finder.moves:
                self._moves = self._finder.moves
                super().close()
            pooled = super().acquire()
            if self._finder.leads_to_master(pooled.connection):
                pooled.acquired_at = time.monotonic()
                return pooled
            self.discard(pooled, with_idle=False)

    def read(self, pooled: PooledConnection, count: int) -> list[Any]:
        """Read replies as `Pool.read` does.

        If a former master replies slowly, the method treats the reply as lost.
        """
        slow_at = pooled.acquired_at + SLOW_S
        replies = super().read(pooled, count)
        if time.monotonic() > slow_at:
            self._finder.forget()
            self._finder.refresh()
            if not self._finder.confirms(pooled.connection):
                super().close()
                raise StaleConnection("a former master answered late")
        return replies

    def close(self) -> None:
        """Close the idle connections, and the connection to the sentinel."""
        super().close()
        self._finder.close()
