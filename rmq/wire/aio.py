"""The executor that awaits: drives flows with redis-py's asyncio client. Twin of `blocking`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rmq.commands import Command
from rmq.embedded import Embedded
from rmq.errors import EmbeddedError, RMQError
from rmq.flows import Durably, Flow, Listen, Listener, Members, Pipeline, Sleep, Step
from rmq.settings import Fsync, Replicated
from rmq.trouble import Kind, kind_of, translate
from rmq.url import Address
from rmq.wire.base import (
    FINE_S,
    FIRST_PAUSE_S,
    TROUBLE,
    Attempts,
    Base,
    confirmed,
    culprit_of,
    evalsha,
    hear,
    options,
    parsed,
    wait_words,
    wrong_type,
)

T = TypeVar("T")


class AsyncExecutor(Base):
    """Drives flows inside one event loop. Tasks may share it."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        super().__init__(address, retry_for, timeout_s)
        if address.scheme == "embedded":
            self.embedded = Embedded.open(address.directory)
        self.redis = self._connect()

    def _connect(self) -> aredis.Redis:
        with self.translated("connect"):
            return aredis.Redis.from_url(
                self.url(), retry=Retry(NoBackoff(), 0), **options(self.address, self.timeout_s)
            )

    async def close(self) -> None:
        """Close every connection, and the embedded server if this is its last user."""
        with contextlib.suppress(*TROUBLE):
            await self.redis.aclose()
            await self.redis.connection_pool.disconnect()
        if self.embedded is not None:
            await asyncio.to_thread(self.embedded.close)

    async def run(self, flow: Flow[T]) -> T:
        """Run a conversation to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    value = await self._step(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(value)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _step(self, step: Step) -> Any:
        if isinstance(step, Command):
            return await self._command(step)
        if isinstance(step, Pipeline):
            return (await self._pipeline(step.commands, None))[0]
        if isinstance(step, Durably):
            values, reply = await self._pipeline(step.commands, step.durability)
            return (values, *confirmed(step.durability, reply))
        if isinstance(step, Listen):
            return await self._listen(step.listener, step.seconds)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        return await self._members(step)

    async def _repeat(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until it succeeds, is refused (raised as it is), or patience ends."""
        attempts: Attempts | None = None
        while True:
            try:
                return await attempt()
            except TROUBLE as error:
                if kind_of(error) is Kind.REFUSED:
                    raise
                if attempts is None:
                    attempts = Attempts(self.retry_for)
                await asyncio.sleep(attempts.next_pause(error, what, self.address.shown))
                await self._revive()

    async def _revive(self) -> None:
        """Start the embedded server again where it is gone."""
        if self.embedded is not None:
            before = self.embedded.socket
            with contextlib.suppress(EmbeddedError):
                await asyncio.to_thread(self.embedded.ensure)
            if self.embedded.socket != before:
                self.redis = self._connect()

    async def _command(self, command: Command[T]) -> T:
        async def attempt() -> Any:
            try:
                return await self.redis.execute_command(*evalsha(command))
            except redis.RedisError as error:
                if kind_of(error) is not Kind.RELOAD:
                    raise
            await self.redis.script_load(command.script.text)
            return await self.redis.execute_command(*evalsha(command))

        try:
            reply = await self._repeat(command.script.name, attempt)
        except TROUBLE as error:
            raise await self._explain(command, error) from error
        return command.parse(reply)

    async def _explain(self, command: Command[Any], error: BaseException) -> RMQError:
        culprit = ""
        if wrong_type(error):
            with contextlib.suppress(*TROUBLE):
                culprit = culprit_of(command, [await self.redis.type(key) for key in command.keys])
        return translate(
            error, command.script.name, [key.decode() for key in command.keys], culprit
        )

    async def _pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> tuple[list[Any], Any]:
        async def attempt() -> list[Any]:
            replies = await self._send(commands, durability)
            missing = {
                command.script
                for command, reply in zip(commands, replies, strict=False)
                if isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.RELOAD
            }
            if not missing:
                return replies
            for script in missing:
                await self.redis.script_load(script.text)
            again = [
                number
                for number, reply in enumerate(replies[: len(commands)])
                if isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.RELOAD
            ]
            second = await self._send([commands[number] for number in again], durability)
            for number, reply in zip(again, second, strict=False):
                replies[number] = reply
            if durability is not None:
                replies[-1] = second[-1]
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
        async with self.redis.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*evalsha(command))
            if durability is not None:
                pipe.execute_command(*wait_words(durability))
            replies: list[Any] = await pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, redis.ConnectionError | redis.TimeoutError):
                raise reply
        return replies

    async def _members(self, step: Members) -> list[str]:
        async def attempt() -> Any:
            if step.add is not None:
                return await self.redis.execute_command("SADD", step.key, step.add)
            return await self.redis.execute_command("SMEMBERS", step.key)

        try:
            reply = await self._repeat("topics", attempt)
        except TROUBLE as error:
            raise translate(error, "topics", [step.key.decode()], step.key.decode()) from error
        return [] if step.add is not None else sorted(name.decode() for name in reply)

    async def _listen(self, listener: Listener, seconds: float) -> set[int]:
        if listener.held is None:
            ear = self.redis.pubsub(ignore_subscribe_messages=True)
            try:
                await self._repeat("listen", lambda: ear.subscribe(listener.channel))
            except TROUBLE as error:
                raise translate(error, "listen", [listener.channel.decode()]) from error
            listener.held = ear
            return set()
        until = time.monotonic() + seconds
        signals: set[int] = set()
        try:
            while not signals:
                left = until - time.monotonic()
                if left <= FINE_S:
                    if left > 0:
                        await asyncio.sleep(left)
                    return signals
                hear(await listener.held.get_message(timeout=left - FINE_S), signals)
            while (more := await listener.held.get_message(timeout=0)) is not None:
                hear(more, signals)
        except TROUBLE:
            await self.deafen(
                listener
            )  # the next Listen subscribes again, and the caller looks meanwhile
            await asyncio.sleep(min(FIRST_PAUSE_S, max(0.0, until - time.monotonic())))
        return signals

    async def deafen(self, listener: Listener) -> None:
        """Give up a subscription."""
        ear, listener.held = listener.held, None
        if ear is not None:
            with contextlib.suppress(*TROUBLE):
                await ear.aclose()

    async def ping(self) -> float:
        """Round trip to the server, seconds."""
        started = time.perf_counter()
        try:
            await self._repeat("ping", lambda: self.redis.execute_command("PING"))
        except TROUBLE as error:
            raise translate(error, "ping", []) from error
        return time.perf_counter() - started

    async def info(self, section: str) -> dict[str, Any]:
        """A section of the server's INFO."""
        try:
            found: dict[str, Any] = await self._repeat("info", lambda: self.redis.info(section))
        except TROUBLE as error:
            raise translate(error, "info", []) from error
        return found
