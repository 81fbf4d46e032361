"""Keep connections to the nodes of a Redis Cluster, in two pools for each node.

A connection of the first pool waits for a reply as long as the client's timeout. A connection of
the second pool waits only ANSWER_S seconds. The second pool is for callers that can continue with
other nodes.

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
from rmq.kernel.transport.connections.operations import NodeExchange
from rmq.kernel.transport.connections.pool import AsyncPool, Pool, PooledConnection
from rmq.kernel.transport.errors import REDIS_ERRORS
from rmq.kernel.transport.hash_slots import Node

ANSWER_S = 1.0  # longest wait of a brief exchange to connect, and for each part of a reply

P = TypeVar("P", Pool, AsyncPool)


class _NodePoolsState(Generic[P]):
    """The pools of connections to all nodes. Subclasses are for threads and for tasks.

    Args:
        kind: Class of the pools.
        connector: Object that creates connections.
        size: Maximum number of connections to one node.
        wait_s: Maximum wait of a caller for a connection, in seconds.
        timeout_s: Maximum wait of a connection for a reply, in seconds.

    Attributes:
        base_epoch: Sum of the epochs of removed pools, so that `epoch` never becomes smaller.
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
        # First for normal exchanges, then for brief exchanges.
        self._connectors = connector, connector.with_timeout(brief_s)
        self._limits = (size, wait_s, timeout_s), (size, brief_s, brief_s)
        self._generation = process.generation
        self._pools: dict[tuple[Node, bool], P] = {}
        self.base_epoch = 0

    @property
    def epoch(self) -> int:
        return self.base_epoch + sum(pool.epoch for pool in list(self._pools.values()))

    @property
    def is_own(self) -> bool:
        return self._generation == process.generation

    def _pool_of(self, part: NodeExchange) -> P:
        key = (host, port), is_brief = part.node, part.is_brief
        pool = self._pools.get(key)
        if pool is None:
            new = partial(self._connectors[is_brief].new, host=host, port=port)
            pool = self._pools.setdefault(key, self._kind(new, *self._limits[is_brief]))
        return pool

    def _remove_others(self, nodes: frozenset[Node]) -> list[P]:
        removed = [self._pools.pop(key) for key in list(self._pools) if key[0] not in nodes]
        self.base_epoch += sum(pool.epoch + 1 for pool in removed)
        return removed


class NodePools(_NodePoolsState[Pool]):
    """Connections to nodes for threads."""

    def __init__(self, connector: Connector, size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(Pool, connector, size, wait_s, timeout_s)
        self.refreshing = threading.Lock()

    def keep(self, nodes: frozenset[Node]) -> None:
        """Close the connections to all nodes that are not in `nodes`."""
        for pool in self._remove_others(nodes):
            pool.close()

    def close(self) -> None:
        """Close the idle connections to all nodes."""
        for pool in list(self._pools.values()):
            pool.close()

    def exchange_all(self, parts: Sequence[NodeExchange]) -> list[Any]:
        """Send commands to all nodes, then read their replies.

        Returns:
            The replies of each node, or the error of its connection.
        """
        # All threads take connections in the order of the nodes, so no two wait for each other.
        unread: list[tuple[Pool, PooledConnection] | BaseException] = []
        results: list[Any] = []
        try:
            for part in parts:
                unread.append(self._send(part))
            for part in parts:
                sent = unread.pop(0)
                results.append(sent if isinstance(sent, BaseException) else _read(part, *sent))
        except BaseException:
            # Otherwise the next command would read a late reply.
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
    """Connections to nodes for the tasks of one event loop, used like `NodePools`."""

    def __init__(self, connector: Connector, size: int, wait_s: float, timeout_s: float) -> None:
        super().__init__(AsyncPool, connector, size, wait_s, timeout_s)
        self.loop: asyncio.AbstractEventLoop | None = None  # event loop of the connections
        self.refreshing = asyncio.Lock()

    @property
    def is_own(self) -> bool:
        """Whether this process and event loop may use the pools.

        The first event loop that reads this property becomes the owner of the pools.
        """
        loop = asyncio.get_running_loop()
        self.loop = self.loop or loop
        return self.loop is loop and super().is_own

    async def keep(self, nodes: frozenset[Node]) -> None:
        """Close the connections to all nodes that are not in `nodes`."""
        for pool in self._remove_others(nodes):
            await pool.close()

    async def close(self) -> None:
        """Close the idle connections to all nodes."""
        for pool in list(self._pools.values()):
            await pool.close()

    async def exchange_all(self, parts: Sequence[NodeExchange]) -> list[Any]:
        """Send commands to all nodes at the same time, and read their replies.

        Returns:
            The replies of each node, or the error of its connection.
        """
        if len(parts) == 1:
            return [await self._exchange(parts[0])]
        return list(await asyncio.gather(*map(self._exchange, parts)))

    async def _exchange(self, part: NodeExchange) -> Any:
        pool = self._pool_of(part)
        try:
            return await pool.exchange(part.packed, part.count, part.late)
        except REDIS_ERRORS as error:
            return error
