"""Define the requests of a flow (a generator): commands, pipelines, pauses, signals.

A flow yields requests. A transport executes each request, and sends the result back to the flow.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rmq.errors import RMQError, StorageError
from rmq.kernel.core.settings import Durability, Fsync, Replicated, describe_durability
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.lua.script_loader import Script

T = TypeVar("T")

POLL_S = 1.0  # a waiting consumer also polls at this interval, because a signal can get lost
SLOTS_PER_POLL = 16  # of a subscribed consumer; a consumer without signals polls all slots
# Longest time between two polls of a slot. It is well below the time for which `next_ready` and
# `prepare` record a sleeping consumer (lua/lib/wake/wake.lua).
ROUND_S = 120.0


def poll_range(turn: int, slots: int) -> range:
    """Return the slots (parts of a topic) that a sleeping consumer checks in this poll.

    A consumer checks some slots in each poll, and all slots in turn.

    Args:
        turn: Index of the first slot to check. If there is no such slot, the poll begins at slot 0.
        slots: Number of slots of the topic.
    """
    first = turn if turn < slots else 0
    count = max(SLOTS_PER_POLL, math.ceil(slots * POLL_S / ROUND_S))
    return range(first, min(first + count, slots))


@dataclass(slots=True, eq=False, repr=False)
class Command(Generic[T]):
    """A call of one script, and the function that parses the reply.

    Attributes:
        script: The script.
        keys: KEYS of the script.
        args: ARGV of the script.
        parse: Function that converts the reply to a value, or raises an RMQError.
        marks_repeats: Whether RMQ adds the argument 1 to a repeated call.
        write: Words of a plain command that Redis executes before the script, in one transaction.
        fails_fast: Whether the call fails immediately if the master of its slot in a cluster is
            missing. The error's attribute `_repeat_for` then says for how many seconds the caller
            may repeat the call.
        plain_args: Function that returns the ARGV of a call with the same effect, but
            without `write`.
    """

    script: Script
    keys: Sequence[bytes]
    args: Sequence[Any]
    parse: Callable[[Any], T]
    marks_repeats: bool = False
    write: tuple[Any, ...] = ()
    fails_fast: bool = False
    plain_args: Callable[[], Sequence[Any]] | None = None

    def without_transaction(self) -> Command[T]:
        """Return a call that has the same effect without a transaction."""
        if self.plain_args is None:
            return self
        return replace(self, args=self.plain_args(), write=(), plain_args=None)

    def as_repeat(self) -> Command[T]:
        """Return the call to send after an attempt that got no reply."""
        if not self.marks_repeats:
            return self
        return replace(self, args=[*self.args, 1], marks_repeats=False, plain_args=None)

    def __repr__(self) -> str:
        return f"Command({self.script.name!r}, {list(self.keys)!r})"


def script_call(
    name: str, keys: object, args: Sequence[Any], parse: Callable[[Any], T], **options: Any
) -> Command[T]:
    """Return a call of a script. The line `--- @keys` of the script names the keys of the call.

    Args:
        name: Name of the script.
        keys: Object that has the keys as attributes, such as the keys of a slot or of an event.
        args: ARGV of the script.
        parse: Function that converts the reply to a value.
        options: Further attributes of the `Command`.
    """
    key_values = script_loader.key_getter(name)(keys)
    return Command(script_loader.load(name), key_values, args, parse, **options)


def is_master_down(value: object) -> bool:
    """Return whether a command failed because its master is missing.

    Only a command with `Command.fails_fast` fails in this way.
    """
    return isinstance(value, StorageError) and value._repeat_for is not None


class Pipeline:
    """A request to send several commands to Redis in one round trip.

    The generator that yields this object gets a list. For each command, the list has a value or an
    RMQError.
    """

    __slots__ = ("commands",)

    def __init__(self, commands: Sequence[Command[Any]]) -> None:
        self.commands = commands


class DurablePipeline:
    """A request to send several commands in one round trip, and to wait until they are durable.

    The writes are durable when replicas or disks have them. The generator that yields this object
    gets a tuple of three parts. The first part has a value or an RMQError for each command. The
    second part is the number of replicas that confirmed. The third part is 1 if the server's own
    disk confirmed, otherwise 0.
    """

    __slots__ = ("commands", "durability")

    def __init__(self, commands: Sequence[Command[Any]], durability: Replicated | Fsync) -> None:
        self.commands = commands
        self.durability = durability


class RawCommand:
    """A request to execute a plain command that only reads, or is safe to repeat.

    The generator that yields this object gets the raw reply.
    """

    __slots__ = ("what", "words")

    def __init__(self, what: str, *words: Any) -> None:
        self.what = what
        self.words = words


class OnEveryMaster:
    """A request to execute a plain command on each master of a cluster, or on the only server.

    The command must be safe to repeat. The generator that yields this object gets the list of raw
    replies.

    Args:
        what: Name of the command in errors.
        words: The command.
        without: Addresses of masters to skip. The command then succeeds if one master answers in
            time. With None, all masters must answer.

    Attributes:
        addresses: Masters of a cluster that replied, as host:port, in the order of the replies.
        away: Masters of a cluster that did not reply, as host:port.
    """

    __slots__ = ("addresses", "away", "what", "without", "words")

    def __init__(self, what: str, *words: Any, without: Collection[str] | None = None) -> None:
        self.what = what
        self.words = words
        self.without = without
        self.addresses: list[str] = []
        self.away: list[str] = []


class AcceptsTransactions:
    """A request to check whether the server runs a script in a transaction.

    The check changes nothing. The generator that yields this object gets True or False.

    Args:
        key: A key of the slot. A proxy chooses the server by this key.
    """

    __slots__ = ("key",)

    def __init__(self, key: bytes) -> None:
        self.key = key


class Sleep:
    """A request to wait for a number of seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class InBackground:
    """A request to run a generator of commands later, unless the client is closed before."""

    __slots__ = ("flow", "seconds")

    def __init__(self, seconds: float, flow: Callable[[], Flow[None]]) -> None:
        self.seconds = seconds
        self.flow = flow


