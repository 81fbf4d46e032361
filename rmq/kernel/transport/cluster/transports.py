"""Run flows on a Redis Cluster with blocking calls.

A flow is a generator that yields commands and waits.
"""

from __future__ import annotations

import copy

from rmq.kernel.transport.cluster.driver_blocking import ClusterDriver
from rmq.kernel.transport.errors import REDIS_ERRORS
from rmq.kernel.transport.hash_slots import hash_slot
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.single.subscription import SubscribedConnection


class ClusterTransport(ClusterDriver):
    """Runs flows on a cluster with blocking calls, for any number of threads.

    A flow is a generator that yields commands and waits.
    """

    uses_shard_channels = True

    def _temporary(self, timeout_s: float) -> Transport:
        temporary = copy.copy(self)
        temporary.retry_for, temporary.timeout_s = 0.0, timeout_s
        temporary._connector = self._connector.with_timeout(timeout_s)
        temporary._cluster = temporary._new_commands()
        temporary._pools = temporary._new_pools()
        temporary._pools.base_epoch = self.epoch  # the flow may still read from its subscription
        return temporary

    def _close_temporary(self) -> None:
        self._pools.close()

    def add_channel(self, subscribed: SubscribedConnection, channel: bytes) -> bool:
        """Subscribe to one more shard channel, at the master of its slot.

        See `Transport.add_channel`.
        """
        slot = hash_slot(channel)
        node = self._table.node_of(slot)
        if node is None or node in self._table.failed_nodes:
            return False
        connection = (
            subscribed.connection if node == subscribed.node else subscribed.others.get(node)
        )
        if connection is None:
            connection = self._connection_to(node)
            try:
                connection.connect()
            except REDIS_ERRORS:
                self._table.note_failed(node)
                return False
            subscribed.others[node] = connection
            subscribed.reader.watch(connection)
        connection.send_command("SSUBSCRIBE", channel)
        subscribed.shards[slot] = node
        return True

    def is_current(self, subscribed: SubscribedConnection) -> bool:
        """Return whether a subscription still gets all messages of its channels.

        This is true if no connection has died since the subscription began. Each shard channel must
        also have the same master as before.
        """
        return subscribed.epoch == self.epoch and all(
            self._table.node_of(slot) in (node, None) for slot, node in subscribed.shards.items()
        )
