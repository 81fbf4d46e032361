"""Wake callers that wait for results. Each client has one subscription for this.

Each slot has a Pub/Sub channel. When messages end, scripts publish a signal with the names of the
messages on this channel. A caller registers the messages that it waits for. When a signal names one
of these messages, the caller reads its state.

The caller also reads the state after each new subscription to the channel, because Redis does not
repeat earlier signals. While callers wait, a background task reads the subscription.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from rmq.errors import StorageError
from rmq.kernel.core import process
from rmq.kernel.core.coalescer import Coalescer
from rmq.kernel.core.ids import MEMBER_SIZE
from rmq.kernel.transport.flow.steps import (
    POLL_S,
    AwaitSignal,
    Flow,
    InBackground,
    LocalEvent,
    Sleep,
    Subscription,
)

DONE = b"done"  # first word of a signal; the names of messages follow
IDLE_S = 10.0  # the subscription ends if no caller has waited for this time
END_S = 2.0  # longest wait of `close`
Name = tuple[bytes, bytes]  # channel of the slot, and name of the message in the slot


class Waiter(LocalEvent):
    """A caller that waits until messages end.

    Attributes:
        due: Messages whose state the caller must read again.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        super().__init__()
        self.due: deque[Name] = deque()

    def note(self, names: Iterable[Name]) -> None:
        """Tell the caller to read the states of these messages again."""
        self.due.extend(names)
        self.set()


class ResultSubscription(Subscription):
    """A subscription to signals about the messages that callers wait for."""

    __slots__ = ("_sent", "_signals")

    def __init__(self, signals: ResultSignals) -> None:
        super().__init__(b"")
        self._signals = signals
        self._sent: set[bytes] = set()  # channels of the connection, confirmed or not

    def required_channels(self) -> Sequence[bytes]:
        """Return the channels that a new connection must subscribe to."""
        channels = self._signals.channels()
        self._sent = set(channels)
        self.channel = channels[0] if channels else b""  # for errors
        return channels

    def missing_channels(self) -> Sequence[bytes]:
        """Return more channels that the current connection must subscribe to."""
        missing = [each for each in self._signals.channels() if each not in self._sent]
        self._sent.update(missing)
        return missing

    def note_subscribed(self, channels: Iterable[bytes]) -> None:
        """Tell callers to read the states of their messages in the slots of these channels.

        Signals that were published before the subscription were not received.
        """
        self._signals.note_all(channels)

    def note_signal(self, channel: bytes, payload: bytes, signals: set[int]) -> None:
        """Tell callers to read the states of the messages that a signal names."""
        word, _, members = payload.partition(b" ")
        if word == DONE:
            self._signals.note(channel, members)

    def wake(self) -> None:
        """End the current or the next wait on this subscription."""
        reader = getattr(self.connection, "reader", None)
        if reader is not None:
            reader.wake()


class ResultSignals:
    """The callers of one client that wait for results, and their subscription.

    Attributes:
        reads: Object that combines the reads of callers into one call to Redis. None before the
            first read.
    """

    def __init__(self) -> None:
        self.reads: Coalescer | None = None
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._generation = process.generation
        self._waiters: dict[bytes, dict[bytes, set[Waiter]]] = {}  # by channel and message
        self._subscription: ResultSubscription | None = None  # None: no flow reads signals
        self._is_closed = False

    def channels(self) -> list[bytes]:
        """Return the channels of all slots that have a message for which a caller waits."""
        with self._lock:
            return list(self._waiters)

    def add(self, waiter: Waiter, names: Iterable[Name]) -> Flow[None]:
        """Register the messages that a caller waits for.

        The caller must first read the states of all these messages. Later, RMQ wakes the caller if
        the caller must read a state again.
        """
        if self._generation != process.generation:  # no thread of the parent runs after a fork
            self._lock = threading.Lock()
            self._start()
        with self._lock:
            known = len(self._waiters)
            for channel, member in names:
                self._waiters.setdefault(channel, {}).setdefault(member, set()).add(waiter)
            has_new_channels = len(self._waiters) > known
            begun = None
            if self._subscription is None:
                begun = self._subscription = ResultSubscription(self)
        if begun is not None:
            yield InBackground(0.0, lambda: self._read(begun))
        elif has_new_channels and (subscription := self._subscription) is not None:
            subscription.wake()

    def remove(self, waiter: Waiter, names: Iterable[Name]) -> None:
        """Record that a caller no longer waits for these messages."""
        with self._lock:
            for channel, member in names:
                of_channel = self._waiters.get(channel, {})
                waiters = of_channel.get(member, set())
                waiters.discard(waiter)
                if not waiters and of_channel.pop(member, None) is not None and not of_channel:
                    del self._waiters[channel]

    def note(self, channel: bytes, members: bytes) -> None:
        """Tell callers to read the states of messages on a channel again.

        The argument `members` has the names of the messages, joined.
        """
        with self._lock:
            of_channel = self._waiters.get(channel)
            if of_channel:
                for at in range(0, len(members), MEMBER_SIZE):
                    member = members[at : at + MEMBER_SIZE]
                    for waiter in of_channel.get(member, ()):
                        waiter.note([(channel, member)])

    def note_all(self, channels: Iterable[bytes] | None = None) -> None:
        """Tell callers to read the states of all their messages on some channels again.

        None stands for all channels.
        """
        with self._lock:
            for channel in list(self._waiters) if channels is None else channels:
                news: dict[Waiter, list[Name]] = {}
                for member, waiters in self._waiters.get(channel, {}).items():
                    for waiter in waiters:
                        news.setdefault(waiter, []).append((channel, member))
                for waiter, names in news.items():
                    waiter.note(names)

    def _read(self, subscription: ResultSubscription) -> Flow[None]:
        """Read signals until no caller has waited for IDLE_S seconds."""
        idle_at = time.monotonic() + IDLE_S
        try:
            while not self._is_closed:
                if self._waiters:
                    idle_at = time.monotonic() + IDLE_S
                elif time.monotonic() >= idle_at and self._end(subscription):
                    break
                try:
                    yield AwaitSignal(subscription, IDLE_S if subscription.is_active else POLL_S)
                except StorageError:
                    yield Sleep(POLL_S)
                if not subscription.is_active:
                    self.note_all()  # no signals come, so they read every second
            if subscription.is_active:
                subscription.must_reconnect = True  # the next wait closes the connection
                yield AwaitSignal(subscription, 0.0)
        finally:
            self._end(subscription, forced=True)

    def _end(self, subscription: ResultSubscription, forced: bool = False) -> bool:
        """Record that no task reads signals any more. Return False if callers are waiting again."""
        with self._lock:
            if self._waiters and not forced:
                return False
            if self._subscription is subscription:
                self._subscription = None
            return True

    def close(self) -> Flow[None]:
        """End the subscription for signals."""
        until = time.monotonic() + END_S
        self._is_closed = True
        while (subscription := self._subscription) is not None and time.monotonic() < until:
            subscription.wake()
            yield Sleep(0.005)
