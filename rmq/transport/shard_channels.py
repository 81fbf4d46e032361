"""Shard channels of a Redis Cluster, for hand-overs: the master of a hash slot serves its own.

A consumer's connection is made to that master, and hears the wake-up channel there as well. When
calls learn that the slot has moved, the connection is given up and made anew.
"""

from __future__ import annotations

from redis.exceptions import AskError

from rmq.protocol.steps import Subscription
from rmq.transport.cluster_slots import Node, SlotTable, hash_slot
from rmq.transport.operations import Subscribe
from rmq.transport.redis_errors import Kind, kind_of
from rmq.transport.subscription import SubscribedConnection


def node_for(wanted: Subscribe, table: SlotTable) -> Node | None:
    """Return the node to subscribe at: the master of the shard channel, if it answers, else any."""
    node = table.node_of(hash_slot(wanted.shard)) if wanted.shard else None
    return table.any_node() if node is None or node in table.suspects else node


def note_node(subscribed: SubscribedConnection, wanted: Subscribe, node: Node) -> None:
    """Note the node of a connection; none if it could serve the shard channel, and does not yet."""
    refusal = subscribed.refused.get(wanted.shard)
    subscribed.node = None if refusal is not None and is_for_now(refusal) else node


def is_for_now(refusal: BaseException) -> bool:
    """Whether a shard channel may be served soon, or elsewhere."""
    return isinstance(refusal, AskError) or kind_of(refusal) is Kind.AGAIN


def follow(subscription: Subscription, table: SlotTable) -> None:
    """Let a subscription give up its connection if its topic's slot is served elsewhere now."""
    subscription.is_sharded = True
    held = subscription.held
    if isinstance(held, SubscribedConnection) and subscription.takes_hand_overs:
        node = table.node_of(hash_slot(subscription.slot_channel))
        if node not in (None, held.node) and node not in table.suspects:
            subscription.is_deaf = True
