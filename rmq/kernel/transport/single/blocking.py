"""The blocking transport: runs flows over connections of redis-py.

It writes to its connections directly. redis-py's own client would reserve a connection of its
pool, check the socket and return the connection for each command. This is half of the cost of a
small command, and RMQ does not need it. A dead connection fails at the next command, and each
command is safe to repeat (`rmq.kernel.transport.connections.pool`).
"""

from __future__ import annotations

import contextlib
import copy
import selectors
import socket
import threading
import time
from typing import Any, TypeVar
from urllib.parse import quote

import redis
from redis.retry import Retry

from rmq.errors import RMQError
from rmq.kernel.core.permits import Permits
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.connections.operations import (
    Exchange,
    Operation,
    Pause,
    Read,
    RestartEmbedded,
    SendPing,
    Subscribe,
    Unsubscribe,
)
from rmq.kernel.transport.embedded.embedded import Embedded
from rmq.kernel.transport.flow.coalescing import CoalescingThreads
from rmq.kernel.transport.flow.steps import Await, Flow, InBackground, InThread, Sleep, Step
from rmq.kernel.transport.single.driver import HAND_BACK_S
from rmq.kernel.transport.single.driver_blocking import Driver
from rmq.kernel.transport.single.server_commands import ServerCommands
from rmq.kernel.transport.single.subscription import RUNG, SubscribedConnection
from rmq.kernel.transport.url import Address

T = TypeVar("T")


# Other selectors have a file descriptor, which a forked process would share.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Doorbell:
    """Reads from connections. `ring` ends the current or the next wait of a read."""

    def __init__(self, connection: Any) -> None:
        self._connections: dict[int, Any] = {}  # by file descriptor
        self._outside, self._inside = socket.socketpair()
        self._outside.setblocking(False)
        self._sockets = _Selector()
        self._sockets.register(self._inside, selectors.EVENT_READ)
        self.watch(connection)

    def watch(self, connection: Any) -> None:
        """Read from another connection as well."""
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
        """Return one reply, None after `seconds`, or RUNG if `ring` was called."""
        for connection in self._connections.values():
            if connection.can_read(timeout=0):
                return connection.read_response(disconnect_on_error=False)
        if seconds <= 0:
            return None
        ready = [key.fd for key, _ in self._sockets.select(seconds)]
        if not ready:
            return None
        if self._inside.fileno() in ready:
            self._inside.recv(4096)
            return RUNG
        return self._connections[ready[0]].read_response(disconnect_on_error=False)

    def close(self) -> None:
        """Close the socket pair of the doorbell. The connections stay open."""
        self._outside.close()
        self._inside.close()


class Transport(Driver):
    """Runs flows with blocking calls, for any number of threads.

    Args:
        address: The server.
        retry_for: Seconds in which a command is repeated while Redis cannot be reached.
        timeout_s: Longest wait for a reply.

    Attributes:
        commands: Number of commands sent. A call of a script counts as one command.
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
        """Close all connections, and the embedded server if this is its last user."""
        for timer in self._background:
            timer.cancel()
        self._current_pool().close()
        self._connector.close()

    @property
    def url(self) -> str:
        """The URL of the same Redis for other processes. It may contain a password."""
        embedded = self._connector.embedded
        return self.address.url if embedded is None else f"unix://{quote(embedded.socket)}"

    # --- flows -----------------------------------------------------------------------------------

    def _run_cleanup(self, flow: Flow[T], error: BaseException) -> T:
        """Run the cleanup of an interrupted flow within HAND_BACK_S.

        The cleanup hands back messages that the flow had received.
        """
        brief = self._brief(min(HAND_BACK_S, self.timeout_s))
        try:
            return brief.run(flow, error)
        except Exception as failure:
            raise error from failure
        finally:
            brief._end_brief()

    def _brief(self, timeout_s: float) -> Transport:
        """Return a transport to the same server with its own connections, and without retries.

        The caller closes these connections with `_end_brief`.
        """
        brief = copy.copy(self)
        brief.retry_for, brief.timeout_s = 0.0, timeout_s
        brief._connector = self._connector.with_timeout(timeout_s)
        brief._server = ServerCommands(self.address, 0.0, timeout_s, self._server.loaded)
        pool = brief._pool = brief._new_pool()
        pool.epoch = self._pool.epoch  # the flow may still read from its subscription
        return brief

    def _end_brief(self) -> None:
        self._pool.close()

    def _own_step(self, step: Step) -> Any:
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, InBackground):
            return self._start_in_background(step)
        if isinstance(step, Await):
            raise AssertionError(f"a blocking client has no loop to await {step.awaitable!r} in")
        assert isinstance(step, InThread)
        return step.call()

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
            waiting: Doorbell = operation.subscribed.waiting
            return waiting.read(operation.timeout_s)
        if isinstance(operation, Pause):
            return time.sleep(operation.seconds)
        if isinstance(operation, RestartEmbedded):
            return self._connector.restart_embedded()
        if isinstance(operation, Subscribe):
            return self._subscribed(operation)
        if isinstance(operation, Unsubscribe):
            return self.unsubscribe(operation.subscription)
        assert isinstance(operation, SendPing)
        return operation.connection.send_command("PING")

    # --- subscriptions ---------------------------------------------------------------------------

    def add_channel(self, subscribed: SubscribedConnection, channel: bytes) -> bool:
        """Subscribe a connection to another channel. Return whether the command was sent.

        The reply is read later.
        """
        subscribed.connection.send_command("SUBSCRIBE", channel)
        return True

    def is_current(self, subscribed: SubscribedConnection) -> bool:
        """Return whether no connection has died since a subscription was made."""
        return self._pool.is_own() and subscribed.epoch == self._pool.epoch

    def is_reentrant(self, callers: Permits) -> bool:
        """Return whether this thread already waits among `callers`.

        If so, the present call comes from a signal handler.
        """
        return callers.is_used_by(threading.get_ident())

    def _doorbell(self, connection: Any) -> Doorbell:
        return Doorbell(connection)

    def _disconnect(self, connection: Any) -> None:
        connection.disconnect()
