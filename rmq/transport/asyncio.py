"""The transport that awaits: drives flows over asyncio connections of redis-py. Twin of `blocking`.

It keeps its connections at hand and speaks on them directly, as its twin does and for its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import hiredis
import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rmq.core.keys import shown
from rmq.core.settings import Fsync, Replicated
from rmq.errors import EmbeddedError, RMQError
from rmq.protocol.scripts import Script
from rmq.protocol.steps import (
    Await,
    AwaitSignal,
    Command,
    DurablePipeline,
    Flow,
    InBackground,
    Pipeline,
    RawCommand,
    Sleep,
    Step,
    Subscription,
)
from rmq.transport.common import (
    FINE_S,
    FIRST_PAUSE_S,
    HAND_BACK_S,
    Attempts,
    Base,
    Refused,
    SubscribedConnection,
    confirmed,
    culprit_of,
    needs_loading,
    not_permitted,
    options,
    parsed,
    wait_words,
    words_of,
    wrong_type,
)
from rmq.transport.embedded import Embedded
from rmq.transport.pool import TROUBLE, AsyncPool, Connection, leads_elsewhere, not_connected, stale
from rmq.transport.redis_errors import Kind, kind_of, translate
from rmq.transport.url import Address

T = TypeVar("T")


class AsyncTransport(Base):
    """Drives flows inside one event loop. Tasks may share it."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        super().__init__(address, retry_for, timeout_s)
        self._pool = self._new_pool()
        self._loaded: set[Script] = set()
        self._laters: set[Any] = set()
        if address.scheme == "embedded":
            self.embedded = Embedded.open(address.directory)
        self.redis = self._connect()

    def _connect(self) -> aredis.Redis:
        with self.translated("connect"):
            client = aredis.Redis.from_url(
                self.url(), retry=Retry(NoBackoff(), 0), **options(self.address, self.timeout_s)
            )
            pool = client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # refuses options that there are not
            return client

    async def close(self) -> None:
        """Close every connection, and the embedded server if this is its last user."""
        for task in self._laters:
            task.cancel()
        await self._pool_here().close()
        with contextlib.suppress(*TROUBLE):
            await self.redis.aclose()
        if self.embedded is not None:
            await asyncio.to_thread(self.embedded.close)

    async def run(self, flow: Flow[T], error: BaseException | None = None) -> T:
        """Run a conversation to its end. `error`: raised in it where it stands now."""
        try:
            step = next(flow) if error is None else flow.throw(error)
            while True:
                try:
                    value = (
                        await self._command(step)
                        if type(step) is Command
                        else await self._step(step)
                    )
                except Exception as failure:
                    step = flow.throw(failure)
                except BaseException as interruption:
                    return await self._leave(flow, interruption)
                else:
                    step = flow.send(value)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _leave(self, flow: Flow[T], error: BaseException) -> T:
        """Let an interrupted conversation hand back what it holds; soon, or not at all."""
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
            return await self._listen(step.subscription, step.seconds)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, InBackground):
            return self._later(step)
        if isinstance(step, Await):
            return await self._awaited(step)
        assert isinstance(step, RawCommand)
        return await self.ask(step.what, *step.words)

    def _later(self, step: InBackground) -> None:
        task = asyncio.get_running_loop().create_task(self._beside(step))
        self._laters.add(task)
        task.add_done_callback(self._laters.discard)

    async def _beside(self, step: InBackground) -> None:
        await asyncio.sleep(step.seconds)
        with contextlib.suppress(RMQError):
            await self.run(step.flow())

    async def _awaited(self, step: Await) -> Any:
        return await step.awaitable

    def _line(self, **changes: Any) -> Any:
        """A new connection, as redis-py would make it, not yet connected."""
        pool = self.redis.connection_pool
        return pool.connection_class(**{**pool.connection_kwargs, **changes})

    def _new_pool(self) -> AsyncPool:
        return AsyncPool(*self.bounds())

    def _pool_here(self) -> AsyncPool:
        """The connections of this event loop; a program may run one loop after another."""
        loop = asyncio.get_running_loop()
        if self.forked() or self._pool.loop not in (None, loop):
            self._pool = self._new_pool()
        self._pool.loop = loop
        return self._pool

    @property
    def _idle(self) -> list[Connection]:
        """The connections that are open and not in use; for tests."""
        return self._pool_here().idle

    async def _exchange(self, packed: bytes, count: int) -> list[Any]:
        """Send commands on one connection; their replies, errors of the server among them."""
        pool = self._pool_here()
        connection = await pool.take(self._line)
        line, replies, elsewhere = connection.line, [], False
        try:
            await line.send_packed_command((packed,), check_health=False)
            for _ in range(count):
                try:
                    replies.append(await line.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
                    elsewhere = elsewhere or leads_elsewhere(error)
        except TROUBLE as error:
            was_used = connection.used > 0
            await pool.discard(connection, incident=was_used or leads_elsewhere(error))
            if not was_used:
                raise
            failure = stale(error)
        except BaseException:
            # A late reply must not answer the next command.
            await pool.discard(connection, incident=False)
            raise
        else:
            if elsewhere:
                await pool.discard(connection, incident=True)
            else:
                pool.give(connection)
            return replies
        raise failure

    async def _ask(self, *words: Any) -> Any:
        reply = (await self._exchange(hiredis.pack_command(words), 1))[0]
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def _load(self, script: Script) -> None:
        await self._ask("SCRIPT", "LOAD", script.text)
        self._loaded.add(script)

    async def _repeat(
        self, what: str, attempt: Callable[[], Awaitable[T]], first: BaseException | None = None
    ) -> T:
        """Attempt until it succeeds, is refused (raised as it is), or patience ends."""
        attempts = Attempts(self.retry_for)
        error = first
        while True:
            if error is not None:
                if kind_of(error) is Kind.REFUSED:
                    raise error
                await asyncio.sleep(attempts.next_pause(error, what, self.address))
                await self._revive()
            try:
                return await attempt()
            except TROUBLE as again:
                error = again

    async def _revive(self) -> None:
        """Start the embedded server again where it is gone."""
        if self.embedded is not None:
            before = self.embedded.socket
            with contextlib.suppress(EmbeddedError):
                await asyncio.to_thread(self.embedded.ensure)
            if self.embedded.socket != before:
                self.redis = self._connect()

    async def _command(self, command: Command[T]) -> T:
        words = words_of(command)

        async def attempt() -> Any:
            words = words_of(command.again())
            try:
                return await self._ask(*words)
            except redis.ResponseError as error:
                if not needs_loading(error):
                    raise
            await self._load(command.script)
            return await self._ask(*words)

        try:
            try:
                reply = await self._ask(*words)
            except TROUBLE as error:
                first = None if needs_loading(error) else error
                reply = await self._repeat(command.script.name, attempt, first)
        except TROUBLE as error:
            raise await self._explain(command, error) from error
        return command.parse(reply)

    async def _explain(self, command: Command[Any], error: BaseException) -> RMQError:
        culprit = ""
        if wrong_type(error):
            with contextlib.suppress(*TROUBLE):
                culprit = culprit_of(
                    command, [await self._ask("TYPE", key) for key in command.keys]
                )
        return translate(error, command.script.name, [shown(key) for key in command.keys], culprit)

    async def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        self.patient(durability)

        async def attempt() -> list[Any]:
            # Loaded beforehand: a command repeated alone would come after its successors.
            for script in {command.script for command in commands} - self._loaded:
                await self._load(script)
            replies = await self._send(commands, durability)
            again = [n for n in range(len(commands)) if needs_loading(replies[n])]
            if again:
                for script in {commands[n].script for n in again}:
                    await self._load(script)
                second = await self._send([commands[n] for n in again], durability)
                for number, reply in zip(again, second, strict=False):
                    if needs_loading(reply):
                        raise reply  # flushed once more: all of it again, as in _send
                    replies[number] = reply
                if durability is not None:
                    replies[-1] = second[-1]  # what was waited for covers the repeated ones too
            return replies

        try:
            replies = await self._repeat(commands[0].script.name, attempt)
        except TROUBLE as error:
            raise await self._explain(commands[0], error) from error
        values = [
            await self._explain(command, reply)
            if isinstance(reply, BaseException)
            else parsed(command, reply)
            for command, reply in zip(commands, replies, strict=False)
        ]
        return values, replies[-1]

    async def _send(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> list[Any]:
        calls = [words_of(command) for command in commands]
        if durability is not None:
            calls.append(wait_words(durability))
        replies = await self._exchange(b"".join(map(hiredis.pack_command, calls)), len(calls))
        for reply in replies:
            if isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.AGAIN:
                raise reply  # all of it again: what was done is safe to do twice
        return replies

    async def _subscribed(self, channel: bytes) -> SubscribedConnection:
        """A connection that listens to the channel: RESP2, where a signal is an ordinary reply."""
        incident = self._pool_here().incident
        line = self._line(protocol=2)
        try:
            await line.connect()
            await line.send_command("SUBSCRIBE", channel)
            await line.read_response()
        except BaseException as error:
            await line.disconnect(nowait=True)
            if not isinstance(error, TROUBLE):
                raise
            failure = not_connected(error)  # to listen changes nothing
        else:
            return SubscribedConnection(line, incident)
        raise failure

    async def _listen(self, subscription: Subscription, seconds: float) -> set[int]:
        signals: set[int] = set()
        if subscription.held is None:
            try:
                subscription.held = await self._repeat(
                    "listen", lambda: self._subscribed(subscription.channel)
                )
            except TROUBLE as error:
                if not not_permitted(error):
                    raise translate(error, "listen", [subscription.channel.decode()]) from error
                subscription.held = Refused(subscription.channel)
            return signals
        held, until = subscription.held, time.monotonic() + seconds
        if isinstance(held, Refused):
            await asyncio.sleep(max(0.0, seconds))
            if time.monotonic() > held.until:
                subscription.held = None
            return signals
        line = held.line
        try:
            if held.incident != self._pool_here().incident:
                raise redis.ConnectionError("other connections of this client have died")
            while not signals:
                left = until - time.monotonic()
                if left <= FINE_S:
                    if left > 0:
                        await asyncio.sleep(left)
                    return signals
                if held.is_to_ping():
                    await line.send_command("PING")
                reply = await line.read_response(timeout=max(left - FINE_S, 0.0001))
                if reply is None:
                    held.was_silent()
                else:
                    held.hear(reply, signals)
            if until - time.monotonic() > seconds - FINE_S:
                # It was there before we listened, so others may be behind it.
                while (reply := await line.read_response(timeout=0.0001)) is not None:
                    held.hear(reply, signals)
        except TROUBLE:
            await self.unsubscribe(
                subscription
            )  # the next Listen subscribes again, and the caller looks
            await asyncio.sleep(min(FIRST_PAUSE_S, max(0.0, until - time.monotonic())))
        return signals

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Give up a subscription."""
        held, subscription.held = subscription.held, None
        if isinstance(held, SubscribedConnection):
            with contextlib.suppress(*TROUBLE):
                await held.line.disconnect(nowait=True)

    async def ask(self, what: str, *words: Any) -> Any:
        """A plain command that reads, or is safe to run twice."""
        try:
            return await self._repeat(what, lambda: self._ask(*words))
        except TROUBLE as error:
            raise translate(
                error, what, [w.decode() if isinstance(w, bytes) else str(w) for w in words[1:2]]
            ) from error
