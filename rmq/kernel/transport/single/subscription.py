"""Wait for wake-ups on subscribed channels, and detect dead connections.

A worker has one `Listener` for all its topics (module `blocking`). On a Redis Cluster, a consumer
connects to the master that serves its shard channel, and reconnects when another node serves it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import redis
from redis.exceptions import AskError

from rmq.kernel.transport.connections.operations import (
    Operations,
    Pause,
    Read,
    SendCommand,
    Subscribe,
    Unsubscribe,
)
from rmq.kernel.transport.errors import REDIS_ERRORS, Kind, code_of, forbids, kind_of, translate
from rmq.kernel.transport.flow.steps import POLL_S, Subscription
from rmq.kernel.transport.hash_slots import Node, SlotTable, hash_slot
from rmq.kernel.transport.single.retry_deadline import FIRST_PAUSE_S, RetryDeadline, repeat


def node_for(wanted: Subscribe, table: SlotTable) -> Node | None:
    """Return the node of the cluster at which to subscribe.

    This is the master that serves the shard channel. If this master does not answer, it is any
    node.
    """
    node = table.node_of(hash_slot(wanted.shard)) if wanted.shard else None
    return table.any_node() if node is None or node in table.failed_nodes else node


def note_node(subscribed: SubscribedConnection, wanted: Subscribe, node: Node) -> None:
    """Record the node to which a subscribed connection leads.

    If the server refused the shard channel, and RMQ must try again, record None.
    """
    refusal = subscribed.refused.get(wanted.shard)
    subscribed.node = None if refusal is not None and is_for_now(refusal) else node


def is_for_now(refusal: BaseException) -> bool:
    """Return whether the server, or another node, may later accept a refused shard channel."""
    return isinstance(refusal, AskError) or kind_of(refusal) is Kind.AGAIN


def follow(subscription: Subscription, table: SlotTable) -> None:
    """Let a subscription reconnect if another node of the cluster now serves the topic's slot."""
    subscription.is_sharded = True
    subscribed = subscription.connection
    if isinstance(subscribed, SubscribedConnection) and subscription.accepts_hand_overs:
        node = table.node_of(hash_slot(subscription.slot_channel))
        if node not in (None, subscribed.node) and node not in table.failed_nodes:
            subscription.must_reconnect = True


log = logging.getLogger("rmq")

PING_S = 10.0  # a subscription sends a PING after this silence
PONG_S = 5.0  # longest wait for the reply to PING
INTERRUPTED: Any = object()  # result of a read that was interrupted
PRECISION_S = 0.0015  # below this, a socket's millisecond timeouts are too coarse to be on time


class SubscribedConnection:
    """A connection that is subscribed to channels, and that detects a dead server.

    Args:
        connection: A connection of redis-py.
        epoch: Epoch of the pool when the connection was made.
        refused: Channels to which the connection could not subscribe, with the errors.
        reader: Object that reads from the connection, and lets another thread or task end a
            wait.

    Attributes:
        node: Node of the cluster to which the connection leads.
        others: Connections to other nodes of the cluster, which are read together with this
            connection.
        shards: Node of each added shard channel, by hash slot.
    """

    is_active = True

    __slots__ = (
        "_pinged_at", "connection", "epoch", "node", "others", "reader", "refused", "shards",
    )  # fmt: skip

    def __init__(
        self,
        connection: Any,
        epoch: int,
        refused: Mapping[bytes, Exception] = MappingProxyType({}),
        reader: Any = None,
    ) -> None:
        self.connection = connection
        self.epoch = epoch
        self.refused = refused
        self.node: tuple[str, int] | None = None
        self.others: dict[tuple[str, int], Any] = {}
        self.shards: dict[int, tuple[str, int]] = {}
        self.reader = reader
        self._pinged_at = 0.0  # a reply that was read after this time has answered the PING

    def is_to_ping(self) -> bool:
        """Return whether the caller must send a PING now, because the server was silent for long.

        The method then assumes that the caller sends the PING.
        """
        now, last_reply_at = time.monotonic(), self.reader.last_reply_at
        if self._pinged_at > last_reply_at or now < last_reply_at + PING_S:
            return False
        self._pinged_at = now
        return True

    def note_reply(self, reply: Any, signals: set[int], subscription: Subscription) -> None:
        """Store the content of a reply that Redis sent on this connection.

        A reply may be a wake-up, which says that a slot (part of a topic) has messages.

        Args:
            reply: Reply as redis-py has read it.
            signals: Set of slot indexes. If the reply is a wake-up, the method adds the slot.
            subscription: Subscription of the consumer. It stores messages on the consumer's own
                channel.
        """
        if not isinstance(reply, list) or len(reply) != 3:
            return
        if reply[0] == b"sunsubscribe":
            raise redis.ConnectionError("the slot of a shard channel is served elsewhere")
        if reply[0] == b"subscribe":
            subscription.note_subscribed((reply[1],))
            return
        if reply[0] not in (b"message", b"smessage"):
            return
        if reply[1] == subscription.own_channel:
            subscription.payloads.append(reply[2])
            return
        subscription.note_signal(reply[1], reply[2], signals)

    def note_silence(self) -> None:
        """Check that a silent connection is still alive.

        Raises:
            redis.ConnectionError: The server did not answer a PING in time, so the connection is
                dead.
        """
        is_unanswered = self._pinged_at > self.reader.last_reply_at
        if is_unanswered and time.monotonic() > self._pinged_at + PONG_S:
            raise redis.ConnectionError(f"a subscription did not answer for {PONG_S:g} s")


