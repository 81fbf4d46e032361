"""Subscriptions to wake-up channels: wait for a signal, and notice when the connection has died.

A worker's listener is one connection that is subscribed to the channels of many topics: one thread
waits on it, any thread may wake that one. A channel that the ACL refuses is left out, and asked for
again after a minute: its topic is polled meanwhile. Channels that are added later, for hand-overs,
end with the connection. On a Redis Cluster the master of a hash slot serves its shard channels, and
a consumer's connection is made to that master; where the slot has moved, it is made anew.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import AskError

from rmq.kernel.transport.errors import REDIS_ERRORS, Kind, code_of, forbids, kind_of, translate
from rmq.kernel.transport.flow.steps import POLL_S, Subscription
from rmq.kernel.transport.hash_slots import Node, SlotTable, hash_slot
from rmq.kernel.transport.single.script_calls import (
    FIRST_PAUSE_S,
    Operations,
    Pause,
    Read,
    RetryDeadline,
    SendPing,
    Subscribe,
    Unsubscribe,
    repeat,
)

if TYPE_CHECKING:
    from rmq.kernel.transport.single.blocking import Transport


Signal = tuple[bytes, bytes]  # channel, payload


class Listener:
    """Waits for what is published on the channels of many topics.

    Args:
        transport: makes the connection.
        channels: to subscribe to.
    """

    def __init__(self, transport: Transport, channels: Sequence[bytes]) -> None:
        self._transport = transport
        self._channels = channels
        self._held: SubscribedConnection | None = None
        self._retry_at = 0.0  # when to ask again for channels that the ACL refuses
        self.added: set[bytes] = set()  # channels that were added to this connection, confirmed
        self.has_missed = True  # signals may have been sent while nothing was subscribed

    @property
    def is_heard(self) -> bool:
        """Whether it has a connection, and Redis let it subscribe to all channels."""
        return self._held is not None and not self._held.refused

    def wake(self) -> None:
        """End the wait of the other thread, or its next one as it begins."""
        held = self._held
        if held is not None:
            held.waiting.ring()

    def add(self, channel: bytes) -> bool:
        """Ask for a further channel; return whether Redis was asked.

        It is in `added` once Redis has confirmed it.
        """
        if self._held is None:
            return False
        try:
            return self._transport.add_channel(self._held, channel)
        except REDIS_ERRORS:
            self.close_connection()
            return False

    def wait(self, seconds: float) -> list[Signal]:
        """Wait for signals; return those that are there.

        None are when `seconds` have passed, or `wake` was called.

        Without a connection it subscribes, sets `has_missed` and returns at once.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        until = time.monotonic() + seconds
        if self._held is not None and self._held.refused and time.monotonic() > self._retry_at:
            self.close_connection()
        if self._held is None:
            self._subscribe()
            return []
        signals: list[Signal] = []
        try:
            self._read(self._held, until, signals)
        except redis.ResponseError as error:  # of a channel that was added
            if isinstance(error, AskError) or kind_of(error) is Kind.AGAIN:
                self.close_connection()  # a shard channel, and its slot is served elsewhere
        except REDIS_ERRORS:
            self.close_connection()
        return signals

    def _read(self, held: SubscribedConnection, until: float, signals: list[Signal]) -> None:
        """Read until a signal comes, and all that has come by then."""

        def note(reply: Any) -> None:
            held.note_life()
            if not isinstance(reply, list) or len(reply) != 3:
                return
            if reply[0] in (b"message", b"smessage"):
                signals.append((reply[1], reply[2]))
            elif reply[0] in (b"subscribe", b"ssubscribe"):
                self.added.add(reply[1])
            elif reply[0] == b"sunsubscribe":
                raise redis.ConnectionError("the slot of a shard channel is served elsewhere")

        if not self._transport.is_current(held):
            raise redis.ConnectionError("other connections of this client have died")
        self._transport._drive(read_until(held, until, lambda: bool(signals), note))
        while (reply := held.waiting.read(0)) not in (None, RUNG):
            note(reply)

    def _subscribe(self) -> None:
        try:
            held = self._transport._subscribed(Subscribe((), self._channels))
        except REDIS_ERRORS as error:
            raise translate(error, "listen", [self._channels[0].decode()]) from error
        for channel, refusal in held.refused.items():
            self._retry_at = SubscriptionRefused(channel, refusal).until  # it is logged there
        self._held, self.has_missed = held, True

    def close_connection(self) -> None:
        """Close the connection; the next wait subscribes again."""
        held, self._held = self._held, None
        self.added.clear()
        if held is not None:
            for connection in (held.connection, *held.others.values()):
                with contextlib.suppress(*REDIS_ERRORS):
                    connection.disconnect()
            held.waiting.close()


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


