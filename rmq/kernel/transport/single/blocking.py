"""Run flows over blocking connections of redis-py.

The transport writes to its connections directly. For each command, redis-py's own client would take
a connection from its pool, check the socket and give the connection back. This takes half of the
time of a small command. RMQ does not need the check, because a dead connection fails at the next
command, and each command is safe to repeat (`rmq.kernel.transport.connections.pool`).
"""

from __future__ import annotations

import contextlib
import copy
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import redis
from redis.exceptions import AskError
from redis.retry import Retry

from rmq.errors import RMQError
from rmq.kernel.core.coalescer import Permits
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.connections.operations import (
    Exchange,
    Operation,
    Pause,
    Read,
    RestartEmbedded,
    SendCommand,
    Subscribe,
    Unsubscribe,
)
from rmq.kernel.transport.embedded.embedded import Embedded
from rmq.kernel.transport.errors import REDIS_ERRORS, Kind, kind_of, translate
from rmq.kernel.transport.flow.coalescing import CoalescingThreads
from rmq.kernel.transport.flow.steps import (
    Await,
    AwaitEvent,
    Flow,
    InBackground,
    InThread,
    Sleep,
    Step,
)
from rmq.kernel.transport.single.driver import HAND_BACK_S
from rmq.kernel.transport.single.driver_blocking import Driver
from rmq.kernel.transport.single.server_commands import ServerCommands
from rmq.kernel.transport.single.subscription import (
    INTERRUPTED,
    PRECISION_S,
    SubscribedConnection,
    SubscriptionRefused,
)
from rmq.kernel.transport.url import Address

T = TypeVar("T")


# Other selectors have a file descriptor, which a forked process would share.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class InterruptibleReader:
    """Reads replies from connections. Another thread can end a wait for a reply.

    Attributes:
        last_reply_at: Monotonic time of the last reply. Before the first reply, time when this
            object was created.
    """

    def __init__(self, connection: Any) -> None:
        self.last_reply_at = time.monotonic()
        self._connections: dict[int, Any] = {}  # by file descriptor
        self._outside, self._inside = socket.socketpair()
        self._outside.setblocking(False)
        self._sockets = _Selector()
        self._sockets.register(self._inside, selectors.EVENT_READ)
        self.watch(connection)

    def watch(self, connection: Any) -> None:
        """Also read from another connection."""
        sock = connection._sock
        with contextlib.suppress(KeyError):  # a closed socket had the same file descriptor
            self._sockets.unregister(sock.fileno())
        self._sockets.register(sock, selectors.EVENT_READ)
        self._connections[sock.fileno()] = connection

    def wake(self) -> None:
        """End the current or the next wait of a read."""
        with contextlib.suppress(OSError):  # the socket pair is full, or closed
            self._outside.send(b"!")

    def read(self, seconds: float) -> Any:
        """Return one reply, None after `seconds`, or INTERRUPTED if `wake` was called."""
        for connection in self._connections.values():
            if connection.can_read(timeout=0):
                break
        else:
            ready = [key.fd for key, _ in self._sockets.select(seconds)] if seconds > 0 else []
            if not ready:
                return None
            if self._inside.fileno() in ready:
                self._inside.recv(4096)
                return INTERRUPTED
            connection = self._connections[ready[0]]
        reply = connection.read_response(disconnect_on_error=False)
        self.last_reply_at = time.monotonic()
        return reply

    def close(self) -> None:
        """Close the socket pair. The connections stay open."""
        self._outside.close()
        self._inside.close()


