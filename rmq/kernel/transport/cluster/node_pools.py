"""Pools of connections to the nodes of a Redis Cluster: two for each node.

Those who have other nodes to go on with take connections of the second, which wait ANSWER_S for a
reply.

`NodePools` is for threads, `AsyncNodePools` for the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from rmq.kernel.core import process
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.connections.pool import AsyncPool, Pool, PooledConnection
from rmq.kernel.transport.errors import REDIS_ERRORS
from rmq.kernel.transport.hash_slots import Node, NodeExchange

ANSWER_S = 1.0  # how long a brief exchange waits to connect, and for each part of a reply

P = TypeVar("P", Pool, AsyncPool)


class _NodePoolsState(Generic[P]):
    """The pools, for threads or for tasks.

    Args:
        kind: of the pools.
        connector: makes connections.
        size: how many there may be to one node.
        wait_s: how long a caller waits for one.
        timeout_s: how long a connection waits for a reply.

    Attributes:
        base_epoch: of pools that are gone.
    """

    def __init__(
        self,
        kind: Callable[..., P],
        connector: Connector,
        size: int,
        wait_s: float,
        timeout_s: float,
    ) -> None:
        self._kind: Callable[..., P] = kind
        brief_s = min(ANSWER_S, timeout_s)
        # by whether they are for brief exchanges
        self._connectors = connector, connector.with_timeout(brief_s)
        self._limits = (size, wait_s, timeout_s), (size, brief_s, brief_s)
        self._generation = process.generation
        self._pools: dict[tuple[Node, bool], P] = {}
        self.base_epoch = 0

    @property
    def epoch(self) -> int:
        """Grows when connections to any node have died, or the nodes have changed."""
        return self.base_epoch + sum(pool.epoch for pool in list(self._pools.values()))

    @property
    def is_inherited(self) -> bool:
        """Whether this process has forked since: the connections are its parent's."""
        return self._generation != process.generation

    @property
    def idle(self) -> list[PooledConnection]:
        """The connections that are open and not in use."""
        return [pooled for pool in list(self._pools.values()) for pooled in pool.idle]

    def _pool_of(self, part: NodeExchange) -> P:
        key = (host, port), is_brief = part.node, part.is_brief
        pool = self._pools.get(key)
        if pool is None:
            new = partial(self._connectors[is_brief].new, host=host, port=port)
            pool = self._pools.setdefault(key, self._kind(new, *self._limits[is_brief]))
        return pool

    def _remove_others(self, nodes: frozenset[Node]) -> list[P]:
        """Return the pools of all other nodes, to be closed."""
        removed = [self._pools.pop(key) for key in list(self._pools) if key[0] not in nodes]
        self.base_epoch += sum(pool.epoch + 1 for pool in removed)
        return removed


class NodePools(_NodePoolsState[Pool]):
    """Connections for threads."""

    def __init__(self, connector: Connector, size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(Pool, connector, size, wait_s, timeout_s)
        self.refreshing = threading.Lock()

    def keep(self, nodes: frozenset[Node]) -> None:
        """Close the connections to all other nodes."""
        for pool in self._remove_others(nodes):
            pool.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        for pool in list(self._pools.values()):
            pool.close()

    def exchange_all(self, parts: Sequence[NodeExchange]) -> list[Any]:
        """Write to all nodes, then read from all; return the replies of each, or its error."""
        # A thread holds the connections of several nodes; as all take them in the same order, no
        # two wait for each other.
        unread: list[tuple[Pool, PooledConnection] | BaseException] = []
        results: list[Any] = []
        try:
            for part in parts:
                unread.append(self._send(part))
            for part in parts:
                sent = unread.pop(0)
                results.append(sent if isinstance(sent, BaseException) else _read(part, *sent))
        except BaseException:
            # A late reply must not answer the next command.
            for sent in unread:
                if not isinstance(sent, BaseException):
                    sent[0].discard(sent[1], with_idle=False)
            raise
        return results

    def _send(self, part: NodeExchange) -> tuple[Pool, PooledConnection] | BaseException:
        pool = self._pool_of(part)
        try:
            return pool, pool.send(part.packed)
        except REDIS_ERRORS as error:
            return error


def _read(part: NodeExchange, pool: Pool, pooled: PooledConnection) -> Any:
    try:
        return pool.read(pooled, part.count)
    except REDIS_ERRORS as error:
        return error


class AsyncNodePools(_NodePoolsState[AsyncPool]):
    """Connections for the tasks of one event loop. Twin of `NodePools`."""

    def __init__(self, connector: Connector, size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(AsyncPool, connector, size, wait_s, timeout_s)
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop of these connections
        self.refreshing = asyncio.Lock()

    async def keep(self, nodes: frozenset[Node]) -> None:
        """Close the connections to all other nodes."""
        for pool in self._remove_others(nodes):
            await pool.close()

    async def close(self) -> None:
        """Close the connections that are not in use."""
        for pool in list(self._pools.values()):
            await pool.close()

    async def exchange_all(self, parts: Sequence[NodeExchange]) -> list[Any]:
        """Send to all nodes at once; return the replies of each, or the error that ended it."""
        if len(parts) == 1:
            return [await self._exchange(parts[0])]
        return list(await asyncio.gather(*map(self._exchange, parts)))

    async def _exchange(self, part: NodeExchange) -> Any:
        pool = self._pool_of(part)
        try:
            return await pool.exchange(part.packed, part.count, part.late)
        except REDIS_ERRORS as error:
            return error
