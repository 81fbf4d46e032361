"""The blocking transport: drives flows over connections of redis-py.

It keeps its connections at hand and writes to them directly. redis-py's own client takes a
connection from its pool, checks its socket and gives it back for each command, which is half of the
cost of a small command. RMQ gains nothing by it: a dead connection shows at the next command, and
every command is safe to run twice (`rmq.kernel.transport.pool`).
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

import redis
from redis.retry import Retry

from rmq.errors import RMQError
from rmq.kernel.core.generators import drive
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.transport.calls import (
    HAND_BACK_S,
    Exchange,
    Operation,
    Operations,
    Pause,
    Read,
    RestartEmbedded,
    ScriptCalls,
    SendPing,
    Subscribe,
    Unsubscribe,
    confirmed,
)
from rmq.kernel.transport.coalescing import ThreadSharing
from rmq.kernel.transport.connector import Connector
from rmq.kernel.transport.embedded import Embedded
from rmq.kernel.transport.errors import REDIS_ERRORS, forbids
from rmq.kernel.transport.pool import Pool, PooledConnection, as_not_connected, reply_of, request_of
from rmq.kernel.transport.sentinel_blocking import SentinelPool
from rmq.kernel.transport.steps import (
    Await,
    AwaitSignal,
    Coalesce,
    Command,
    DurablePipeline,
    Flow,
    InBackground,
    InThread,
    OnEveryMaster,
    Pipeline,
    RawCommand,
    Sleep,
    Step,
    Subscription,
    TakesTransactions,
)
from rmq.kernel.transport.subscription import RUNG, SubscribedConnection, await_signal
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


class Transport:
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
        self._sharing = ThreadSharing()

    def close(self) -> None:
        """Close every connection, and the embedded server if this is its last user."""
        for timer in self._background:
            timer.cancel()
        self._current_pool().close()
        self._connector.close()

    def connection_options(self) -> dict[str, Any]:
        """Return what another program needs to connect to the same server, as JSON."""
        return self._connector.plain_options()

    # --- flows -----------------------------------------------------------------------------------

    def run(self, flow: Flow[T], error: BaseException | None = None) -> T:
        """Run a flow to its end; return its value.

        Args:
            flow: yields steps.
            error: raised in the flow at the step where it stands now.
        """
        try:
            step = next(flow) if error is None else flow.throw(error)
            while True:
                try:
                    if type(step) is Command:
                        value = self._command(step)
                    elif type(step) is Coalesce:
                        value = self._sharing.share(step, self.run)
                    else:
                        value = self._step(step)
                except Exception as failure:
                    step = flow.throw(failure)
                except BaseException as interruption:
                    return self._run_cleanup(flow, interruption)
                else:
                    step = flow.send(value)
        except StopIteration as stop:
            result: T = stop.value
            return result

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

    def _step(self, step: Step) -> Any:
        if isinstance(step, Pipeline):
            return self._pipeline(step.commands, None)[0]
        if isinstance(step, DurablePipeline):
            values, reply = self._pipeline(step.commands, step.durability)
            return (values, *confirmed(step.durability, reply))
        if isinstance(step, AwaitSignal):
            if step.subscription.wait is not None:
                step.subscription.wait(step.seconds)
                return set()
            step.subscription.takes_batches &= not self._calls.is_divided
            deadline, epoch = self._calls.deadline("listen"), self.epoch
            return self._drive(await_signal(step.subscription, step.seconds, deadline, epoch))
        if isinstance(step, Sleep):
            return time.sleep(step.seconds)
        if isinstance(step, TakesTransactions):
            return self._drive(self._calls.takes_transactions(step.key))
        if isinstance(step, InBackground):
            return self._start_in_background(step)
        if isinstance(step, Await):
            raise AssertionError(f"a blocking client has no loop to await {step.awaitable!r} in")
        if isinstance(step, InThread):
            return step.call()
        if isinstance(step, OnEveryMaster):
            return [self.raw_command(step.what, *step.words)]
        assert isinstance(step, RawCommand)
        return self.raw_command(step.what, *step.words)

    def _command(self, command: Command[T]) -> T:
        if command.write:
            return command.parse(self._drive(self._calls.first_command(command)))
        # The first attempt goes without generators: it is the hot path of every call.
        try:
            reply = reply_of(self._exchange(*request_of(command)))
            if isinstance(reply, BaseException):
                raise reply
        except REDIS_ERRORS as error:
            reply = self._drive(self._calls.repeat_command(command, error))
        return command.parse(reply)

    def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        return self._drive(self._calls.pipeline(commands, durability))

    def raw_command(self, name: str, *words: Any) -> Any:
        """Run a plain command that reads, or is safe to run twice; return its reply.

        Args:
            name: what errors call it.
            words: the command.
        """
        return self._drive(self._calls.raw_command(name, words))

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

    def _drive(self, operations: Operations[T]) -> T:
        """Perform operations to their end; return their result."""
        return drive(operations, self._perform)

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

    def _new_pool(self) -> Pool:
        wait_s = self.timeout_s + self.retry_for
        if self.address.sentinels is not None:
            return SentinelPool(self._connector, self.address, wait_s, self.timeout_s)
        new, size = self._connector.new, self.address.max_connections
        return Pool(new, size, wait_s, self.timeout_s)

    def _current_pool(self) -> Pool:
        """Return the pool of this process; a fork gets one of its own."""
        if self._pool.is_inherited:
            self._pool = self._new_pool()
        return self._pool

    @property
    def epoch(self) -> int:
        """Grows when connections have died: an older subscription is made anew."""
        return self._current_pool().epoch

    @property
    def _idle(self) -> list[PooledConnection]:
        """The connections that are open and not in use; for tests."""
        return self._current_pool().idle

    def _exchange(self, packed: bytes, count: int) -> list[Any]:
        """Send commands on one connection; return their replies, server errors included."""
        self.commands += count  # by threads too: a figure for people
        pool = self._current_pool()
        return pool.read(pool.send(packed), count)

    # --- subscriptions ---------------------------------------------------------------------------

    def _subscribed(self, wanted: Subscribe) -> SubscribedConnection:
        return self._subscribed_on(wanted, self._current_pool().new(protocol=2))

    def _subscribed_on(self, wanted: Subscribe, connection: Any) -> SubscribedConnection:
        """Subscribe on a new connection, of RESP2: there a signal is an ordinary reply."""
        epoch, refused = self.epoch, dict[bytes, Exception]()
        try:
            connection.connect()
            connection.send_packed_command((wanted.packed(),), check_health=False)
            for _ in wanted.required:
                connection.read_response()
            for channel in wanted.optional:
                try:
                    connection.read_response()
                except redis.ResponseError as error:
                    if not forbids(error):
                        raise
                    refused[channel] = error
            if wanted.shard:
                try:
                    connection.read_response()
                except redis.ResponseError as error:
                    refused[wanted.shard] = error
        except BaseException as error:
            connection.disconnect()
            if not isinstance(error, REDIS_ERRORS):
                raise
            failure = as_not_connected(error)  # a subscription changes nothing on the server
        else:
            return SubscribedConnection(connection, epoch, refused, Doorbell(connection))
        raise failure

    def add_channel(self, held: SubscribedConnection, channel: bytes) -> bool:
        """Ask for a further channel on a connection that is subscribed; return whether it was.

        Its reply is read later.
        """
        held.connection.send_command("SUBSCRIBE", channel)
        return True

    def is_current(self, held: SubscribedConnection) -> bool:
        """Whether a subscription can stay as it is: no connection has died since it was made."""
        return held.epoch == self.epoch

    def interrupt(self, subscription: Subscription) -> None:
        """End the wait on this subscription, or the next one as it begins; from another thread."""
        held = subscription.held
        if isinstance(held, SubscribedConnection):
            held.waiting.ring()

    def is_reentrant(self, thread: int) -> bool:
        """Whether a signal handler makes this call in the midst of another one, of `thread`."""
        return thread == threading.get_ident()

    def unsubscribe(self, subscription: Subscription) -> None:
        """Close the connection of a subscription."""
        held, subscription.held = subscription.held, None
        if isinstance(held, SubscribedConnection):
            with contextlib.suppress(*REDIS_ERRORS):
                held.connection.disconnect()
            held.waiting.close()