class Transport(Driver):
    """Runs flows with blocking calls, for any number of threads.

    A flow is a generator that yields commands and waits.

    Args:
        address: Address of the server.
        retry_for: How long to repeat a command while Redis cannot be reached, in seconds.
        timeout_s: Maximum wait for a reply, in seconds.

    Attributes:
        commands: Number of commands that were sent. A call of a script is one command.
    """

    uses_shard_channels = False  # whether hand-overs use shard channels, as on a Cluster

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        self.address, self.retry_for, self.timeout_s = address, retry_for, timeout_s
        embedded = Embedded.open(address.directory) if address.scheme == "embedded" else None
        self.commands = 0
        self._connector = Connector(
            address.of_a_node, timeout_s, redis.ConnectionPool, Retry, embedded
        )
        self._server = ServerCommands(address, retry_for, timeout_s, set())
        self._pool = self._new_pool()
        self._background: set[threading.Timer] = set()
        self._coalescing = CoalescingThreads()

    def close(self) -> None:
        """Close all connections. Stop the embedded server if this transport is its last user."""
        for timer in self._background:
            timer.cancel()
        self._current_pool().close()
        self._connector.close()

    @property
    def url(self) -> str:
        """The URL with which other processes reach the same Redis. It may contain a password."""
        embedded = self._connector.embedded
        return self.address.url if embedded is None else f"unix://{quote(embedded.socket)}"

    # --- flows -----------------------------------------------------------------------------------

    def _run_cleanup(self, flow: Flow[T], error: BaseException) -> T:
        """Release the messages of an interrupted flow, within HAND_BACK_S seconds."""
        temporary = self._temporary(min(HAND_BACK_S, self.timeout_s))
        try:
            return temporary.run(flow, error)
        except Exception as failure:
            raise error from failure
        finally:
            temporary._close_temporary()

    def _temporary(self, timeout_s: float) -> Transport:
        """Return a transport to the same server, with its own connections and without retries.

        The caller closes these connections with `_close_temporary`.
        """
        temporary = copy.copy(self)
        temporary.retry_for, temporary.timeout_s = 0.0, timeout_s
        temporary._connector = self._connector.with_timeout(timeout_s)
        temporary._server = ServerCommands(self.address, 0.0, timeout_s, self._server.loaded)
        pool = temporary._pool = temporary._new_pool()
        pool.epoch = self._pool.epoch  # the flow may still read from its subscription
        return temporary

    def _close_temporary(self) -> None:
        self._pool.close()

    def _own_step(self, step: Step) -> Any:
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, InBackground):
            return self._start_in_background(step)
        if isinstance(step, Await):
            raise AssertionError(f"a blocking client has no loop to await {step.awaitable!r} in")
        if isinstance(step, AwaitEvent):
            return self._await_event(step)
        assert isinstance(step, InThread)
        return step.call()

    def _await_event(self, step: AwaitEvent) -> None:
        event = threading.Event()
        step.event.on_set(event.set)
        event.wait(step.seconds)

    def _start_in_background(self, step: InBackground) -> None:
        timer = threading.Timer(step.seconds, self._run_in_background, (step,))
        timer.daemon = True
        timer.name = "rmq-background"
        timer.start()
        self._background = {timer, *(old for old in self._background if old.is_alive())}

    def _run_in_background(self, step: InBackground) -> None:
        with contextlib.suppress(RMQError):
            self.run(step.flow())

    # --- operations ------------------------------------------------------------------------------

    def _perform(self, operation: Operation) -> Any:
        if isinstance(operation, Exchange):
            return self._exchange(operation.packed, operation.count)
        if isinstance(operation, Read):
            reader: InterruptibleReader = operation.subscribed.reader
            return reader.read(operation.timeout_s)
        if isinstance(operation, Pause):
            return time.sleep(operation.seconds)
        if isinstance(operation, RestartEmbedded):
            return self._connector.restart_embedded()
        if isinstance(operation, Subscribe):
            return self._subscribed(operation)
        if isinstance(operation, Unsubscribe):
            return self.unsubscribe(operation.subscription)
        assert isinstance(operation, SendCommand)
        return operation.connection.send_command(*operation.words)

    # --- subscriptions ---------------------------------------------------------------------------

    def add_channel(self, subscribed: SubscribedConnection, channel: bytes) -> bool:
        """Subscribe a connection to one more channel.

        Return whether the command was sent. A later read gets the reply.
        """
        subscribed.connection.send_command("SUBSCRIBE", channel)
        return True

    def is_current(self, subscribed: SubscribedConnection) -> bool:
        """Return whether no connection has died since the subscription began."""
        return self._pool.is_own and subscribed.epoch == self._pool.epoch

    def is_reentrant(self, callers: Permits) -> bool:
        """Return whether this thread is already in a call that `callers` counts.

        If so, a signal handler has interrupted the earlier call, and is making this call.
        """
        return callers.is_used_by(threading.get_ident())

    def _new_reader(self, connection: Any) -> InterruptibleReader:
        return InterruptibleReader(connection)

    def _disconnect(self, connection: Any) -> None:
        connection.disconnect()


Signal = tuple[bytes, bytes]  # channel, payload


