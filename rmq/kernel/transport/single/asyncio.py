"""Run flows over asyncio connections of redis-py.

Like the transport in the module `blocking`, this transport writes to its connections directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, TypeVar

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry

from rmq.errors import RMQError
from rmq.kernel.core.coalescer import Permits
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.connections.failures import keep_cancellation
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
from rmq.kernel.transport.flow.coalescing import CoalescingTasks
from rmq.kernel.transport.flow.steps import (
    Await,
    AwaitEvent,
    Flow,
    InBackground,
    InThread,
    Sleep,
    Step,
)
from rmq.kernel.transport.single.driver import HAND_BACK_S, AsyncDriver
from rmq.kernel.transport.single.server_commands import ServerCommands
from rmq.kernel.transport.single.subscription import INTERRUPTED
from rmq.kernel.transport.url import Address

T = TypeVar("T")

_AT_ONCE_S = 0.0001  # redis-py reads a timeout of 0 as no timeout


class InterruptibleReader:
    """Reads replies from a connection. Another task can end a wait for a reply.

    Attributes:
        last_reply_at: Monotonic time of the last reply. Before the first reply, time when this
            object was created.
    """

    def __init__(self, connection: Any) -> None:
        self.last_reply_at = time.monotonic()
        self._connection = connection
        self._is_woken = False
        self._scope: asyncio.Timeout | None = None  # of the wait

    def wake(self) -> None:
        """End the current or the next wait of a read."""
        if self._scope is not None:
            with contextlib.suppress(RuntimeError):  # the wait is about to end, or has ended
                self._scope.reschedule(0)
        self._is_woken = True

    async def read(self, seconds: float) -> Any:
        """Return one reply, None after `seconds`, or INTERRUPTED if `wake` was called."""
        if self._is_woken:
            seconds = _AT_ONCE_S
        try:
            async with asyncio.timeout(seconds) as self._scope:
                # Not by redis-py's own method, because another task cannot end its timeout.
                reply = await self._connection._parser.read_response()
                if isinstance(reply, redis.ResponseError):
                    raise reply
                self.last_reply_at = time.monotonic()
                return reply
        except TimeoutError:
            is_woken, self._is_woken = self._is_woken, False
            return INTERRUPTED if is_woken else None
        finally:
            self._scope = None

    def close(self) -> None:
        """Do nothing, because there is nothing to close."""


class AsyncTransport(AsyncDriver):
    """Runs flows inside one event loop, for any number of tasks.

    A flow is a generator that yields commands and waits. The arguments are the same as for
    `Transport`.
    """

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        self.address, self.retry_for, self.timeout_s = address, retry_for, timeout_s
        embedded = Embedded.open(address.directory) if address.scheme == "embedded" else None
        self._connector = Connector(
            address.of_a_node, timeout_s, aredis.ConnectionPool, Retry, embedded
        )
        self.commands = 0
        self._server = ServerCommands(address, retry_for, timeout_s, set())
        self._pool = self._new_pool()
        self._background: set[asyncio.Task[None]] = set()
        self._coalescing = CoalescingTasks()

    async def close(self) -> None:
        """Close all connections. Stop the embedded server if this transport is its last user."""
        for task in self._background:
            task.cancel()
        await self._current_pool().close()
        if self._connector.embedded is None:
            self._connector.close()
        else:
            await asyncio.to_thread(self._connector.close)

    # --- flows -----------------------------------------------------------------------------------

    async def _run_cleanup(self, flow: Flow[T], error: BaseException) -> T:
        """Release the messages of an interrupted flow, within HAND_BACK_S seconds."""
        try:
            async with asyncio.timeout(HAND_BACK_S):
                return await self.run(flow, error)
        except Exception as failure:
            raise error from failure

    async def _own_step(self, step: Step) -> Any:
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, InBackground):
            return self._start_in_background(step)
        if isinstance(step, Await):
            return await step.awaitable
        if isinstance(step, AwaitEvent):
            return await self._await_event(step)
        assert isinstance(step, InThread)
        return await asyncio.to_thread(step.call)

    async def _await_event(self, step: AwaitEvent) -> None:
        event = asyncio.Event()
        step.event.on_set(event.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(step.seconds):
                await event.wait()

    def _start_in_background(self, step: InBackground) -> None:
        task = asyncio.get_running_loop().create_task(self._run_in_background(step))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run_in_background(self, step: InBackground) -> None:
        await asyncio.sleep(step.seconds)
        with contextlib.suppress(RMQError):
            await self.run(step.flow())

    # --- operations ------------------------------------------------------------------------------

    async def _perform(self, operation: Operation) -> Any:
        if isinstance(operation, Exchange):
            return await self._exchange(operation.packed, operation.count, operation.late)
        if isinstance(operation, Read):
            reader: InterruptibleReader = operation.subscribed.reader
            return await reader.read(max(operation.timeout_s, _AT_ONCE_S))
        if isinstance(operation, Pause):
            return await asyncio.sleep(operation.seconds)
        if isinstance(operation, RestartEmbedded):
            if self._connector.embedded is not None:
                await asyncio.to_thread(self._connector.restart_embedded)
            return None
        if isinstance(operation, Subscribe):
            subscribed = None
            try:
                with keep_cancellation():
                    subscribed = await self._subscribed(operation)
                return subscribed
            except asyncio.CancelledError:
                if subscribed is not None:
                    await self._disconnect(subscribed.connection)
                raise
        if isinstance(operation, Unsubscribe):
            return await self.unsubscribe(operation.subscription)
        assert isinstance(operation, SendCommand)
        return await operation.connection.send_command(*operation.words)

    # --- subscriptions ---------------------------------------------------------------------------

    def is_reentrant(self, callers: Permits) -> bool:
        """Return False, because a signal handler cannot interrupt a call and then await another."""
        return False

    def _new_reader(self, connection: Any) -> InterruptibleReader:
        return InterruptibleReader(connection)

    async def _disconnect(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
