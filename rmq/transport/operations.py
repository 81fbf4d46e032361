"""Low-level operations on connections, and the attempts at a command as a generator of them.

Generators of operations hold the rules that both transports share: when to repeat, what to load,
how to listen. `Transport` performs the operations with blocking calls, `AsyncTransport`
awaits them; neither contains a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import hiredis

from rmq.protocol.steps import Subscription
from rmq.transport.cluster_operations import ExchangeAll, RefreshTable
from rmq.transport.redis_errors import REDIS_ERRORS, Kind, kind_of
from rmq.transport.retry_deadline import RetryDeadline

T = TypeVar("T")


class Exchange:
    """Send packed commands on one connection. The value is their replies, server errors included.

    `count`: how many commands they are.
    """

    __slots__ = ("count", "packed")

    def __init__(self, packed: bytes, count: int) -> None:
        self.packed = packed
        self.count = count


class Pause:
    """Wait for so many seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class RestartEmbedded:
    """Start the embedded server again if it is gone."""

    __slots__ = ()


class Subscribe:
    """Make a connection that is subscribed to channels. The value is a SubscribedConnection.

    `optional`: channels that are left out where the ACL forbids them. `shard`: a shard channel,
    left out where it is refused.
    """

    __slots__ = ("optional", "required", "shard")

    def __init__(
        self, required: Sequence[bytes], optional: Sequence[bytes] = (), shard: bytes = b""
    ) -> None:
        self.required = required
        self.optional = optional
        self.shard = shard

    def packed(self) -> bytes:
        """Return the commands, one for each channel."""
        words: list[tuple[Any, ...]] = [
            ("SUBSCRIBE", channel) for channel in (*self.required, *self.optional)
        ]
        if self.shard:
            words.append(("SSUBSCRIBE", self.shard))
        return b"".join(map(hiredis.pack_command, words))


class Unsubscribe:
    """Close the connection of a subscription."""

    __slots__ = ("subscription",)

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription


class SendPing:
    """Send PING on a connection of redis-py; its reply is read later."""

    __slots__ = ("connection",)

    def __init__(self, connection: Any) -> None:
        self.connection = connection


class Read:
    """Read one reply from a SubscribedConnection.

    The value is None if none comes in time, RUNG if the wait is interrupted. A read that an
    exception ends has lost nothing: the next one goes on.
    """

    __slots__ = ("subscribed", "timeout_s")

    def __init__(self, subscribed: Any, timeout_s: float) -> None:
        self.subscribed = subscribed
        self.timeout_s = timeout_s


Operation = (
    Exchange
    | Pause
    | RestartEmbedded
    | Subscribe
    | Unsubscribe
    | SendPing
    | Read
    | ExchangeAll
    | RefreshTable
)
Operations = Generator[Operation, Any, T]


def call(*words: Any) -> Operations[Any]:
    """Send one command; return its reply, or raise the server's error."""
    (reply,) = yield Exchange(hiredis.pack_command(words), 1)
    if isinstance(reply, BaseException):
        raise reply
    return reply


def repeat(
    attempt: Callable[[], Operations[T]],
    deadline: RetryDeadline,
    error: BaseException | None = None,
) -> Operations[T]:
    """Attempt until it succeeds, is refused (raised as it is), or the deadline has passed.

    Args:
        attempt: makes the operations of one attempt.
        deadline: decides about pauses and the end.
        error: of an attempt that was made already.
    """
    while True:
        if error is not None:
            if kind_of(error) is Kind.REFUSED:
                raise error
            yield Pause(deadline.next_pause(error))
            yield RestartEmbedded()
        try:
            return (yield from attempt())
        except REDIS_ERRORS as failure:
            error = failure