log = logging.getLogger("rmq")

PING_S = 10.0  # a subscription that was silent for so long is sent a PING
PONG_S = 5.0  # how long its reply may take
RUNG: Any = object()  # what a read gives that was interrupted
PRECISION_S = 0.0015  # below this, a socket's millisecond timeouts are too coarse to be on time


class SubscribedConnection:
    """A connection that is subscribed to channels, and when it was last known to live."""

    is_heard = True

    __slots__ = (
        "_heard_at", "_pinged_at", "connection", "epoch", "node", "others", "refused", "shards",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        connection: Any,
        epoch: int,
        refused: Mapping[bytes, Exception] = MappingProxyType({}),
        waiting: Any = None,
    ) -> None:
        self.connection = connection
        self.epoch = epoch  # the pool's epoch when this was made
        self.refused = refused  # channels that were left out, and why
        self.node: tuple[str, int] | None = None  # of a Cluster
        self.others: dict[tuple[str, int], Any] = {}  # connections to other nodes, read with it
        self.shards: dict[int, tuple[str, int]] = {}  # nodes of shard channels added, by hash slot
        self.waiting = waiting  # a transport's Doorbell: how to read, and to interrupt that
        self._heard_at = time.monotonic()
        self._pinged_at: float | None = None  # None: no PING is unanswered

    def is_to_ping(self) -> bool:
        """Whether it is to be sent a PING after a long silence; notes that it is."""
        now = time.monotonic()
        if self._pinged_at is not None or now < self._heard_at + PING_S:
            return False
        self._pinged_at = now
        return True

    def note_life(self) -> None:
        """Note that something came, so the connection works."""
        self._heard_at, self._pinged_at = time.monotonic(), None

    def note_reply(self, reply: Any, signals: set[int], subscription: Subscription) -> None:
        """Note that the connection works, and what a message says.

        Args:
            reply: as it was read.
            signals: gets the slot that a wake-up signal names.
            subscription: gets what came on its own channel: a number, or what is handed over.
        """
        self.note_life()
        if not isinstance(reply, list) or len(reply) != 3:
            return
        if reply[0] == b"sunsubscribe":
            raise redis.ConnectionError("the slot of a shard channel is served elsewhere")
        if reply[0] not in (b"message", b"smessage"):
            return
        if reply[1] == subscription.own_channel:
            subscription.note_message(reply[2])
            return
        with contextlib.suppress(ValueError):
            signals.add(int(reply[2]))

    def note_silence(self) -> None:
        """Note that nothing can be read just now.

        Raises:
            redis.ConnectionError: a PING was not answered in time; the connection is dead.
        """
        if self._pinged_at is not None and time.monotonic() > self._pinged_at + PONG_S:
            raise redis.ConnectionError(f"a subscription did not answer for {PONG_S:g} s")


class SubscriptionRefused:
    """Stands in for a subscription that is not permitted to this Redis user, or to nobody.

    The consumer polls every POLL_S instead. After RETRY_S it tries to subscribe again, so that
    a repaired ACL needs no restart.
    """

    RETRY_S = 60.0
    is_heard = False
    logged = False  # one line in the log of a process is enough
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
        """Log that a subscription has the channel of its topic, and none of its own."""
        if not cls.no_hand_over_logged:
            cls.no_hand_over_logged = True
            stem, verb = channel.decode().rpartition(":")[0], "SUBSCRIBE"
            rules = f"'&{stem.split('{')[0]}*'"
            if is_sharded:
                verb, rules = "SSUBSCRIBE", f"+ssubscribe {rules}"
            log.warning(
                "Redis does not let this user %s to %s:*: nothing is handed over to it, so "
                "it asks for each message. Give the user the channels: ACL SETUSER <user> %s",
                verb, stem, rules,
            )  # fmt: skip


