"""Conversations of several steps, as generators: what a call says to Redis. No sockets.

A flow yields steps and is sent their values; a transport, sync or async, drives it. So both clients
run the same conversation, and a test can run it without a server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

from rmq.core.settings import Fsync, Replicated
from rmq.errors import RMQError
from rmq.protocol.commands import Command

T = TypeVar("T")


class Pipeline:
    """Several commands in one round trip. The value is a list with each one's value or RMQError."""

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
    """A plain command that reads, or is safe to run twice. The value is its reply as it came."""

    __slots__ = ("what", "words")

    def __init__(self, what: str, *words: Any) -> None:
        self.what = what
        self.words = words


class Sleep:
    """Do nothing for a while."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class InBackground:
    """Run another flow beside this one, after so many seconds; not once the client is closed."""

    __slots__ = ("flow", "seconds")

    def __init__(self, seconds: float, flow: Callable[[], Flow[None]]) -> None:
        self.seconds = seconds
        self.flow = flow


class Await:
    """Wait for an async interceptor; only an async transport can."""

    __slots__ = ("awaitable",)

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


SAFETY_S = 1.0  # what a lost signal may cost: who listens looks once in so long


class Subscription:
    """A consumer's ear on the wake channel; the transport keeps its connection in `held`."""

    __slots__ = ("channel", "held")

    def __init__(self, channel: bytes) -> None:
        self.channel = channel
        self.held: Any = None


class AwaitSignal:
    """Wait for a wake signal. The value is the set of slots that were named, empty after `seconds`.

    The first Listen subscribes and returns at once.
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
    | Sleep
    | InBackground
    | Await
    | AwaitSignal
)
Flow = Generator[Step, Any, T]


def together(commands: Sequence[Command[Any]]) -> Flow[list[Any]]:
    """Make calls in one round trip; the first error is raised after all have been made."""
    return raised((yield Pipeline(commands)))


def raised(replies: list[Any]) -> list[Any]:
    """The replies of a pipeline; the first error among them is raised."""
    for reply in replies:
        if isinstance(reply, RMQError):
            raise reply
    return replies
