"""Drain: run handlers in the calling thread until nothing is due, by the rules of the worker.

What a failure means is ruled by `rmq.worker.runner`, and carried out by the worker's own desk. Only
the crew is missing: one message is taken, run and settled before the next is taken, and a topic's
turn comes after each message. So a test sees one order, and an error where it happened.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

from rmq.client.consumer import Delivery
from rmq.client.handler import Handler
from rmq.core.delivery import OPEN, DeliveryData, Reject, Retry, Snooze
from rmq.core.ids import MessageId
from rmq.core.interceptor import Hooks
from rmq.core.topic_context import TopicContext
from rmq.errors import DecodeError, StorageError
from rmq.protocol import commands
from rmq.protocol.flows import open_topic
from rmq.protocol.steps import Flow
from rmq.testing.clock import Clock
from rmq.transport import Transport
from rmq.worker.lease_table import LeaseTable
from rmq.worker.leased_consumer import LeasedConsumer
from rmq.worker.runner import Disposition, Overrun, Runner, runtime_exceeded

T = TypeVar("T")
TRIES = 10  # a worker goes on trying for ever, with pauses; here a fault must come to an end
STEP_US = 1000  # the least that the clock is moved

Verb = Literal["ack", "nack", "reject", "release", "lost", "own"]
Dispositions = list[tuple[DeliveryData, Disposition]]


class Endless(AssertionError):
    """A drain did not come to its end: messages come back, or make others, faster than they go."""


class Result(NamedTuple):
    """What became of one run of a handler.

    Attributes:
        topic: its name.
        id: of the message.
        body: as the handler got it; raw where it did not fit.
        attempt: 1 for the first delivery, 2 for the first retry.
        verb: "ack", "nack" (a retry, or dead where none remained), "reject", "release" (snoozed),
            "lost" (its lease had gone), "own" (the handler settled it by itself).
        error: what the handler raised; DecodeError where the body did not fit.
    """

    topic: str
    id: MessageId
    body: Any
    attempt: int
    verb: Verb
    error: BaseException | None


class Line:
    """One handler with what serves it."""

    def __init__(
        self,
        handler: Handler,
        transport: Transport,
        hooks: Hooks,
        lease_table: LeaseTable,
        number: int,
    ) -> None:
        self.name = handler.context.name
        self.context = handler.context
        self.handler = copy.copy(handler)
        self.handler.function = self._noting(handler.function)
        if not handler.is_async:
            hooks.refuse_async("a plain handler", ("before_handle", "after_handle"))
        self.consumer = LeasedConsumer(transport, handler, lease_table, number)
        self.runner = Runner(self.handler, hooks)
        self.raised: BaseException | None = None

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, noting what it raises before a rule makes something of it."""
        if self.handler.is_async:

            async def noted_async(*args: Any, **filled: Any) -> Any:
                try:
                    return await function(*args, **filled)
                except BaseException as error:
                    self.raised = error
                    raise

            return noted_async

        def noted(*args: Any, **filled: Any) -> Any:
            try:
                return function(*args, **filled)
            except BaseException as error:
                self.raised = error
                raise

        return noted

    def take(self) -> list[DeliveryData]:
        """The next message, or a batch."""
        self.consumer._receive_state.ready_at = []  # what it knows of its slots is in real time
        most = self.handler.batch or 1
        return cast("list[DeliveryData]", tried(lambda: self.consumer.take(most, 0)))

    def run(self, found: list[DeliveryData]) -> Dispositions:
        """Run a plain function."""
        self.raised, started = None, time.monotonic()
        if self.handler.batch:
            dispositions = self.runner.run_batch(found)
        else:
            dispositions = [(found[0], self.runner.run(found[0]))]
        took = time.monotonic() - started
        return [(one, self._in_time(one, disposition, took)) for one, disposition in dispositions]

    def _in_time(self, one: DeliveryData, disposition: Disposition, took: float) -> Disposition:
        """The ruling, unless it came later than a worker waits for it."""
        limit = self.handler.runtime_of(one)
        if limit is None or took <= limit or one._state != OPEN:
            return disposition
        self.raised = runtime_exceeded(limit)
        return self.runner.disposition_of_overrun(Overrun(one, limit))

    async def run_async(self, found: list[DeliveryData]) -> Dispositions:
        """Run an async function."""
        self.raised = None
        if self.handler.batch:
            return await self.runner.run_batch_async(found)
        return [(found[0], await self.runner.run_async(found[0]))]

    def settle(self, one: DeliveryData, disposition: Disposition) -> Result:
        """Carry out a ruling."""
        verb: Verb = disposition.verb
        mine, error = cast("list[Delivery]", [one]), self.raised
        if isinstance(error, asyncio.CancelledError):  # at its max_runtime
            error = disposition.error if isinstance(disposition.error, BaseException) else None
        elif disposition.verb == "reject" and disposition.kind == "u":
            error = DecodeError(str(disposition.error))
        if one._state != OPEN:
            verb = "own"
        elif tried(lambda: self._carry_out(mine, disposition)):
            verb = "lost"
        self.consumer.lease_table.remove(mine)
        return Result(self.name, one.id, one.body, one.attempt, verb, error)

    def _carry_out(self, mine: list[Delivery], disposition: Disposition) -> list[Delivery]:
        if disposition.verb == "ack":
            return self.consumer.ack(mine)
        if disposition.verb == "nack":
            return self.consumer.fail(mine, disposition.wait_s, {mine[0]: disposition.error})
        if disposition.verb == "release":
            return self.consumer.release(mine, delay=disposition.wait_s or 0)
        return self.consumer.bury(mine, disposition.error or "rejected", disposition.kind)