class Listener:
    """Waits for messages on the channels of many topics, as a worker does.

    One thread waits on the connection of the listener, and any thread can end the wait. If the ACL
    refuses a channel, the worker polls the topic of the channel, and tries to subscribe again after
    a minute. The worker later adds channels on which senders deliver directly. If the connection is
    lost, these channels are also lost.

    Args:
        transport: Transport that makes the connection.
        channels: Channels to subscribe to.

    Attributes:
        added: Channels that were added to this connection and confirmed by Redis.
        has_missed: Whether signals may have been sent while the listener was not subscribed.
    """

    def __init__(self, transport: Transport, channels: Sequence[bytes]) -> None:
        self._transport = transport
        self._channels = channels
        self._subscribed: SubscribedConnection | None = None
        self._retry_at = 0.0  # when to subscribe again to channels that the ACL refused
        self.added: set[bytes] = set()
        self.has_missed = True

    @property
    def is_active(self) -> bool:
        """Whether Redis has confirmed the subscription to all channels."""
        return self._subscribed is not None and not self._subscribed.refused

    def wake(self) -> None:
        """End the current or the next wait of the waiting thread."""
        subscribed = self._subscribed
        if subscribed is not None:
            subscribed.reader.wake()

    def add(self, channel: bytes) -> bool:
        """Subscribe to one more channel.

        Return whether the command was sent. When Redis has confirmed the subscription, the channel
        is in `added`.
        """
        if self._subscribed is None:
            return False
        try:
            return self._transport.add_channel(self._subscribed, channel)
        except REDIS_ERRORS:
            self.close_connection()
            return False

    def wait(self, seconds: float) -> list[Signal]:
        """Wait for wake-ups, and return them.

        If no wake-up arrives in time, or if `wake` ends the wait, the list is empty. If there is no
        connection, the method subscribes, sets `has_missed` and returns immediately.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        until = time.monotonic() + seconds
        if (
            self._subscribed is not None
            and self._subscribed.refused
            and time.monotonic() > self._retry_at
        ):
            self.close_connection()
        if self._subscribed is None:
            self._subscribe()
            return []
        signals: list[Signal] = []
        try:
            self._read(self._subscribed, until, signals)
        except redis.ResponseError as error:  # reply to an added channel
            if isinstance(error, AskError) or kind_of(error) is Kind.AGAIN:
                self.close_connection()  # another node serves the slot of a shard channel
        except REDIS_ERRORS:
            self.close_connection()
        return signals

    def _read(self, subscribed: SubscribedConnection, until: float, signals: list[Signal]) -> None:
        """Wait for a wake-up, then read all further wake-ups that have already arrived."""
        if not self._transport.is_current(subscribed):
            raise redis.ConnectionError("other connections of this client have died")
        while True:
            left_s = 0.0 if signals else max(0.0, until - time.monotonic() - PRECISION_S)
            reply = subscribed.reader.read(left_s)
            if reply is INTERRUPTED:
                return
            if reply is None:
                if not left_s:
                    break
                subscribed.note_silence()
                if subscribed.is_to_ping():
                    subscribed.connection.send_command("PING")
                continue
            if not isinstance(reply, list) or len(reply) != 3:
                continue
            if reply[0] in (b"message", b"smessage"):
                signals.append((reply[1], reply[2]))
            elif reply[0] in (b"subscribe", b"ssubscribe"):
                self.added.add(reply[1])
            elif reply[0] == b"sunsubscribe":
                raise redis.ConnectionError("the slot of a shard channel is served elsewhere")
        if not signals:
            time.sleep(max(0.0, until - time.monotonic()))

    def _subscribe(self) -> None:
        try:
            subscribed = self._transport._subscribed(Subscribe((), self._channels))
        except REDIS_ERRORS as error:
            raise translate(error, "listen", [self._channels[0].decode()]) from error
        for channel, refusal in subscribed.refused.items():
            self._retry_at = SubscriptionRefused(channel, refusal).until  # this logs the refusal
        self._subscribed, self.has_missed = subscribed, True

    def close_connection(self) -> None:
        """Close the connection. The next wait subscribes again."""
        subscribed, self._subscribed = self._subscribed, None
        self.added.clear()
        if subscribed is not None:
            for connection in (subscribed.connection, *subscribed.others.values()):
                with contextlib.suppress(*REDIS_ERRORS):
                    connection.disconnect()
            subscribed.reader.close()
