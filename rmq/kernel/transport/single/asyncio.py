"""The asyncio transport: drives flows over asyncio connections of redis-py. Twin of `blocking`.

It keeps its connections at hand and writes to them directly, for the reason given there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, TypeVar

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry

from rmq.errors import RMQError
from rmq.kernel.core.places import Places
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.embedded.embedded import Embedded
from rmq.kernel.transport.flow.coalescing import CoalescingTasks
from rmq.kernel.transport.flow.steps import Await, Flow, InBackground, InThread, Sleep, Step
from rmq.kernel.transport.single.driver import AsyncDriver
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
from rmq.kernel.transport.single.subscription import RUNG
from rmq.kernel.transport.url import Address

T = TypeVar("T")

_AT_ONCE_S = 0.0001  # redis-py takes a timeout of 0 for none at all


class Doorbell:
    """Ends the wait of another task on a connection. A ring that nobody hears ends the next."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_rung = False
        self._scope: asyncio.Timeout | None = None  # of the wait

    def ring(self) -> None:
        """End the wait."""
        if self._scope is not None:
            self._scope.reschedule(0)
        self._has_rung = True

    async def read(self, seconds: float) -> Any:
        """Read one reply; None if none comes in time, RUNG if the bell rings before."""
        if self._has_rung:
            seconds = _AT_ONCE_S
        try:
            async with asyncio.timeout(seconds) as self._scope:
                # Past redis-py's connection: its timeout cannot be moved from another task.
                reply = await self._connection._parser.read_response()
                if isinstance(reply, redis.ResponseError):
                    raise reply
                return reply
        except TimeoutError:
            has_rung, self._has_rung = self._has_rung, False
            return RUNG if has_rung else None
        finally:
            self._scope = None

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class AsyncTransport(AsyncDriver):
    """Drives flows inside one event loop. Tasks may share it. The arguments are `Transport`'s."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        self.address, self.retry_for, self.timeout_s = address, retry_for, timeout_s
        embedded = Embedded.open(address.directory) if address.scheme == "embedded" else None
        self._connector = Connector(
            address.of_a_node, timeout_s, aredis.ConnectionPool, Retry, embedded
        )
        self.commands = 0
        self._calls = ScriptCalls(address, retry_for, timeout_s, set())
        self._pool = self._new_pool()
        self._background: set[asyncio.Task[None]] = set()
        self._coalescing = CoalescingTasks()

    async def close(self) -> None:
        """Close every connection, and the embedded server if this is its last user."""
        for task in self._background:
            task.cancel()
        await self._current_pool().close()
        if self._connector.embedded is None:
            self._connector.close()
        else:
            await asyncio.to_thread(self._connector.close)

    # --- flows -----------------------------------------------------------------------------------

    async def _run_cleanup(self, flow: Flow[T], error: BaseException) -> T:
        """Let an interrupted flow hand back the messages it holds, within HAND_BACK_S."""
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
        assert isinstance(step, InThread)
        return await asyncio.to_thread(step.call)

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
            waiting: Doorbell = operation.subscribed.waiting
            return await waiting.read(max(operation.timeout_s, _AT_ONCE_S))
        if isinstance(operation, Pause):
            return await asyncio.sleep(operation.seconds)
        if isinstance(operation, RestartEmbedded):
            if self._connector.embedded is not None:
                await asyncio.to_thread(self._connector.restart_embedded)
            return None
        if isinstance(operation, Subscribe):
            return await self._subscribed(operation)
        if isinstance(operation, Unsubscribe):
            return await self.unsubscribe(operation.subscription)
        assert isinstance(operation, SendPing)
        return await operation.connection.send_command("PING")

    # --- subscriptions ---------------------------------------------------------------------------

    def is_reentrant(self, callers: Places) -> bool:
        """Never: a signal handler cannot await. Tasks of one thread call each other's objects."""
        return False

    def _doorbell(self, connection: Any) -> Doorbell:
        return Doorbell(connection)

    async def _disconnect(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
