"""A listener: one connection that is subscribed to the channels of many topics.

One thread waits on it; any thread may wake that one. A channel that the ACL refuses is left out,
and asked for again after a minute: its topic is polled meanwhile.

Channels that are added later, for hand-overs, end with the connection.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import AskError

from rmq.transport.operations import Subscribe
from rmq.transport.redis_errors import REDIS_ERRORS, Kind, kind_of, translate
from rmq.transport.subscription import (
    RUNG,
    SubscribedConnection,
    SubscriptionRefused,
    read_until,
)
from rmq.transport.sync import Transport

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