def tried(call: Callable[[], T]) -> T:
    """Call; again where Redis was away, as a worker does, but not for ever."""
    for _ in range(TRIES - 1):
        try:
            return call()
        except StorageError:
            continue
    return call()


def _until(context: TopicContext) -> Flow[list[int]]:
    yield from open_topic.ensure_open(context)
    waits: list[int] = yield commands.next_ready(context.slots, False)
    return waits


class Drain:
    """One drain: which lines, how far the clock may go, when to give up."""

    def __init__(
        self,
        lines: Sequence[Line],
        plain: Transport,
        clock: Clock | None,
        advance_us: int | None,
        raises: bool,
        limit: int,
    ) -> None:
        self._lines = lines
        self._plain = plain
        self._clock = clock
        self._end_us = None if clock is None or advance_us is None else clock.now_us + advance_us
        self._raises = raises
        self._limit = limit
        self._results: list[Result] = []

    def steps(self) -> Generator[tuple[Line, list[DeliveryData]], Dispositions, list[Result]]:
        """Yields what is to be run, and is sent the rulings."""
        idle = 0
        while True:
            busy = False
            for line in self._lines:
                found = line.take()
                if not found:
                    continue
                busy = True
                self._bounded(len(self._results) >= self._limit, found, line)
                try:
                    dispositions = yield line, found
                except BaseException:
                    line.consumer.release([one for one in found if one._state == OPEN])  # type: ignore[misc]
                    raise
                done = [line.settle(one, disposition) for one, disposition in dispositions]
                self._results += done
                self._raise(line, done)
            idle = 0 if busy else idle + 1
            self._bounded(idle > self._limit, [], self._lines[0])
            if not busy and not self._moved():
                return self._results

    def _bounded(self, over: bool, found: list[DeliveryData], line: Line) -> None:
        if not over:
            return
        line.consumer.release([one for one in found if one._state == OPEN])  # type: ignore[misc]
        last = ", ".join(f"{one.topic} {one.body!r} {one.verb}" for one in self._results[-5:])
        raise Endless(
            f"drain: {len(self._results)} runs, and there is more in {line.name!r}; a handler "
            f"sends to itself, or a message comes back for ever. The last runs: {last or 'none'}. "
            "Where that many are meant, give drain(limit=...)"
        )

    def _raise(self, line: Line, done: list[Result]) -> None:
        raised = line.raised
        if raised is not None and not isinstance(raised, Exception | SystemExit):
            raise raised  # Ctrl-C, or pytest.fail() in a handler: not for a retry to hide
        for one in done if self._raises else ():
            if one.error is not None and not isinstance(one.error, Snooze | Retry | Reject):
                raise one.error

    def _moved(self) -> bool:
        """Move the clock to where something is due; False where nothing is, or not so soon."""
        if self._clock is None or self._end_us == self._clock.now_us:
            return False
        waits = [
            wait
            for line in self._lines
            for wait in self._plain.run(_until(line.context))
            if wait >= 0
        ]
        aim = self._clock.now_us + max(STEP_US, min(waits)) if waits else None
        if self._end_us is not None and (aim is None or aim > self._end_us):
            aim = self._end_us  # the whole of it passes, whatever is due
        if aim is None:
            return False
        self._clock._go(aim)
        return True


def run(drain: Drain, loop: Callable[[Awaitable[Any]], Any]) -> list[Result]:
    """Drive a drain; `loop` runs what is async to its end."""
    steps = drain.steps()
    try:
        line, found = next(steps)
        while True:
            try:
                dispositions = (
                    loop(line.run_async(found)) if line.handler.is_async else line.run(found)
                )
            except BaseException as error:
                steps.throw(error)
                raise
            line, found = steps.send(dispositions)
    except StopIteration as stop:
        results: list[Result] = stop.value
        return results


async def run_async(drain: Drain) -> list[Result]:
    """Drive a drain inside an event loop. Twin of `run`."""
    steps, task = drain.steps(), asyncio.current_task()
    try:
        line, found = next(steps)
        while True:
            try:
                if line.handler.is_async:
                    dispositions = await line.run_async(found)
                else:
                    dispositions = line.run(found)
                await asyncio.sleep(0)
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError  # a runner makes a release of it, and goes on
            except BaseException as error:
                steps.throw(error)
                raise
            line, found = steps.send(dispositions)
    except StopIteration as stop:
        results: list[Result] = stop.value
        return results
