"""The asyncio transport: drives flows over asyncio connections of redis-py. Twin of `sync`.

It keeps its connections at hand and writes to them directly, for the reason given there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, TypeVar

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry

from rmq.errors import RMQError
from rmq.kernel.core.generators import drive_async
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
from rmq.kernel.transport.coalescing import TaskSharing
from rmq.kernel.transport.connector import Connector
from rmq.kernel.transport.embedded import Embedded
from rmq.kernel.transport.errors import REDIS_ERRORS, forbids
from rmq.kernel.transport.pool import (
    AsyncPool,
    PooledConnection,
    as_not_connected,
    reply_of,
    request_of,
)
from rmq.kernel.transport.sentinel import AsyncSentinelPool
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


class AsyncTransport:
    """Drives flows inside one event loop. Tasks may share it. The arguments are `Transport`'s."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        self.address, self.retry_for, self.timeout_s = address, retry_for, timeout_s
        embedded = Embedded.open(address.directory) if address.scheme == "embedded" else None
        self._connector = Connector(
            address.of_a_node, timeout_s, aredis.ConnectionPool, Retry, embedded
        )
        self._calls = ScriptCalls(address, retry_for, timeout_s, set())
        self._pool = self._new_pool()
        self._background: set[asyncio.Task[None]] = set()
        self._sharing = TaskSharing()

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

    async def run(self, flow: Flow[T], error: BaseException | None = None) -> T:
        """As `Transport.run`."""
        try:
            step = next(flow) if error is None else flow.throw(error)
            while True:
                try:
                    if type(step) is Command:
                        value = await self._command(step)
                    elif type(step) is Coalesce:
                        value = await self._sharing.share(step, self.run)
                    else:
                        value = await self._step(step)
                except Exception as failure:
                    step = flow.throw(failure)
                except BaseException as interruption:
                    return await self._run_cleanup(flow, interruption)
                else:
                    step = flow.send(value)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _run_cleanup(self, flow: Flow[T], error: BaseException) -> T:
        """Let an interrupted flow hand back the messages it holds, within HAND_BACK_S."""
        try:
            async with asyncio.timeout(HAND_BACK_S):
                return await self.run(flow, error)
        except Exception as failure:
            raise error from failure

    async def _step(self, step: Step) -> Any:
        if isinstance(step, Pipeline):
            return (await self._pipeline(step.commands, None))[0]
        if isinstance(step, DurablePipeline):
            values, reply = await self._pipeline(step.commands, step.durability)
            return (values, *confirmed(step.durability, reply))
        if isinstance(step, AwaitSignal):
            step.subscription.takes_batches &= not self._calls.is_divided
            deadline, epoch = self._calls.deadline("listen"), self.epoch
            return await self._drive(await_signal(step.subscription, step.seconds, deadline, epoch))
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, TakesTransactions):
            return await self._drive(self._calls.takes_transactions(step.key))
        if isinstance(step, InBackground):
            return self._start_in_background(step)
        if isinstance(step, Await):
            return await step.awaitable
        if isinstance(step, InThread):
            return await asyncio.to_thread(step.call)
        if isinstance(step, OnEveryMaster):
            return [await self.raw_command(step.what, *step.words)]
        assert isinstance(step, RawCommand)
        return await self.raw_command(step.what, *step.words)

    async def _command(self, command: Command[T]) -> T:
        if command.write:
            return command.parse(await self._drive(self._calls.first_command(command)))
        try:
            reply = reply_of(await self._exchange(*request_of(command)))
            if isinstance(reply, BaseException):
                raise reply
        except REDIS_ERRORS as error:
            reply = await self._drive(self._calls.repeat_command(command, error))
        return command.parse(reply)

    async def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        return await self._drive(self._calls.pipeline(commands, durability))

    async def raw_command(self, name: str, *words: Any) -> Any:
        """As `Transport.raw_command`."""
        return await self._drive(self._calls.raw_command(name, words))

    def _start_in_background(self, step: InBackground) -> None:
        task = asyncio.get_running_loop().create_task(self._run_in_background(step))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run_in_background(self, step: InBackground) -> None:
        await asyncio.sleep(step.seconds)
        with contextlib.suppress(RMQError):
            await self.run(step.flow())

    # --- operations ------------------------------------------------------------------------------

    async def _drive(self, operations: Operations[T]) -> T:
        """Perform operations to their end; return their result."""
        return await drive_async(operations, self._perform)

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

    def _new_pool(self) -> AsyncPool:
        wait_s = self.timeout_s + self.retry_for
        if self.address.sentinels is not None:
            return AsyncSentinelPool(self._connector, self.address, wait_s, self.timeout_s)
        new, size = self._connector.new, self.address.max_connections
        return AsyncPool(new, size, wait_s, self.timeout_s)

    def _current_pool(self) -> AsyncPool:
        """Return the pool of this event loop; a program may run one loop after another."""
        loop = asyncio.get_running_loop()
        if self._pool.is_inherited or self._pool.loop not in (None, loop):
            self._pool = self._new_pool()
        self._pool.loop = loop
        return self._pool

    @property
    def epoch(self) -> int:
        """Grows when connections have died: an older subscription is made anew."""
        return self._current_pool().epoch

    @property
    def _idle(self) -> list[PooledConnection]:
        """The connections that are open and not in use; for tests."""
        return self._current_pool().idle

    async def _exchange(self, packed: bytes, count: int, late: bool = False) -> list[Any]:
        """Send commands on one connection; return their replies, server errors included."""
        return await self._current_pool().exchange(packed, count, late)

    # --- subscriptions ---------------------------------------------------------------------------

    async def _subscribed(self, wanted: Subscribe) -> SubscribedConnection:
        return await self._subscribed_on(wanted, self._current_pool().new(protocol=2))

    async def _subscribed_on(self, wanted: Subscribe, connection: Any) -> SubscribedConnection:
        """Subscribe on a new connection, of RESP2: there a signal is an ordinary reply."""
        epoch, refused = self.epoch, dict[bytes, Exception]()
        try:
            await connection.connect()
            await connection.send_packed_command((wanted.packed(),), check_health=False)
            for _ in wanted.required:
                await connection.read_response()
            for channel in wanted.optional:
                try:
                    await connection.read_response()
                except redis.ResponseError as error:
                    if not forbids(error):
                        raise
                    refused[channel] = error
            if wanted.shard:
                try:
                    await connection.read_response()
                except redis.ResponseError as error:
                    refused[wanted.shard] = error
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if not isinstance(error, REDIS_ERRORS):
                raise
            failure = as_not_connected(error)  # a subscription changes nothing on the server
        else:
            return SubscribedConnection(connection, epoch, refused, Doorbell(connection))
        raise failure

    def interrupt(self, subscription: Subscription) -> None:
        """End the wait on this subscription, or the next one as it begins; from another task."""
        held = subscription.held
        if isinstance(held, SubscribedConnection):
            held.waiting.ring()

    def is_reentrant(self, thread: int) -> bool:
        """Never: a signal handler cannot await. Tasks of one thread call each other's objects."""
        return False

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Close the connection of a subscription."""
        held, subscription.held = subscription.held, None
        if isinstance(held, SubscribedConnection):
            with contextlib.suppress(*REDIS_ERRORS):
                await held.connection.disconnect(nowait=True)
            held.waiting.close()