class Await:
    """A request to await an async interceptor. Only an async transport can do this."""

    __slots__ = ("awaitable",)

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


class InThread:
    """A request for a blocking call, for example of an object store. Async code uses a thread.

    The generator that yields this object gets the result of the call.
    """

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call


class LocalEvent:
    """An event of this process: another thread or task ends a caller's wait."""

    __slots__ = ("_is_set", "_wake")

    def __init__(self) -> None:
        self._is_set = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> None:
        """Set the event. This ends the current wait or the next wait."""
        self._is_set = True
        if self._wake is not None:
            self._wake()

    def on_set(self, wake: Callable[[], object]) -> None:
        """Register a function that `set` calls.

        If the event is already set, this method calls the function immediately.
        """
        self._wake = wake
        if self._is_set:
            wake()

    def clear(self) -> None:
        """Reset the event, so that only a later `set` ends a wait.

        After this call, check once whether the event for which the caller waits has already
        happened.
        """
        self._is_set, self._wake = False, None


class AwaitEvent:
    """A request to wait until a LocalEvent is set, at most for a number of seconds."""

    __slots__ = ("event", "seconds")

    def __init__(self, event: LocalEvent, seconds: float) -> None:
        self.event = event
        self.seconds = seconds


class Coalesce:
    """A request that may become a part of one call for several callers.

    The generator that yields this object gets its own result, or the error of the call.

    Args:
        coalescer: A `rmq.kernel.core.coalescer.Coalescer`.
        item: Item that this caller adds to the shared call, for example a message.
        size: Size of the item, bytes.
    """

    __slots__ = ("coalescer", "item", "size")

    def __init__(self, coalescer: Any, item: Any, size: int) -> None:
        self.coalescer = coalescer
        self.item = item
        self.size = size