class SubscriptionRefused:
    """Takes the place of a subscription that the ACL or the server does not permit.

    The consumer then polls every POLL_S seconds, and tries to subscribe again after RETRY_S
    seconds. So the consumer needs no restart when the ACL is corrected.
    """

    RETRY_S = 60.0
    is_active = False
    logged = False  # whether this process has logged the refusal
    no_hand_over_logged = False

    def __init__(self, channel: bytes, refusal: BaseException) -> None:
        self.until = time.monotonic() + self.RETRY_S
        if not SubscriptionRefused.logged:
            SubscriptionRefused.logged = True
            rule = f"'&{channel.decode().split('{')[0]}*'"
            log.warning(
                "Redis does not let this user SUBSCRIBE to %s: nothing is lost, but a waiting "
                "consumer notices new messages up to %g s late. %s",
                channel.decode(), POLL_S,
                f"Give the user the channels: ACL SETUSER <user> {rule}"
                if code_of(refusal) == "NOPERM" else f"It has no such command: {refusal}",
            )  # fmt: skip

    @classmethod
    def log_no_hand_over(cls, channel: bytes, is_sharded: bool) -> None:
        """Log that the ACL forbids the channel on which senders deliver directly."""
        if not cls.no_hand_over_logged:
            cls.no_hand_over_logged = True
            stem, verb = channel.decode().rpartition(":")[0], "SUBSCRIBE"
            rules = f"'&{stem.split('{')[0]}*'"
            if is_sharded:
                verb, rules = "SSUBSCRIBE", f"+ssubscribe {rules}"
            log.warning(
                "Redis does not let this user %s to %s:*: nothing is handed over to it, so it "
                "needs a call for each message. Give the user the channels: ACL SETUSER <user> %s",
                verb, stem, rules,
            )  # fmt: skip


def await_signal(
    subscription: Subscription, seconds: float, deadline: RetryDeadline, epoch: int
) -> Operations[set[int]]:
    """Wait for wake-ups, and return the slots of the topic that have new work.

    If no wake-up arrives in time, the result is empty. If there is no connection, the call
    subscribes and returns immediately. If the connection is dead, the call closes it, and the next
    call subscribes again.

    Args:
        subscription: Subscription, which keeps its connection between calls.
        seconds: Maximum wait.
        deadline: Retry deadline for subscribing.
        epoch: Current epoch of the pool. The call closes a connection from an older epoch, because
            this connection may lead to the wrong server.
    """
    subscribed, until, signals = subscription.connection, time.monotonic() + seconds, set[int]()
    if subscribed is None:
        yield from _subscribe(subscription, deadline)
    elif isinstance(subscribed, SubscriptionRefused):
        yield Pause(max(0.0, seconds))
        if time.monotonic() > subscribed.until:
            subscription.connection = None
    else:
        try:
            if subscription.must_reconnect:
                raise redis.ConnectionError("a subscription does not receive published messages")
            if subscribed.epoch != epoch:
                raise redis.ConnectionError("other connections of this client have died")
            for channel in subscription.missing_channels():
                yield SendCommand(subscribed.connection, "SUBSCRIBE", channel)
            yield from _read_signals(subscription, subscribed, until, signals)
            if until - time.monotonic() > seconds - PRECISION_S:
                # The signal was there before the wait, so more signals may be there.
                while (reply := (yield Read(subscribed, 0))) not in (None, INTERRUPTED):
                    subscribed.note_reply(reply, signals, subscription)
        except REDIS_ERRORS:
            yield Unsubscribe(subscription)
            yield Pause(min(FIRST_PAUSE_S, max(0.0, until - time.monotonic())))
    return signals


def _subscribe(subscription: Subscription, deadline: RetryDeadline) -> Operations[None]:
    def attempt() -> Operations[SubscribedConnection]:
        own = subscription.new_own_channel() if subscription.accepts_hand_overs else b""
        plain = [own] if own and not subscription.is_sharded else []
        shard = own if subscription.is_sharded else b""
        required = subscription.required_channels()
        connection: SubscribedConnection = yield Subscribe(required, plain, shard)
        refusal = connection.refused.get(own)
        subscription.forget_messages(b"" if refusal else own)
        subscription.note_subscribed(required)
        if refusal is not None and code_of(refusal) == "NOPERM":
            SubscriptionRefused.log_no_hand_over(own, subscription.is_sharded)
        return connection

    try:
        subscription.connection = yield from repeat(attempt, deadline)
    except REDIS_ERRORS as error:
        if not forbids(error):
            raise translate(error, "listen", [subscription.channel.decode()]) from error
        subscription.connection = SubscriptionRefused(subscription.channel, error)
        subscription.own_channel = b""


def _read_signals(
    subscription: Subscription, subscribed: SubscribedConnection, until: float, signals: set[int]
) -> Operations[None]:
    """Read until the wait ends, or a wake-up or a message on the consumer's own channel arrives."""
    while not (signals or subscription.payloads):
        left_s = until - time.monotonic()
        if left_s <= PRECISION_S:
            if left_s > 0:
                yield Pause(left_s)
            return
        if subscribed.is_to_ping():
            yield SendCommand(subscribed.connection, "PING")
        reply = yield Read(subscribed, left_s - PRECISION_S)
        if reply is INTERRUPTED:
            return
        if reply is None:
            subscribed.note_silence()
        else:
            subscribed.note_reply(reply, signals, subscription)
