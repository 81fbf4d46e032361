"""Run flows on a Redis Cluster, blocking or with asyncio.

`cluster_commands` has the rules: which node gets a command, and which commands are repeated.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.transport.cluster.cluster_commands import ClusterCommands
from rmq.kernel.transport.cluster.node_pools import ANSWER_S, AsyncNodePools, NodePools
from rmq.kernel.transport.connections.failures import NotConnected
from rmq.kernel.transport.connections.operations import (
    ExchangeAll,
    Operation,
    RefreshTable,
    Subscribe,
)
from rmq.kernel.transport.connections.pool import PooledConnection
from rmq.kernel.transport.errors import REDIS_ERRORS
from rmq.kernel.transport.flow.steps import (
    AcceptsTransactions,
    AwaitSignal,
    Command,
    OnEveryMaster,
    Step,
)
from rmq.kernel.transport.hash_slots import Node, SlotTable, hash_slot
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.single import subscription
from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.single.subscription import SubscribedConnection
from rmq.kernel.transport.url import Address

T = TypeVar("T")


def _new_subscriber(transport: Transport | AsyncTransport, node: Node) -> Any:
    """Return a new, unconnected connection for Pub/Sub messages of a node.

    The connection waits only ANSWER_S seconds for the node, because the caller can continue with
    other nodes. If a node does not answer, it is not used for some time.
    """
    brief_s = min(ANSWER_S, transport.timeout_s)
    timeouts = {"socket_timeout": brief_s, "socket_connect_timeout": brief_s}
    return transport._connector.new(protocol=2, host=node[0], port=node[1], **timeouts)


class AsyncClusterTransport(AsyncTransport):
    """Runs flows on a cluster, for the tasks of one event loop.

    It has the same arguments as `ClusterTransport`.
    """

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        super().__init__(address, retry_for, timeout_s)
        self._table = SlotTable(address.nodes)
        self._loaded: dict[Node, set[Script]] = {}
        self._cluster = ClusterCommands(address, retry_for, timeout_s, self._table, self._loaded)
        self._pools = self._new_pools()

    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        await self._current_pools().close()

    @property
    def epoch(self) -> int:
        """A number that grows whenever connections have died.

        Subscriptions that began at a smaller number are replaced.
        """
        return self._current_pools().epoch

    @property
    def _idle(self) -> list[PooledConnection]:
        return self._current_pools().idle

    async def raw_command(self, name: str, *words: Any) -> Any:
        """Execute a plain command, as `Transport.raw_command` describes."""
        return await self._drive(self._cluster.raw_command(name, words))

    async def _command(self, command: Command[T]) -> T:
        value: T = await self._drive(self._cluster.command(command))
        return value

    async def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        return await self._drive(self._cluster.pipeline(commands, durability))

    async def _step(self, step: Step) -> Any:
        if isinstance(step, AwaitSignal):
            subscription.follow(step.subscription, self._table)
        if isinstance(step, OnEveryMaster):
            return await self._drive(self._cluster.on_every_master(step))
        if isinstance(step, AcceptsTransactions):
            return True  # nodes of a cluster are Redis servers and no proxies
        return await super()._step(step)

    async def _perform(self, operation: Operation) -> Any:
        if isinstance(operation, ExchangeAll):
            return await self._current_pools().exchange_all(operation.parts)
        if isinstance(operation, RefreshTable):
            return await self._refresh(operation.version)
        return await super()._perform(operation)

    def _new_pools(self) -> AsyncNodePools:
        wait_s = self.timeout_s + self.retry_for
        return AsyncNodePools(self._connector, self.address.max_connections, wait_s, self.timeout_s)

    def _current_pools(self) -> AsyncNodePools:
        """Return the pools of this event loop.

        If a program runs several loops one after another, each loop gets its own pools.
        """
        loop = asyncio.get_running_loop()
        if self._pools.is_inherited or self._pools.loop not in (None, loop):
            self._pools = self._new_pools()
        self._pools.loop = loop
        return self._pools

    async def _refresh(self, version: int) -> None:
        """Read which node serves which slot. Simultaneous callers share one read."""
        pools = self._current_pools()
        async with pools.refreshing:
            if self._table.version == version:
                await self._drive(self._cluster.read_table())
                await pools.keep(self._table.nodes)

    async def _subscribed(self, wanted: Subscribe) -> SubscribedConnection:
        """Return a connection that is subscribed to channels.

        Any node may be used, because each node gets all Pub/Sub messages.

        Only a shard channel needs a certain node, which is the master of its slot.
        """
        if not self._table.version:
            await self._refresh(0)
        node = subscription.node_for(wanted, self._table)
        if node is None:
            raise NotConnected("no node of the cluster is known")
        connection = _new_subscriber(self, node)
        try:
            subscribed = await self._subscribed_on(wanted, connection)
        except NotConnected:
            self._table.note_failed(node)
            raise
        subscription.note_node(subscribed, wanted, node)
        return subscribed


class ClusterTransport(Transport):
    """Runs flows on a cluster with blocking calls, for any number of threads.

    It has the arguments of `Transport`. The `max_connections` of the address limits the
    connections to each node.
    """

    uses_shard_channels = True

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        super().__init__(address, retry_for, timeout_s)
        self._table = SlotTable(address.nodes)
        self._loaded: dict[Node, set[Script]] = {}
        self._cluster = self._new_commands()
        self._pools = self._new_pools()

    def close(self) -> None:
        """Close all connections."""
        super().close()
        self._current_pools().close()

    @property
    def epoch(self) -> int:
        """A number that grows whenever connections have died.

        Subscriptions that began at a smaller number are replaced.
        """
        return self._current_pools().epoch

    @property
    def _idle(self) -> list[PooledConnection]:
        return self._current_pools().idle

    def raw_command(self, name: str, *words: Any) -> Any:
        """Execute a plain command, as `Transport.raw_command` describes."""
        return self._drive(self._cluster.raw_command(name, words))

    def _command(self, command: Command[T]) -> T:
        value: T = self._drive(self._cluster.command(command))
        return value

    def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        return self._drive(self._cluster.pipeline(commands, durability))

    def _step(self, step: Step) -> Any:
        if isinstance(step, AwaitSignal) and step.subscription.wait is None:
            subscription.follow(step.subscription, self._table)
        if isinstance(step, OnEveryMaster):
            return self._drive(self._cluster.on_every_master(step))
        if isinstance(step, AcceptsTransactions):
            return True
        return super()._step(step)

    def _brief(self, timeout_s: float) -> Transport:
        brief = copy.copy(self)
        brief.retry_for, brief.timeout_s = 0.0, timeout_s
        brief._connector = self._connector.with_timeout(timeout_s)
        brief._cluster = brief._new_commands()
        brief._pools = brief._new_pools()
        brief._pools.base_epoch = self.epoch  # the flow may still read from its subscription
        return brief

    def _end_brief(self) -> None:
        self._pools.close()

    def _perform(self, operation: Operation) -> Any:
        if isinstance(operation, ExchangeAll):
            self.commands += sum(part.count for part in operation.parts)
            return self._current_pools().exchange_all(operation.parts)
        if isinstance(operation, RefreshTable):
            return self._refresh(operation.version)
        return super()._perform(operation)

    def _new_commands(self) -> ClusterCommands:
        return ClusterCommands(
            self.address, self.retry_for, self.timeout_s, self._table, self._loaded
        )

    def _new_pools(self) -> NodePools:
        wait_s = self.timeout_s + self.retry_for
        return NodePools(self._connector, self.address.max_connections, wait_s, self.timeout_s)

    def _current_pools(self) -> NodePools:
        """Return the pools of this process. A forked process gets its own pools."""
        if self._pools.is_inherited:
            self._pools = self._new_pools()
        return self._pools

    def _refresh(self, version: int) -> None:
        """Read which node serves which slot. Simultaneous callers share one read."""
        pools = self._current_pools()
        with pools.refreshing:
            if self._table.version == version:
                self._drive(self._cluster.read_table())
                pools.keep(self._table.nodes)

    def _subscribed(self, wanted: Subscribe) -> SubscribedConnection:
        """Return a connection that is subscribed to channels.

        Any node may be used, because each node gets all Pub/Sub messages.

        Only a shard channel needs a certain node, which is the master of its slot.
        """
        if not self._table.version:
            self._refresh(0)
        node = subscription.node_for(wanted, self._table)
        if node is None:
            raise NotConnected("no node of the cluster is known")
        connection = _new_subscriber(self, node)
        try:
            subscribed = self._subscribed_on(wanted, connection)
        except NotConnected:
            self._table.note_failed(node)
            raise
        subscription.note_node(subscribed, wanted, node)
        return subscribed

    def add_channel(self, subscribed: SubscribedConnection, channel: bytes) -> bool:
        """Subscribe to one more shard channel, at the master of its slot.

        See `Transport.add_channel`.
        """
        slot = hash_slot(channel)
        node = self._table.node_of(slot)
        if node is None or node in self._table.suspects:
            return False
        connection = (
            subscribed.connection if node == subscribed.node else subscribed.others.get(node)
        )
        if connection is None:
            connection = _new_subscriber(self, node)
            try:
                connection.connect()
            except REDIS_ERRORS:
                self._table.note_failed(node)
                return False
            subscribed.others[node] = connection
            subscribed.waiting.watch(connection)
        connection.send_command("SSUBSCRIBE", channel)
        subscribed.shards[slot] = node
        return True

    def is_current(self, subscribed: SubscribedConnection) -> bool:
        """Return whether a subscription still gets all messages of its channels.

        This is true if no connection has died since the subscription began, and if its shard
        channels still have the same masters.
        """
        return subscribed.epoch == self.epoch and all(
            self._table.node_of(slot) in (node, None) for slot, node in subscribed.shards.items()
        )
