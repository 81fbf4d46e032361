"""The blocking transport on a Redis Cluster. Its rules are in `cluster_calls`."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import redis

from rmq.core import fork
from rmq.core.settings import Fsync, Replicated
from rmq.protocol.scripts import Script
from rmq.protocol.steps import AwaitSignal, Command, Step
from rmq.transport.cluster_calls import ClusterCalls
from rmq.transport.cluster_operations import ExchangeAll, NodeExchange, RefreshTable
from rmq.transport.cluster_slots import Node, SlotTable
from rmq.transport.connector import Connector
from rmq.transport.operations import Operation, Subscribe
from rmq.transport.pool import NotConnected, Pool, PooledConnection, as_stale, is_not_master
from rmq.transport.redis_errors import REDIS_ERRORS
from rmq.transport.subscription import SubscribedConnection
from rmq.transport.sync import Transport
from rmq.transport.url import Address

T = TypeVar("T")


class NodePools:
    """The connections to the nodes of a cluster, for threads.

    Args:
        connector: makes connections.
        size: how many there may be to one node.
        wait_s: how long a caller waits for one.
        timeout_s: how long a connection waits for a reply.

    Attributes:
        epoch: grows when connections to any node have died, or the nodes have changed.
    """

    def __init__(self, connector: Connector, size: int, wait_s: float, timeout_s: float) -> None:
        self._connector = connector
        self._limits = size, wait_s, timeout_s
        self._generation = fork.generation
        self._by_node: dict[Node, Pool] = {}
        self.refreshing = threading.Lock()
        self.epoch = 0

    @property
    def is_inherited(self) -> bool:
        """Whether this process has forked since: the connections are its parent's."""
        return self._generation != fork.generation

    @property
    def idle(self) -> list[PooledConnection]:
        """The connections that are open and not in use."""
        return [pooled for pool in list(self._by_node.values()) for pooled in pool.idle]

    def keep(self, nodes: frozenset[Node]) -> None:
        """Close the connections to all other nodes."""
        for node in self._by_node.keys() - nodes:
            self._by_node.pop(node).close()
            self.epoch += 1

    def close(self) -> None:
        """Close the connections that are not in use."""
        for pool in list(self._by_node.values()):
            pool.close()

    def exchange_all(self, parts: Sequence[NodeExchange]) -> list[Any]:
        """Write to all nodes, then read from all; return the replies of each, or its error."""
        # A thread holds the connections of several nodes; as all take them in the same order, no
        # two wait for each other.
        unread: list[tuple[Pool, PooledConnection] | BaseException] = []
        results: list[Any] = []
        try:
            for part in parts:
                unread.append(self._write(part))
            for part in parts:
                sent = unread.pop(0)
                results.append(sent if isinstance(sent, BaseException) else self._read(part, *sent))
        except BaseException:
            # A late reply must not answer the next command.
            for sent in unread:
                if not isinstance(sent, BaseException):
                    sent[0].discard(sent[1], with_idle=False)
            raise
        return results

    def _write(self, part: NodeExchange) -> tuple[Pool, PooledConnection] | BaseException:
        pool = self._pool_of(part.node)
        try:
            pooled = pool.take()
        except REDIS_ERRORS as error:
            return error
        try:
            pooled.connection.send_packed_command((part.packed,), check_health=False)
        except REDIS_ERRORS as error:
            return self._end(pool, pooled, error)
        except BaseException:
            pool.discard(pooled, with_idle=False)
            raise
        return pool, pooled

    def _read(self, part: NodeExchange, pool: Pool, pooled: PooledConnection) -> Any:
        replies: list[Any] = []
        wrong_server = False
        try:
            for _ in range(part.count):
                try:
                    replies.append(pooled.connection.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
                    wrong_server = wrong_server or is_not_master(error)
        except REDIS_ERRORS as error:
            return self._end(pool, pooled, error)
        except BaseException:
            pool.discard(pooled, with_idle=False)
            raise
        if wrong_server:
            self._discard(pool, pooled, with_idle=True)
        else:
            pool.give(pooled)
        return replies

    def _end(self, pool: Pool, pooled: PooledConnection, error: BaseException) -> BaseException:
        """Discard a connection that failed; return the error that its user gets."""
        was_used = pooled.used_at > 0
        self._discard(pool, pooled, with_idle=was_used or is_not_master(error))
        return as_stale(error) if was_used else error

    def _discard(self, pool: Pool, pooled: PooledConnection, with_idle: bool) -> None:
        before = pool.epoch
        pool.discard(pooled, with_idle)
        if pool.epoch != before:
            self.epoch += 1

    def _pool_of(self, node: Node) -> Pool:
        pool = self._by_node.get(node)
        if pool is None:
            new = partial(self._connector.new, host=node[0], port=node[1])
            pool = self._by_node.setdefault(node, Pool(new, *self._limits))
        return pool


class ClusterTransport(Transport):
    """Drives flows with blocking calls, on a cluster. Threads may share it.

    The arguments are `Transport`'s. `max_connections` of the address holds for each node.
    """

    takes_hand_overs = False

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        super().__init__(address, retry_for, timeout_s)
        self._table = SlotTable(address.nodes)
        self._loaded: dict[Node, set[Script]] = {}
        self._cluster_calls = self._new_calls()
        self._pools = self._new_pools()

    def connection_options(self) -> dict[str, Any]:
        """Return what another program needs to connect to the same cluster, as JSON."""
        return {
            **super().connection_options(),
            "nodes": [list(node) for node in self.address.nodes],
        }

    def close(self) -> None:
        """Close every connection."""
        super().close()
        self._current_pools().close()

    @property
    def epoch(self) -> int:
        """Grows when connections have died: a subscription of before is made anew."""
        return self._current_pools().epoch

    @property
    def _idle(self) -> list[PooledConnection]:
        return self._current_pools().idle

    def raw_command(self, name: str, *words: Any) -> Any:
        """As `Transport.raw_command`."""
        return self._drive(self._cluster_calls.raw_command(name, words))

    def _command(self, command: Command[T]) -> T:
        value: T = self._drive(self._cluster_calls.command(command))
        return value

    def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        return self._drive(self._cluster_calls.pipeline(commands, durability))

    def _step(self, step: Step) -> Any:
        if isinstance(step, AwaitSignal):
            step.subscription.takes_batches = False
        return super()._step(step)

    def _brief(self, timeout_s: float) -> Transport:
        brief = copy.copy(self)
        brief.retry_for, brief.timeout_s = 0.0, timeout_s
        brief._connector = self._connector.with_timeout(timeout_s)
        brief._cluster_calls = brief._new_calls()
        brief._pools = brief._new_pools()
        brief._pools.epoch = self.epoch  # of the subscription that the flow may still read
        return brief

    def _end_brief(self) -> None:
        self._pools.close()

    def _perform(self, operation: Operation) -> Any:
        if isinstance(operation, ExchangeAll):
            return self._current_pools().exchange_all(operation.parts)
        if isinstance(operation, RefreshTable):
            return self._refresh(operation.version)
        return super()._perform(operation)

    def _new_calls(self) -> ClusterCalls:
        return ClusterCalls(self.address, self.retry_for, self.timeout_s, self._table, self._loaded)

    def _new_pools(self) -> NodePools:
        wait_s = self.timeout_s + self.retry_for
        return NodePools(self._connector, self.address.max_connections, wait_s, self.timeout_s)

    def _current_pools(self) -> NodePools:
        """Return the pools of this process; a fork gets some of its own."""
        if self._pools.is_inherited:
            self._pools = self._new_pools()
        return self._pools

    def _refresh(self, version: int) -> None:
        """Read the table of slots; once for all threads that ask at the same time."""
        pools = self._current_pools()
        with pools.refreshing:
            if self._table.version == version:
                self._drive(self._cluster_calls.read_table())
                pools.keep(self._table.nodes)

    def _subscribed(self, wanted: Subscribe) -> SubscribedConnection:
        """Return a connection that is subscribed, at any node: each hears what others publish."""
        if not self._table.version:
            self._refresh(0)
        node = self._table.any_node()
        if node is None:
            raise NotConnected("no node of the cluster is known")
        connection = self._connector.new(protocol=2, host=node[0], port=node[1])
        try:
            return self._subscribed_on(wanted, connection)
        except NotConnected:
            self._table.suspects.add(node)
            raise
