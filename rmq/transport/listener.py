"""A listener: one connection that is subscribed to the channels of many topics.

One thread waits on it; any thread may wake that one. A channel that the ACL refuses is left out,
and asked for again after a minute: its topic is polled meanwhile.

Channels that are added later, for hand-overs, end with the connection.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

import hiredis
import redis

from rmq.transport.pool import as_not_connected
from rmq.transport.redis_errors import REDIS_ERRORS, code_of, translate
from rmq.transport.subscription import PRECISION_S, SubscribedConnection, SubscriptionRefused
from rmq.transport.sync import Transport

log = logging.getLogger("rmq")

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
        self._refused = False  # the ACL refuses some channels
        self._retry_at = 0.0  # when to ask for them again
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._woken = False
        self.added: set[bytes] = set()  # channels that were added to this connection, confirmed
        self.has_missed = True  # signals may have been sent while nothing was subscribed

    def wake(self) -> None:
        """End the wait of the other thread, or its next one as it begins."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._wake_write.send(b"\0")

    def add(self, channel: bytes) -> None:
        """Ask for a further channel; it is in `added` once Redis has confirmed it."""
        if self._held is not None:
            try:
                self._held.connection.send_command("SUBSCRIBE", channel)
            except REDIS_ERRORS:
                self.close_connection()

    def wait(self, seconds: float) -> list[Signal]:
        """Wait for signals; return those that are there.

        None are when `seconds` have passed, or `wake` was called.

        Without a connection it subscribes, sets `has_missed` and returns at once.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        until = time.monotonic() + seconds
        if self._refused and time.monotonic() > self._retry_at:
            self.close_connection()
        if self._held is None:
            self._subscribe()
            return []
        try:
            return self._read(self._held, until)
        except REDIS_ERRORS:
            self.close_connection()
            return []

    def _read(self, held: SubscribedConnection, until: float) -> list[Signal]:
        if held.epoch != self._transport._current_pool().epoch:
            raise redis.ConnectionError("other connections of this client have died")
        signals: list[Signal] = []
        while not (self._read_ready(held, signals) or self._woken):
            left_s = until - time.monotonic()
            if left_s <= PRECISION_S:
                if left_s > 0:
                    time.sleep(left_s)
                break
            if held.is_to_ping():
                held.connection.send_command("PING")
            if not self._selector.select(left_s - PRECISION_S):
                held.note_silence()
        if self._woken:
            with contextlib.suppress(BlockingIOError):
                self._wake_read.recv(4096)
            self._woken = False
        return signals

    def _read_ready(self, held: SubscribedConnection, signals: list[Signal]) -> bool:
        """Read the replies that have arrived; return whether a signal is among them."""
        connection = held.connection
        while connection.can_read(timeout=0):
            try:
                reply = connection.read_response()
            except redis.exceptions.NoPermissionError:
                continue  # a channel that was added; nothing is handed over on it
            held.note_life()
            if not isinstance(reply, list) or len(reply) != 3:
                continue
            if reply[0] == b"message":
                signals.append((reply[1], reply[2]))
            elif reply[0] == b"subscribe":
                self.added.add(reply[1])
        return bool(signals)

    def _subscribe(self) -> None:
        connection = self._transport._connector.new(protocol=2)
        epoch = self._transport._current_pool().epoch
        self._refused = False
        try:
            connection.connect()
            words: list[tuple[Any, ...]] = [("SUBSCRIBE", channel) for channel in self._channels]
            packed = b"".join(map(hiredis.pack_command, words))
            connection.send_packed_command((packed,), check_health=False)
            for channel in self._channels:
                try:
                    connection.read_response()
                except redis.ResponseError as error:
                    if code_of(error) != "NOPERM":
                        raise
                    self._refused = True
                    self._retry_at = SubscriptionRefused(channel).until  # it is logged there
        except BaseException as error:
            connection.disconnect()
            if not isinstance(error, REDIS_ERRORS):
                raise
            failure = as_not_connected(error)
            raise translate(failure, "listen", [self._channels[0].decode()]) from error
        self._held = SubscribedConnection(connection, epoch)
        self._selector.register(connection._sock, selectors.EVENT_READ)
        self.has_missed = True

    def close_connection(self) -> None:
        """Close the connection; the next wait subscribes again."""
        held, self._held = self._held, None
        self.added.clear()
        if held is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(held.connection._sock)
            with contextlib.suppress(*REDIS_ERRORS):
                held.connection.disconnect()

    def close(self) -> None:
        """Close the connection and the rest, once no thread waits any more."""
        self.close_connection()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
