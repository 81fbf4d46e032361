"""Define the operations on connections, which blocking and async transports share.

The generators in `server_commands`, `cluster_commands` and `subscription` do no I/O themselves.
They yield these operations. `Transport` performs the operations with blocking calls, and
`AsyncTransport` awaits them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from rmq.kernel.transport.connections.pool import pack
from rmq.kernel.transport.flow.steps import Subscription
from rmq.kernel.transport.hash_slots import Node

T = TypeVar("T")


class Exchange:
    """Sends packed commands on one connection.

    The operation returns the list of replies. If the server replies with an error, the error is an
    item of this list.

    Args:
        packed: The commands, as the bytes to send.
        count: Number of commands, which is also the number of replies.
        late: Whether the reply may take long, for example because the server waits for replicas.
    """

    __slots__ = ("count", "late", "packed")

    def __init__(self, packed: bytes, count: int, late: bool = False) -> None:
        self.packed = packed
        self.count = count
        self.late = late


class Pause:
    """Waits for a number of seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class RestartEmbedded:
    """Restarts the embedded server if it has ended."""

    __slots__ = ()


class Subscribe:
    """Makes a connection that is subscribed to channels.

    The operation returns a SubscribedConnection.

    Args:
        required: Channels that the subscription must have.
        optional: Channels that the subscription omits if the ACL forbids them.
        shard: A shard channel that the subscription omits if the server refuses it.
    """

    __slots__ = ("optional", "required", "shard")

    def __init__(
        self, required: Sequence[bytes], optional: Sequence[bytes] = (), shard: bytes = b""
    ) -> None:
        self.required = required
        self.optional = optional
        self.shard = shard

    def packed(self) -> bytes:
        """Encode the commands that subscribe, one for each channel."""
        words: list[tuple[Any, ...]] = [
            ("SUBSCRIBE", channel) for channel in (*self.required, *self.optional)
        ]
        if self.shard:
            words.append(("SSUBSCRIBE", self.shard))
        return b"".join(map(pack, words))


class Unsubscribe:
    """Closes the connection of a subscription."""

    __slots__ = ("subscription",)

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription


class SendCommand:
    """Sends a command on a connection of redis-py. A later operation reads the reply."""

    __slots__ = ("connection", "words")

    def __init__(self, connection: Any, *words: Any) -> None:
        self.connection = connection
        self.words = words


class Read:
    """Reads one reply from a SubscribedConnection.

    The operation returns None if no reply arrived in time. It returns INTERRUPTED if a call of
    `wake` ended the wait. If an exception interrupts the read, no data is lost, because the next
    read continues.
    """

    __slots__ = ("subscribed", "timeout_s")

    def __init__(self, subscribed: Any, timeout_s: float) -> None:
        self.subscribed = subscribed
        self.timeout_s = timeout_s


class NodeExchange:
    """Packed commands for one node of a cluster.

    Args:
        node: The node.
        packed: The commands, as the bytes to send.
        count: Number of commands.
        is_brief: Whether to wait only ANSWER_S seconds, because the caller can continue
            with other nodes.
        late: Whether the reply may take long, for example because the server waits for replicas.
    """

    __slots__ = ("count", "is_brief", "late", "node", "packed")

    def __init__(
        self, node: Node, packed: bytes, count: int, is_brief: bool = False, late: bool = False
    ) -> None:
        self.node = node
        self.packed = packed
        self.count = count
        self.is_brief = is_brief
        self.late = late


class ExchangeAll:
    """Sends commands to several nodes at the same time.

    The operation returns a list with an item for each node: the list of the node's replies, or the
    error of its connection. If a node replies with an error, the error is one of the replies.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[NodeExchange]) -> None:
        self.parts = sorted(parts, key=lambda part: part.node)


class RefreshTable:
    """Reads from the cluster which node serves which hash slot.

    If another caller has already read a newer version of this table, the operation does nothing.
    """

    __slots__ = ("version",)

    def __init__(self, version: int) -> None:
        self.version = version


Operation = (
    Exchange
    | Pause
    | RestartEmbedded
    | Subscribe
    | Unsubscribe
    | SendCommand
    | Read
    | ExchangeAll
    | RefreshTable
)
Operations = Generator[Operation, Any, T]


def call(*words: Any) -> Operations[Any]:
    """Send one command. Return its reply, or raise the server's error."""
    (reply,) = yield Exchange(pack(words), 1)
    if isinstance(reply, BaseException):
        raise reply
    return reply