class Subscription:
    """A consumer's subscription to the topic's wake-ups, and to the consumer's own channel.

    A send can deliver a message directly on the consumer's own channel. This is called a hand-over.

    Args:
        channel: Pub/Sub channel of the topic's wake-ups.
        takes_batches: Whether the consumer has its own channel for hand-overs.

    Attributes:
        connection: A SubscribedConnection or a SubscriptionRefused, or None if not subscribed.
        is_sharded: Whether the own channel is a shard channel. In a cluster, a topic with one slot
            has a shard channel.
        slot_channel: Prefix of a shard channel's name. Empty if the topic's settings are not known,
            or if the topic has several slots.
        own_channel: Name of the consumer's own channel, or empty if it has none. The name ends with
            random characters, and is new for each connection.
        payloads: Unread messages of the own channel: hand-overs, and the numbers that scripts
            publish.
        last_number: Last number that was read from the own channel.
        must_reconnect: Whether the next wait reconnects, because a message was lost on the own
            channel, or another node serves the channel.
        wait: Function that reads from a connection which several subscriptions share. None if only
            this subscription reads from `connection`.
    """

    __slots__ = (
        "channel", "connection", "is_sharded", "last_number", "must_reconnect", "own_channel",
        "payloads", "slot_channel", "takes_batches", "wait",
    )  # fmt: skip

    def __init__(self, channel: bytes, takes_batches: bool = False) -> None:
        self.channel = channel
        self.takes_batches = takes_batches
        self.is_sharded = False
        self.slot_channel = b""
        self.connection: Any = None
        self.own_channel = b""
        self.payloads: list[bytes] = []
        self.last_number = 0
        self.must_reconnect = False
        self.wait: Callable[[float], object] | None = None

    def required_channels(self) -> Sequence[bytes]:
        """Return the channels that a new connection must subscribe to."""
        return [self.channel]

    def missing_channels(self) -> Sequence[bytes]:
        """Return further channels that the current connection must subscribe to now."""
        return ()

    def note_subscribed(self, channels: Iterable[bytes]) -> None:
        """Record that Redis has confirmed the subscription to these channels."""

    def note_signal(self, channel: bytes, payload: bytes, signals: set[int]) -> None:
        """Read a wake-up, and add the slot (part of the topic) that has messages to `signals`."""
        with suppress(ValueError):
            signals.add(int(payload))

    @property
    def is_active(self) -> bool:
        """Whether the subscription is connected, and Redis permits its channel."""
        return self.connection is not None and getattr(self.connection, "is_active", True)

    @property
    def accepts_hand_overs(self) -> bool:
        """Whether the next connection gets its own channel, on which senders deliver directly."""
        return self.takes_batches and (not self.is_sharded or bool(self.slot_channel))

    def new_own_channel(self) -> bytes:
        """Return a new channel name for one connection.

        The name ends with random characters. So a hand-over for an old connection never arrives on
        a new connection.
        """
        stem = self.slot_channel + b":s:" if self.is_sharded else self.channel + b":"
        return stem + secrets.token_hex(8).encode()

    def forget_messages(self, own_channel: bytes = b"") -> None:
        """Reset the state for a new connection.

        Args:
            own_channel: Name of the consumer's own channel on this connection, or empty.
        """
        self.own_channel, self.payloads = own_channel, []
        self.last_number, self.must_reconnect = 0, False


class AwaitSignal:
    """A request to wait until slots (parts) of a topic have messages.

    The generator that yields this object gets the set of slots that have messages. If Redis sends
    no wake-up in time, the set is empty.

    A message on the consumer's own channel also ends the wait. The transport then stores the
    message in the subscription. If there is no connection yet, the transport subscribes, and the
    wait ends immediately.
    """

    __slots__ = ("seconds", "subscription")

    def __init__(self, subscription: Subscription, seconds: float) -> None:
        self.subscription = subscription
        self.seconds = seconds


Step = (
    Command[Any]
    | Pipeline
    | DurablePipeline
    | RawCommand
    | OnEveryMaster
    | AcceptsTransactions
    | Sleep
    | InBackground
    | Await
    | InThread
    | AwaitEvent
    | AwaitSignal
    | Coalesce
)
Flow = Generator[Step, Any, T]


Progress = Callable[[int, int], None]  # called with (done, all) during a long flow


def server_ms(what: str) -> Flow[int]:
    """Return the time of the Redis server's clock, in epoch ms.

    Args:
        what: Name of the command in errors.
    """
    seconds, us = yield RawCommand(what, "TIME")
    return int(seconds) * 1000 + int(us) // 1000


def pipeline(commands: Sequence[Command[Any]]) -> Flow[list[Any]]:
    """Execute commands in one round trip, then raise the first error. The list may be empty."""
    return raise_first_error((yield Pipeline(commands)) if commands else [])


def durable_pipeline(
    commands: Sequence[Command[Any]], wanted: Durability
) -> Flow[tuple[list[Any], str]]:
    """Execute commands in one round trip, and wait until replicas or disks have the writes.

    Returns:
        The values or RMQErrors of the commands, and a text that says which replicas or disks did
        not confirm. The text is empty if all have confirmed.
    """
    if wanted is None:
        return (yield Pipeline(commands)), ""
    replies, copies, disks = yield DurablePipeline(commands, wanted)
    is_fsync = isinstance(wanted, Fsync)
    if copies >= wanted.n and (disks or not is_fsync):
        return replies, ""
    found = f"{copies} replicas" + (f" and {disks} local disks" if is_fsync else "")
    return replies, f"durability: {describe_durability(wanted)} asked, {found} confirmed in time"


def raise_first_error(replies: list[Any]) -> list[Any]:
    """Return the replies of a pipeline. If one of them is an error, raise the first error."""
    for reply in replies:
        if isinstance(reply, RMQError):
            raise reply
    return replies
