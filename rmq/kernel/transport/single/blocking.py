"""The blocking transport: drives flows over connections of redis-py.

It keeps its connections at hand and writes to them directly. redis-py's own client takes a
connection from its pool, checks its socket and gives it back for each command, which is half of the
cost of a small command. RMQ gains nothing by it: a dead connection shows at the next command, and
every command is safe to run twice (`rmq.kernel.transport.connections.pool`).
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
from rmq.kernel.core.places import Places
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.embedded.embedded import Embedded
from rmq.kernel.transport.flow.coalescing import CoalescingThreads
from rmq.kernel.transport.flow.steps import Await, Flow, InBackground, InThread, Sleep, Step
from rmq.kernel.transport.single.driver_blocking import Driver
from rmq.kernel.transport.single.script_calls import (
    HAND_BACK_S,
    Exchange,
    Operation,
    Pause,
    Read,
    RestartEmbedded,
    ScriptCalls,
    SendPing,
    Subscribe,
    Unsubscribe,
)
from rmq.kernel.transport.single.subscription import RUNG, SubscribedConnection
from rmq.kernel.transport.url import Address

T = TypeVar("T")


# The other selectors have a descriptor of their own, which a fork would share.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Doorbell:
    """Ends the wait of another thread on a connection. A ring that nobody hears ends the next."""

    def __init__(self, connection: Any) -> None:
        self._connections: dict[int, Any] = {}  # by the number of their sockets
        self._outside, self._inside = socket.socketpair()
        self._outside.setblocking(False)
        self._sockets = _Selector()
        self._sockets.register(self._inside, selectors.EVENT_READ)
        self.watch(connection)

    def watch(self, connection: Any) -> None:
        """Read from a further connection, too."""
        sock = connection._sock
        with contextlib.suppress(KeyError):  # the number was that of a socket that is closed
            self._sockets.unregister(sock.fileno())
        self._sockets.register(sock, selectors.EVENT_READ)
        self._connections[sock.fileno()] = connection

    def ring(self) -> None:
        """End the wait."""
        with contextlib.suppress(OSError):  # it has rung so often that the pair is full, or closed
            self._outside.send(b"!")

    def read(self, seconds: float) -> Any:
        """Read one reply; None if none comes in time, RUNG if the bell rings before."""
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
        """Close both ends of the pair; the connections stay open."""
        self._outside.close()
        self._inside.close()


class Transport(Driver):
    """Drives flows with blocking calls. Threads may share it.

    Args:
        address: the server.
        retry_for: seconds in which a command is repeated while Redis cannot be reached.
        timeout_s: how long to wait for one reply.

    Attributes:
        commands: how many it has sent; a script is one.
    """

    uses_shard_channels = False  # for hand-overs, as on a Cluster

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        self.address, self.retry_for, self.timeout_s = address, retry_for, timeout_s
        embedded = Embedded.open(address.directory) if address.scheme == "embedded" else None
        self.commands = 0
        self._connector = Connector(
            address.of_a_node, timeout_s, redis.ConnectionPool, Retry, embedded
        )
        self._calls = ScriptCalls(address, retry_for, timeout_s, set())
        self._pool = self._new_pool()
        self._background: set[threading.Timer] = set()
        self._coalescing = CoalescingThreads()

    def close(self) -> None:
        """Close every connection, and the embedded server if this is its last user."""
        for timer in self._background:
            timer.cancel()
        self._current_pool().close()
        self._connector.close()

    @property
    def url(self) -> str:
        """The URL with which another process reaches the same Redis; it may have a password."""
        embedded = self._connector.embedded
        return self.address.url if embedded is None else f"unix://{quote(embedded.socket)}"

    # --- flows -----------------------------------------------------------------------------------

    def _run_cleanup(self, flow: Flow[T], error: BaseException) -> T:
        """Let an interrupted flow hand back the messages it holds, within HAND_BACK_S."""
        brief = self._brief(min(HAND_BACK_S, self.timeout_s))
        try:
            return brief.run(flow, error)
        except Exception as failure:
            raise error from failure
        finally:
            brief._end_brief()

    def _brief(self, timeout_s: float) -> Transport:
        """Return a transport to the same server that repeats nothing, with connections of its own.

        `_end_brief` closes them.
        """
        brief = copy.copy(self)
        brief.retry_for, brief.timeout_s = 0.0, timeout_s
        brief._connector = self._connector.with_timeout(timeout_s)
        brief._calls = ScriptCalls(self.address, 0.0, timeout_s, self._calls.loaded)
        pool = brief._pool = brief._new_pool()
        pool.epoch = self._pool.epoch  # of the subscription that the flow may still read
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

    def add_channel(self, held: SubscribedConnection, channel: bytes) -> bool:
        """Ask for a further channel on a connection that is subscribed; return whether it was.

        Its reply is read later.
        """
        held.connection.send_command("SUBSCRIBE", channel)
        return True

    def is_current(self, held: SubscribedConnection) -> bool:
        """Whether a subscription can stay as it is: no connection has died since it was made."""
        return held.epoch == self.epoch

    def is_reentrant(self, callers: Places) -> bool:
        """Return whether this thread is one of the callers, so that its signal handler asks."""
        return callers.is_held_by(threading.get_ident())

    def _doorbell(self, connection: Any) -> Doorbell:
        return Doorbell(connection)

    def _disconnect(self, connection: Any) -> None:
        connection.disconnect()