def await_signal(
    subscription: Subscription, seconds: float, deadline: RetryDeadline, epoch: int
) -> Operations[set[int]]:
    """Wait for a wake-up signal; return the slots it names, none if `seconds` have passed.

    Without a connection it subscribes and returns at once. A connection that died is closed; the
    next call subscribes again.

    Args:
        subscription: keeps its connection between calls.
        seconds: how long to wait.
        deadline: for subscribing.
        epoch: of the pool. A subscription of an older epoch is closed: the connections of its time
            have died, and it may be connected to the wrong server.
    """
    held, until, signals = subscription.held, time.monotonic() + seconds, set[int]()
    if held is None:
        yield from _subscribe(subscription, deadline)
    elif isinstance(held, SubscriptionRefused):
        yield Pause(max(0.0, seconds))
        if time.monotonic() > held.until:
            subscription.held = None
    else:
        try:
            if subscription.is_deaf:
                raise redis.ConnectionError("a subscription does not receive published messages")
            if held.epoch != epoch:
                raise redis.ConnectionError("other connections of this client have died")
            yield from _read_signals(subscription, held, until, signals)
            if until - time.monotonic() > seconds - PRECISION_S:
                # The signal was there before the wait, so others may be behind it.
                while (reply := (yield Read(held, 0))) not in (None, RUNG):
                    held.note_reply(reply, signals, subscription)
        except REDIS_ERRORS:
            yield Unsubscribe(subscription)
            yield Pause(min(FIRST_PAUSE_S, max(0.0, until - time.monotonic())))
    return signals


def _subscribe(subscription: Subscription, deadline: RetryDeadline) -> Operations[None]:
    def attempt() -> Operations[SubscribedConnection]:
        own = subscription.new_own_channel() if subscription.takes_hand_overs else b""
        plain = [own] if own and not subscription.is_sharded else []
        shard = own if subscription.is_sharded else b""
        connection: SubscribedConnection = yield Subscribe([subscription.channel], plain, shard)
        refusal = connection.refused.get(own)
        subscription.forget_messages(b"" if refusal else own)  # without, nothing is handed over
        if refusal is not None and code_of(refusal) == "NOPERM":
            SubscriptionRefused.log_no_hand_over(own, subscription.is_sharded)
        return connection

    try:
        subscription.held = yield from repeat(attempt, deadline)
    except REDIS_ERRORS as error:
        if not forbids(error):
            raise translate(error, "listen", [subscription.channel.decode()]) from error
        subscription.held = SubscriptionRefused(subscription.channel, error)
        subscription.own_channel = b""


def _read_signals(
    subscription: Subscription, subscribed: SubscribedConnection, until: float, signals: set[int]
) -> Operations[None]:
    """Read until a signal or a hand-over comes, or the time has passed.

    A number on the own channel ends the wait too, if it is the one that is awaited.
    """

    def has_come() -> bool:
        return bool(signals or subscription.payloads) or subscription.is_answered()

    def note(reply: Any) -> None:
        subscribed.note_reply(reply, signals, subscription)

    return read_until(subscribed, until, has_come, note)


def read_until(
    subscribed: SubscribedConnection,
    until: float,
    has_come: Callable[[], bool],
    note: Callable[[Any], None],
) -> Operations[None]:
    """Read replies until what is awaited has come, the time has passed, or the bell rings.

    Raises:
        redis.ConnectionError: the connection is dead.
    """
    while not has_come():
        left_s = until - time.monotonic()
        if left_s <= PRECISION_S:
            if left_s > 0:
                yield Pause(left_s)
            return
        if subscribed.is_to_ping():
            yield SendPing(subscribed.connection)
        reply = yield Read(subscribed, left_s - PRECISION_S)
        if reply is RUNG:
            return
        if reply is None:
            subscribed.note_silence()
        else:
            note(reply)
