"""Operations on the nodes of a Redis Cluster, beside those of `operations`."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.transport.cluster_slots import Node


class NodeExchange:
    """Packed commands for one node.

    Args:
        node: to send them to.
        packed: what is sent.
        count: how many commands they are.
        is_brief: the caller has other nodes to go on with, and does not wait long for this one.
    """

    __slots__ = ("count", "is_brief", "node", "packed")

    def __init__(self, node: Node, packed: bytes, count: int, is_brief: bool = False) -> None:
        self.node = node
        self.packed = packed
        self.count = count
        self.is_brief = is_brief


class ExchangeAll:
    """Send to several nodes at once, no node twice.

    The value has for each its replies, server errors included, or the error that ended it.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[NodeExchange]) -> None:
        self.parts = sorted(parts, key=lambda part: part.node)


class RefreshTable:
    """Read which node serves which slot, unless that was done since `version`."""

    __slots__ = ("version",)

    def __init__(self, version: int) -> None:
        self.version = version
