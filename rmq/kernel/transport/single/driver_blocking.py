# Generated from rmq/kernel/transport/single/driver.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.kernel.transport.single.driver`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
import redis

from rmq.errors import RMQError
from rmq.kernel.core.generators import drive
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.core.validation import UNREADABLE
from rmq.kernel.transport.connections.connector import Connector
from rmq.kernel.transport.connections.failures import as_not_connected
from rmq.kernel.transport.connections.operations import Operation, Operations, Subscribe
from rmq.kernel.transport.connections.pool import Pool, words_of
from rmq.kernel.transport.errors import REDIS_ERRORS, forbids
from rmq.kernel.transport.flow.steps import (
    AcceptsTransactions,
    AwaitSignal,
    Coalesce,
    Command,
    DurablePipeline,
    Flow,
    OnEveryMaster,
    Pipeline,
    RawCommand,
    Step,
    Subscription,
)
from rmq.kernel.transport.sentinel.master_pool_blocking import SentinelPool
from rmq.kernel.transport.single.driver import T
from rmq.kernel.transport.single.durability import confirmed
from rmq.kernel.transport.single.server_commands import ServerCommands, unreadable
from rmq.kernel.transport.single.subscription import SubscribedConnection, await_signal
from rmq.kernel.transport.url import Address


class Driver:
    """Runs flows until they end. Several threads may share a driver.

    A flow is a generator that yields commands and waits.
    """

    address: Address
    retry_for: float
    timeout_s: float
    commands: int  # number of commands sent, for people; threads may miscount it
    _pool: Pool
    _connector: Connector
    _server: ServerCommands
    _coalescing: Any

    # --- methods of `blocking` and `asyncio` ----------------------------------------------------

    def _run_cleanup(self, flow: Flow[T], error: BaseException) -> T:
        raise NotImplementedError

    def _own_step(self, step: Step) -> Any:
        """Execute a request that waits, or that continues in the background."""
        raise NotImplementedError

    def _perform(self, operation: Operation) -> Any:
        raise NotImplementedError

    def _new_reader(self, connection: Any) -> Any:
        """Return an object that reads from a connection. Another thread can end its waits."""
        raise NotImplementedError

    def _disconnect(self, connection: Any) -> None:
        raise NotImplementedError

    # --- flows ----------------------------------------------------------------------------------

    def run(
        self,
        flow: Flow[T],
        error: BaseException | None = None,
        before_step: Callable[[], object] | None = None,
    ) -> T:
        """Run a generator of commands to its end, and return its value.

        Args:
            flow: Generator that yields commands, waits and other requests.
            error: Error to raise in the generator at its current position, or None.
            before_step: Function that the driver calls before each request.
        """
        try:
            step = next(flow) if error is None else flow.throw(error)
            while True:
                try:
                    if before_step is not None:
                        before_step()
                    if type(step) is Command:
                        value = self._command(step)
                    elif type(step) is Coalesce:
                        value = self._coalescing.coalesce(step, self.run)
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

    def _step(self, step: Step) -> Any:
        if isinstance(step, Pipeline):
            return (self._pipeline(step.commands, None))[0]
        if isinstance(step, DurablePipeline):
            values, reply = self._pipeline(step.commands, step.durability)
            return (values, *confirmed(step.durability, reply))
        if isinstance(step, AwaitSignal):
            if step.subscription.wait is not None:  # only in a blocking transport
                step.subscription.wait(step.seconds)
                return set()
            step.subscription.takes_batches &= not self._server.is_divided
            deadline, epoch = self._server.deadline("listen"), self.epoch
            return self._drive(await_signal(step.subscription, step.seconds, deadline, epoch))
        if isinstance(step, AcceptsTransactions):
            return self._drive(self._server.accepts_transactions(step.key))
        if isinstance(step, OnEveryMaster):
            return [self.raw_command(step.what, *step.words)]
        if isinstance(step, RawCommand):
            return self.raw_command(step.what, *step.words)
        return self._own_step(step)

    def _command(self, command: Command[T]) -> T:
        if command.write:
            reply = self._drive(self._server.first_command(command))
        else:
            # The first attempt uses no generators, because each call passes here.
            try:
                self.commands += 1
                pool = self._pool if self._pool.is_own else self._current_pool()
                (reply,) = pool.exchange(hiredis.pack_command(words_of(command)), 1)
                if isinstance(reply, BaseException):
                    raise reply
            except REDIS_ERRORS as error:
                reply = self._drive(self._server.repeat_command(command, error))
        try:
            return command.parse(reply)
        except RMQError:
            raise
        except UNREADABLE as error:
            raise unreadable(command, error) from error

    def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        return self._drive(self._server.pipeline(commands, durability))

    def raw_command(self, name: str, *words: Any) -> Any:
        """Execute a plain command and return its reply.

        The command must only read, or be safe to repeat.

        Args:
            name: Name of the command in errors.
            words: The command.
        """
        return self._drive(self._server.raw_command(name, words))

    def _drive(self, operations: Operations[T]) -> T:
        return drive(operations, self._perform)

    # --- connections ----------------------------------------------------------------------------

    def _exchange(self, packed: bytes, count: int, late: bool = False) -> list[Any]:
        self.commands += count
        return self._current_pool().exchange(packed, count, late)

    def _current_pool(self) -> Pool:
        while not self._pool.is_own:
            epoch = self._pool.epoch + 1  # so that subscriptions of the parent are replaced
            self._pool = self._new_pool()
            self._pool.epoch = epoch
        return self._pool

    def _new_pool(self) -> Pool:
        wait_s = self.timeout_s + self.retry_for
        if self.address.sentinels is not None:
            return SentinelPool(self._connector, self.address, wait_s, self.timeout_s)
        new, size = self._connector.new, self.address.max_connections
        return Pool(new, size, wait_s, self.timeout_s)

    @property
    def epoch(self) -> int:
        """A number that grows when connections have died.

        RMQ then replaces subscriptions that have a smaller number.
        """
        return self._current_pool().epoch

    def _subscribed(self, wanted: Subscribe) -> SubscribedConnection:
        return self._subscribed_on(wanted, self._current_pool().new(protocol=2))

    def _subscribed_on(self, wanted: Subscribe, connection: Any) -> SubscribedConnection:
        """Subscribe on a new connection with RESP2, where a wake-up is an ordinary reply."""
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
            self._disconnect(connection)
            if not isinstance(error, REDIS_ERRORS):
                raise
            failure = as_not_connected(error)  # a subscription changes nothing on the server
        else:
            return SubscribedConnection(connection, epoch, refused, self._new_reader(connection))
        raise failure

    def interrupt(self, subscription: Subscription) -> None:
        """End another thread's wait on its subscription: the current wait or the next wait."""
        subscribed = subscription.connection
        if isinstance(subscribed, SubscribedConnection):
            subscribed.reader.wake()

    def unsubscribe(self, subscription: Subscription) -> None:
        """Close the connection of a subscription."""
        subscribed, subscription.connection = subscription.connection, None
        if isinstance(subscribed, SubscribedConnection):
            with contextlib.suppress(*REDIS_ERRORS):
                self._disconnect(subscribed.connection)
            subscribed.reader.close()
