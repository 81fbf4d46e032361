"""The steps that a flow yields and a transport executes: commands, pipelines, pauses, signals."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rmq.errors import RMQError, StorageError
from rmq.kernel.core.settings import Durability, Fsync, Replicated, describe_durability
from rmq.kernel.transport.lua.script_loader import Script

T = TypeVar("T")

POLL_S = 1.0  # a consumer that awaits signals also looks once in so long: a signal can get lost
# A consumer that is subscribed looks at so many slots each time, in turn; else at all of them.
LOOKS = 16
# All slots are looked at once in so long, however many they are: well within the time for which
# `next_ready` and `prepare` note that a consumer sleeps (lua/lib/wake/wake.lua).
ROUND_S = 120.0


def next_looks(turn: int, slots: int) -> range:
    """Return the slots that a sleeping consumer looks at next.

    Args:
        turn: where the range before ended; 0, or no slot: a round begins.
        slots: how many there are.
    """
    first = turn if turn < slots else 0
    count = max(LOOKS, math.ceil(slots * POLL_S / ROUND_S))
    return range(first, min(first + count, slots))


@dataclass(slots=True, eq=False, repr=False)
class Command(Generic[T]):
    """A call of one script, and how to read its reply.

    Args:
        script: the script to call.
        keys: its KEYS.
        args: its ARGV.
        parse: turns the reply into a value, or raises one of RMQ's errors.
        marks_repeats: a repeated call has 1 as its last argument.
        write: a plain command that Redis runs just before the script, in one transaction with it.
        args_alone: returns the ARGV of a call that does the same without `write`.
        fails_fast: on a cluster, it is not repeated while the master of its slot is away: it fails
            with an error whose `_repeat_for` says how long its caller may repeat it.
    """

    script: Script
    keys: Sequence[bytes]
    args: Sequence[Any]
    parse: Callable[[Any], T]
    marks_repeats: bool = False
    write: tuple[Any, ...] = ()
    fails_fast: bool = False
    args_alone: Callable[[], Sequence[Any]] | None = None

    def alone(self) -> Command[T]:
        """Return a call that does the same without a transaction, if this one has one."""
        if self.args_alone is None:
            return self
        return replace(self, args=self.args_alone(), write=(), args_alone=None)

    def again(self) -> Command[T]:
        """Return the same call as it is sent after one that got no reply."""
        if not self.marks_repeats:
            return self
        return replace(self, args=[*self.args, 1], marks_repeats=False, args_alone=None)

    def __repr__(self) -> str:
        return f"Command({self.script.name!r}, {list(self.keys)!r})"


def is_master_away(value: object) -> bool:
    """Whether this is the error of a command that failed fast: the master of its slot is away."""
    return isinstance(value, StorageError) and value._repeat_for is not None


class Pipeline:
    """Several commands in one round trip. The value is a list of their values or RMQErrors."""

    __slots__ = ("commands",)

    def __init__(self, commands: Sequence[Command[Any]]) -> None:
        self.commands = commands


class DurablePipeline:
    """A pipeline, then a wait for replicas or disks on the same connection.

    The value is (values or errors, replicas that confirmed, 1 if this server's disk did).
    """

    __slots__ = ("commands", "durability")

    def __init__(self, commands: Sequence[Command[Any]], durability: Replicated | Fsync) -> None:
        self.commands = commands
        self.durability = durability


class RawCommand:
    """A plain Redis command that reads, or is safe to run twice. The value is its raw reply."""

    __slots__ = ("what", "words")

    def __init__(self, what: str, *words: Any) -> None:
        self.what = what
        self.words = words


class OnEveryMaster:
    """A plain command for each master: of a server, or of a cluster all. Safe to run twice.

    The value is the list of their raw replies. A cluster's transport notes in `addresses` whose
    they are, as host:port.

    Args:
        what: what errors call the command.
        words: of the command.
        without: masters of a cluster that are left out; then others may be, too, that do not
            answer in time, if one does. None: all must answer.

    Attributes:
        away: the addresses of masters that did not answer.
    """

    __slots__ = ("addresses", "away", "what", "without", "words")

    def __init__(self, what: str, *words: Any, without: Collection[str] | None = None) -> None:
        self.what = what
        self.words = words
        self.without = without
        self.addresses: list[str] = []
        self.away: list[str] = []


class TakesTransactions:
    """A look whether the server runs a script in a transaction; nothing is changed.

    The value is True or False. `key`: of a slot; a proxy sends the look where that one is.
    """

    __slots__ = ("key",)

    def __init__(self, key: bytes) -> None:
        self.key = key


class Sleep:
    """A pause."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class InBackground:
    """Another flow to run after so many seconds, unless the client is closed by then."""

    __slots__ = ("flow", "seconds")

    def __init__(self, seconds: float, flow: Callable[[], Flow[None]]) -> None:
        self.seconds = seconds
        self.flow = flow


class Await:
    """A wait for an async interceptor; only an async transport can execute it."""

    __slots__ = ("awaitable",)

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


class InThread:
    """A call that blocks, such as of a store; an async transport makes it in a thread.

    The value is what it returns.
    """

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call


class Coalesce:
    """A wait for a call that is shared. The value is the outcome; an error is raised.

    Args:
        coalescer: a `rmq.kernel.transport.flow.coalescing.Coalescer`.
        item: what is to be done.
        size: of it, in bytes.
    """

    __slots__ = ("coalescer", "item", "size")

    def __init__(self, coalescer: Any, item: Any, size: int) -> None:
        self.coalescer = coalescer
        self.item = item
        self.size = size


class Subscription:
    """A consumer's subscription to a wake channel; the transport keeps its connection in `held`.

    Args:
        channel: the wake channel of the topic.
        takes_batches: subscribe to a channel of its own as well, for hand-overs.

    Attributes:
        is_sharded: on a Cluster, where the own channel is a shard channel of the topic's only slot.
        slot_channel: how that one begins; empty: the topic is not open, or has several slots.
        own_channel: new for every connection, with a random end; empty where there is none.
        payloads: what was handed over there and not looked at yet.
        heard: the last number that was published there.
        awaited: the number after which nothing more is on its way; 0: none is awaited.
        is_deaf: what was published there did not come; the next wait makes another connection.
        wait: reads for a while from a connection that many subscriptions share; None: this one has
            its own, in `held`.
    """

    __slots__ = (
        "awaited", "channel", "heard", "held", "is_deaf", "is_sharded", "own_channel", "payloads",
        "slot_channel", "takes_batches", "wait",
    )  # fmt: skip

    def __init__(self, channel: bytes, takes_batches: bool = False) -> None:
        self.channel = channel
        self.takes_batches = takes_batches
        self.is_sharded = False
        self.slot_channel = b""
        self.held: Any = None
        self.own_channel = b""
        self.payloads: list[bytes] = []
        self.heard = 0
        self.awaited = 0
        self.is_deaf = False
        self.wait: Callable[[float], object] | None = None

    def note_message(self, payload: bytes) -> None:
        """Take note of what was published on the own channel: a number, or what is handed over."""
        if payload.isdigit():
            self.heard = int(payload)
        else:
            self.payloads.append(payload)

    @property
    def is_heard(self) -> bool:
        """Whether it has a connection, and Redis lets it hear the signals of its topic."""
        return self.held is not None and getattr(self.held, "is_heard", True)

    @property
    def takes_hand_overs(self) -> bool:
        """Whether to have an own channel now."""
        return self.takes_batches and (not self.is_sharded or bool(self.slot_channel))

    def new_own_channel(self) -> bytes:
        """Return the name of a channel for one connection.

        It has a random end, so nothing is ever handed over to another connection than the one that
        left the credit.
        """
        stem = self.slot_channel + b":s:" if self.is_sharded else self.channel + b":"
        return stem + secrets.token_hex(8).encode()

    def forget_messages(self, own_channel: bytes = b"") -> None:
        """Begin anew on another connection. `own_channel`: empty if there is none."""
        self.own_channel, self.payloads, self.heard, self.is_deaf = own_channel, [], 0, False

    def is_answered(self) -> bool:
        """Whether the number that is awaited has come."""
        return 0 < self.awaited <= self.heard


class AwaitSignal:
    """A wait for wake signals. The value is the set of slots named, empty after `seconds`.

    It also ends when something comes on the subscription's own channel, which stays in the
    subscription. The first one subscribes and returns at once.
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
    | TakesTransactions
    | Sleep
    | InBackground
    | Await
    | InThread
    | AwaitSignal
    | Coalesce
)
Flow = Generator[Step, Any, T]


Progress = Callable[[int, int], None]  # called with (done, all) while a long flow goes on


def server_ms(what: str) -> Flow[int]:
    """Return the time by Redis' clock, epoch ms. `what`: what errors call the command."""
    seconds, us = yield RawCommand(what, "TIME")
    return int(seconds) * 1000 + int(us) // 1000


def pipeline(commands: Sequence[Command[Any]]) -> Flow[list[Any]]:
    """Run commands in one round trip; raise the first error after all of them have run."""
    return raise_first_error((yield Pipeline(commands)))


def durable_pipeline(
    commands: Sequence[Command[Any]], wanted: Durability
) -> Flow[tuple[list[Any], str]]:
    """Run commands in one round trip, and wait for copies.

    Returns:
        Their values or RMQErrors, and what the copies lack, for an error; '': nothing.
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
    """Return the replies of a pipeline, or raise the first error among them."""
    for reply in replies:
        if isinstance(reply, RMQError):
            raise reply
    return replies
