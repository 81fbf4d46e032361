"""The asyncio transport on a Redis Cluster. Twin of `cluster_sync`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from rmq.core.settings import Fsync, Replicated
from rmq.protocol.scripts import Script
from rmq.protocol.steps import AwaitSignal, Command, OnEveryMaster, Step
from rmq.transport import shard_channels
from rmq.transport.asyncio import AsyncTransport
from rmq.transport.cluster_calls import ClusterCalls
from rmq.transport.cluster_operations import ExchangeAll, RefreshTable
from rmq.transport.cluster_slots import Node, SlotTable
from rmq.transport.node_pools import AsyncNodePools
from rmq.transport.operations import Operation, Subscribe
from rmq.transport.pool import NotConnected, PooledConnection
from rmq.transport.subscription import SubscribedConnection
from rmq.transport.url import Address

T = TypeVar("T")


class AsyncClusterTransport(AsyncTransport):
    """Drives flows inside one event loop, on a cluster. Twin of `ClusterTransport`."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        super().__init__(address, retry_for, timeout_s)
        self._table = SlotTable(address.nodes)
        self._loaded: dict[Node, set[Script]] = {}
        self._cluster_calls = ClusterCalls(address, retry_for, timeout_s, self._table, self._loaded)
        self._pools = self._new_pools()

    async def close(self) -> None:
        """Close every connection."""
        await super().close()
        await self._current_pools().close()

    @property
    def epoch(self) -> int:
        """Grows when connections have died: an older subscription is made anew."""
        return self._current_pools().epoch

    @property
    def _idle(self) -> list[PooledConnection]:
        return self._current_pools().idle

    async def raw_command(self, name: str, *words: Any) -> Any:
        """As `Transport.raw_command`."""
        return await self._drive(self._cluster_calls.raw_command(name, words))

    async def _command(self, command: Command[T]) -> T:
        value: T = await self._drive(self._cluster_calls.command(command))
        return value

    async def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        return await self._drive(self._cluster_calls.pipeline(commands, durability))

    async def _step(self, step: Step) -> Any:
        if isinstance(step, AwaitSignal):
            shard_channels.follow(step.subscription, self._table)
        if isinstance(step, OnEveryMaster):
            return await self._drive(self._cluster_calls.on_every_master(step))
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
        """Return the pools of this event loop; a program may run one loop after another."""
        loop = asyncio.get_running_loop()
        if self._pools.is_inherited or self._pools.loop not in (None, loop):
            self._pools = self._new_pools()
        self._pools.loop = loop
        return self._pools

    async def _refresh(self, version: int) -> None:
        """Read the table of slots; once for all tasks that ask at the same time."""
        pools = self._current_pools()
        async with pools.refreshing:
            if self._table.version == version:
                await self._drive(self._cluster_calls.read_table())
                await pools.keep(self._table.nodes)

    async def _subscribed(self, wanted: Subscribe) -> SubscribedConnection:
        """Return a connection that is subscribed, at any node: each hears what others publish.

        With a shard channel, at the master of its slot.
        """
        if not self._table.version:
            await self._refresh(0)
        node = shard_channels.node_for(wanted, self._table)
        if node is None:
            raise NotConnected("no node of the cluster is known")
        connection = self._connector.new(protocol=2, host=node[0], port=node[1])
        try:
            subscribed = await self._subscribed_on(wanted, connection)
        except NotConnected:
            self._table.note_failed(node)
            raise
        shard_channels.note_node(subscribed, wanted, node)
        return subscribed
