# Generated from rmq/kernel/transport/cluster/driver.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.kernel.transport.cluster.driver`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.transport.cluster.cluster_commands import ClusterCommands
from rmq.kernel.transport.cluster.driver import T
from rmq.kernel.transport.cluster.node_pools import ANSWER_S, NodePools
from rmq.kernel.transport.connections.failures import NotConnected
from rmq.kernel.transport.connections.operations import (
    ExchangeAll,
    Operation,
    RefreshTable,
    Subscribe,
)
from rmq.kernel.transport.flow.steps import (
    AcceptsTransactions,
    AwaitSignal,
    Command,
    OnEveryMaster,
    Step,
)
from rmq.kernel.transport.hash_slots import Node, SlotTable
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.single import subscription
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.single.subscription import SubscribedConnection
from rmq.kernel.transport.url import Address


class ClusterDriver(Transport):
    """Runs flows on a cluster, for threads.

    A flow is a generator that yields commands and waits. The arguments are the same as for
    `Transport`. The `max_connections` of the address limits the connections to each node.
    """

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
        """A number that grows when connections have died.

        RMQ then replaces subscriptions that have a smaller number.
        """
        return self._current_pools().epoch

    def raw_command(self, name: str, *words: Any) -> Any:
        """Execute a plain command. See `Transport.raw_command`."""
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
            return True  # nodes of a cluster are Redis servers and no proxies
        return super()._step(step)

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
        if not self._pools.is_own:
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

        Each node gets all Pub/Sub messages, so the connection may lead to any node. Only a shard
        channel needs a certain node, the master of its slot.
        """
        if not self._table.version:
            self._refresh(0)
        node = subscription.node_for(wanted, self._table)
        if node is None:
            raise NotConnected("no node of the cluster is known")
        connection = self._connection_to(node)
        try:
            subscribed = self._subscribed_on(wanted, connection)
        except NotConnected:
            self._table.note_failed(node)
            raise
        subscription.note_node(subscribed, wanted, node)
        return subscribed

    def _connection_to(self, node: Node) -> Any:
        """Return a new, unconnected connection for the Pub/Sub messages of a node.

        The connection waits only ANSWER_S seconds for the node, because the caller can continue
        with other nodes. If the node does not answer, RMQ does not try it again for some time.
        """
        brief_s = min(ANSWER_S, self.timeout_s)
        timeouts = {"socket_timeout": brief_s, "socket_connect_timeout": brief_s}
        return self._connector.new(protocol=2, host=node[0], port=node[1], **timeouts)
