"""Run handlers in the calling thread until no message is due, by the rules of a worker.

Such a run of all due messages is called a drain. A drain uses the same code as a worker, but in one
thread. It receives, handles and settles one message after another, and the topics take turns. So
the order of runs is always the same, and an error appears at the line of the test that calls
`drain`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from rmq.errors import DecodeError, StorageError
from rmq.kernel.consumer import scripts
from rmq.kernel.core.generators import drive, drive_async
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.interceptor import Hooks, Interceptor
from rmq.kernel.delivery.dispositions import DISPOSITIONS
from rmq.kernel.delivery.inner_delivery import OPEN, InnerDelivery
from rmq.kernel.follow_ups.sweep import sweep
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.handlers.scopes import Values
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.blocking import Transport
from rmq.testing.clock import Clock
from rmq.testing.dependencies import DrainedScope
from rmq.worker.handled_topic import MakeDelivery, close_flows, delivery_maker, make_flows
from rmq.worker.receiving.claiming import claim_keys
from rmq.worker.running.invoker import CancellableInvoker, invoker_class
from rmq.worker.running.invoker_blocking import PlainInvoker
from rmq.worker.running_worker import check_hooks
from rmq.worker.settling.disposition import Disposition, runtime_exceeded
from rmq.worker.settling.unhandled import Unhandled

T = TypeVar("T")
TRIES_MAX = 10  # a worker retries forever, but a drain must end
STEP_US = 1000  # the smallest step of the clock

Verb = Literal["ack", "nack", "reject", "release", "cancelled", "lost", "own"]
Dispositions = list[tuple[InnerDelivery, Disposition]]


class Endless(AssertionError):
    """Raised if a drain does not end, because messages arrive as fast as handlers run."""


class Result(NamedTuple):
    """The result of one run of a handler.

    Attributes:
        topic: Name of the topic.
        id: Id of the message.
        body: Body that the handler received. If the body does not fit the handler's type, the body
            without conversion.
        attempt: 1 for the first delivery, 2 for the first retry.
        verb: How the delivery was settled: "ack", "nack" (a retry, or a dead letter if no retry
            remained), "reject", "release" (snoozed), "cancelled" (a program asked for it), "lost"
            (the lease was lost), or "own" (the handler settled the delivery itself).
        error: Exception that the handler raised, or DecodeError if the body does not fit.
        type: Type of the message. If the type has no handler, nothing runs. The verb is then
            "release", or "reject" if the message has waited longer than the topic's setting
            `unhandled`.
    """

    topic: str
    id: MessageId
    body: Any
    attempt: int
    verb: Verb
    error: BaseException | None
    type: str | None = None


class _Recorder(Interceptor):
    """Records the exception of a run, before a retry rule replaces it."""

    def __init__(self, drained: DrainedHandler) -> None:
        self._drained = drained

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._drained.raised = error
            raise

    def around_handle(self, delivery: Any, call_next: Callable[[Any], None]) -> None:
        with self._recording():
            call_next(delivery)

    async def around_handle_async(
        self, delivery: Any, call_next: Callable[[Any], Awaitable[None]]
    ) -> None:
        with self._recording():
            await call_next(delivery)

    def around_batch(self, deliveries: Any, call_next: Callable[[Any], None]) -> None:
        self.around_handle(deliveries, call_next)

    async def around_batch_async(
        self, deliveries: Any, call_next: Callable[[Any], Awaitable[None]]
    ) -> None:
        await self.around_handle_async(deliveries, call_next)


class DrainedHandler:
    """A handler, and the code of the worker that runs it."""

    def __init__(
        self, handler: Handler, make: MakeDelivery, hooks: Hooks, process_values: Values
    ) -> None:
        self.handler = handler
        check_hooks(hooks, [handler])
        self.invoker = invoker_class(handler)(
            handler, make, hooks.inside(_Recorder(self)), None, process_values
        )
        self.raised: BaseException | None = None

    def run(self, deliveries: list[InnerDelivery]) -> Dispositions:
        """Run a function that is not async."""
        assert isinstance(self.invoker, PlainInvoker)
        self.raised, started = None, time.monotonic()
        if self.handler.batch:
            dispositions = self.invoker.run_batch(deliveries)
        else:
            dispositions = [(deliveries[0], self.invoker.run(deliveries[0]))]
        took = time.monotonic() - started
        return [
            (delivery, self._in_time(delivery, disposition, took))
            for delivery, disposition in dispositions
        ]

    def _in_time(
        self, delivery: InnerDelivery, disposition: Disposition, took: float
    ) -> Disposition:
        """Return how to settle a delivery after its run, or after an overrun of its max_runtime."""
        limit = self.handler.runtime_of(delivery)
        if limit is None or took <= limit or delivery.state != OPEN:
            return disposition
        assert isinstance(self.invoker, PlainInvoker)
        self.raised = runtime_exceeded(limit)
        disposition = self.invoker.dispositions.of_overrun(delivery, limit)
        return self.invoker.with_then(delivery, disposition)

    async def run_async(self, deliveries: list[InnerDelivery]) -> Dispositions:
        """Run an async function."""
        assert isinstance(self.invoker, CancellableInvoker)
        self.raised = None
        if self.handler.batch:
            return await self.invoker.run_batch(deliveries)
        return [(deliveries[0], await self.invoker.run(deliveries[0]))]


Step = tuple[DrainedHandler, list[InnerDelivery]]  # deliveries to run
Run = tuple[DrainedHandler | None, list[InnerDelivery]]  # None if their type has no handler


class DrainedTopic:
    """A topic in a drain. It receives the messages of its handlers, and settles them."""

    def __init__(
        self,
        handlers: TopicHandlers,
        transport: Transport,
        hooks: Hooks,
        unhandled: Unhandled,
        process_values: Values,
    ) -> None:
        self.context = handlers.context
        self.name = self.context.name
        self._handlers = handlers
        self._unhandled = unhandled
        self._most = receive_limit(handlers)
        self._transport = transport
        self._flows = make_flows(handlers)
        self._drained = {
            handler: DrainedHandler(
                handler, delivery_maker(handler, self._flows, transport), hooks, process_values
            )
            for handler in handlers
        }

    @property
    def has_async(self) -> bool:
        """Whether a handler needs an event loop."""
        return any(handler.is_async for handler in self._handlers)

    def receive_runs(self) -> list[Run]:
        """Receive the next message or the next batches, each with its handler."""
        self._flows.state.ready_at = []  # forget due times in real time
        deliveries = with_retries(self._receive)
        runs: list[Run] = []
        batches: dict[Handler, list[InnerDelivery]] = {}
        for delivery in deliveries:
            handler = self._handlers.route(delivery.type)
            if handler is None or not handler.batch:
                runs.append((None if handler is None else self._drained[handler], [delivery]))
                continue
            batch = batches.get(handler)
            if batch is None or len(batch) >= handler.batch:
                batch = batches[handler] = []
                runs.append((self._drained[handler], batch))
            batch.append(delivery)
        return runs

    def _receive(self) -> list[InnerDelivery]:
        deliveries = self._transport.run(self._flows.receive(self._most, 0))
        if self.context.settings.dead_to is not None:
            self._transport.run(sweep(self.context))  # send copies of expired messages
        if deliveries and self._handlers.has_claims:
            claim_keys(deliveries, self._handlers, self._flows, self._transport)
        return deliveries

    def close(self) -> None:
        """Release the messages that are not settled."""
        close_flows(self._flows, self._transport)

    def dispositions_unhandled(self, deliveries: list[InnerDelivery]) -> Dispositions:
        """Return how to settle deliveries whose type has no handler."""
        return [(delivery, self._unhandled.disposition(delivery)) for delivery in deliveries]

    def release(self, deliveries: list[InnerDelivery]) -> None:
        """Release the deliveries that are not settled."""
        open_ones = [delivery for delivery in deliveries if delivery.state == OPEN]
        self._transport.run(self._flows.release(open_ones, 0))

    def settle(
        self, delivery: InnerDelivery, disposition: Disposition, raised: BaseException | None
    ) -> Result:
        """Settle a delivery as its disposition says.

        The argument `raised` is the error of the handler.
        """
        verb: Verb = disposition.verb
        mine, error = [delivery], raised
        if isinstance(error, asyncio.CancelledError):  # it exceeded its max_runtime
            error = disposition.error if isinstance(disposition.error, BaseException) else None
        elif disposition.verb == "reject" and disposition.kind == "u":
            error = DecodeError(str(disposition.error))
        if delivery.state != OPEN:
            verb = "own"
        elif with_retries(lambda: self._carry_out(mine, disposition)):
            verb = "lost"
        elif delivery.is_cancelled and verb != "ack":
            verb = "cancelled"
        return Result(
            self.name, delivery.id, delivery.body, delivery.attempt, verb, error, delivery.type
        )

    def _carry_out(
        self, mine: list[InnerDelivery], disposition: Disposition
    ) -> list[InnerDelivery]:
        flows, error = self._flows, disposition.error
        if disposition.verb == "ack":
            flow = flows.ack(mine)
        elif disposition.verb == "nack":
            flow = flows.nack_each(mine, disposition.wait_ms, {mine[0]: error})
        elif disposition.verb == "release":
            flow = flows.release(mine, disposition.wait_s or 0, disposition.event)
        else:
            flow = flows.reject(mine, error or "rejected", disposition.kind, disposition.then)
        return self._transport.run(flow)


def receive_limit(handlers: TopicHandlers) -> int:
    """Return how many deliveries of a topic a drain receives in one call."""
    return max(1, *(handler.batch for handler in handlers))


def with_retries(call: Callable[[], T]) -> T:
    """Call a function. Retry at most TRIES_MAX times while Redis cannot be reached."""
    for _ in range(TRIES_MAX - 1):
        try:
            return call()
        except StorageError:
            continue
    return call()


def _waits_flow(context: TopicContext) -> Flow[list[int]]:
    yield from opening.ensure_open(context)
    waits: list[int] = yield scripts.next_ready(context.slots, False)
    return waits


@dataclass(eq=False)
class Drain:
    """A drain: its handlers, the latest time of its clock, and its maximum number of runs."""

    topics: Sequence[DrainedTopic]
    transport: Transport
    scope: DrainedScope
    clock: Clock | None
    advance_us: int | None
    raises: bool
    limit: int
    send_scheduled: Callable[[], float | None]
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._end_us: int | None = None
        if self.clock is not None and self.advance_us is not None:
            self._end_us = self.clock.now_us + self.advance_us

    def steps(self) -> Generator[Step, Dispositions, list[Result]]:
        """Yield deliveries whose handlers must run.

        The caller sends back how to settle each delivery.
        """
        idle = 0
        while True:
            next_scheduled_s = self.send_scheduled()
            busy = False
            for topic in self.topics:
                runs = topic.receive_runs()
                busy = busy or bool(runs)
                for at, (drained, deliveries) in enumerate(runs):
                    left = [delivery for _, later in runs[at:] for delivery in later]
                    self._fail_if_endless(len(self.results) >= self.limit, left, topic)
                    try:
                        if drained is None:
                            dispositions = topic.dispositions_unhandled(deliveries)
                        else:
                            dispositions = yield drained, deliveries
                        raised = None if drained is None else drained.raised
                        done = [topic.settle(*settled, raised) for settled in dispositions]
                        self.results += done
                        self._raise(raised, done)
                    except BaseException:
                        topic.release(left)
                        raise
            idle = 0 if busy else idle + 1
            self._fail_if_endless(idle > self.limit, [], self.topics[0])
            if not busy and not self._advance_clock(next_scheduled_s):
                return self.results

    def _fail_if_endless(
        self, over: bool, deliveries: list[InnerDelivery], topic: DrainedTopic
    ) -> None:
        if not over:
            return
        topic.release(deliveries)
        last = ", ".join(
            f"{result.topic} {result.body!r} {result.verb}" for result in self.results[-5:]
        )
        raise Endless(
            f"drain: {len(self.results)} runs, and there is more in {topic.name!r}; a handler "
            f"sends to itself, or a message comes back forever. The last runs: {last or 'none'}. "
            "If you expect so many runs, use drain(limit=...)"
        )

    def _raise(self, raised: BaseException | None, done: list[Result]) -> None:
        if raised is not None and not isinstance(raised, Exception | SystemExit):
            raise raised  # Ctrl-C, or pytest.fail() in a handler, which a retry must not hide
        for result in done if self.raises else ():
            if result.error is not None and not isinstance(result.error, DISPOSITIONS):
                raise result.error

    def _advance_clock(self, next_scheduled_s: float | None) -> bool:
        """Move the clock to the next due time. Return False if no due time is within the limit.

        Schedules never end. So their due times count only if the drain has an end time.
        """
        if self.clock is None or self._end_us == self.clock.now_us:
            return False
        waits = [
            wait
            for topic in self.topics
            for wait in self.transport.run(_waits_flow(topic.context))
            if wait >= 0
        ]
        if next_scheduled_s is not None and self._end_us is not None:
            waits.append(round(next_scheduled_s * 1_000_000))
        aim = self.clock.now_us + max(STEP_US, min(waits)) if waits else None
        if self._end_us is not None and (aim is None or aim > self._end_us):
            aim = self._end_us  # move the clock to the end of the drain
        if aim is None:
            return False
        self.clock._go(aim)
        return True


def run(drain: Drain, loop: Callable[[Awaitable[Any]], Any]) -> list[Result]:
    """Run a drain. The function `loop` runs an awaitable until it ends."""

    def perform(step: Step) -> Dispositions:
        drained, deliveries = step
        if drained.handler.is_async:
            dispositions: Dispositions = loop(drained.run_async(deliveries))
            return dispositions
        return drained.run(deliveries)

    return drive(drain.steps(), perform)


async def run_async(drain: Drain) -> list[Result]:
    """Run a drain inside an event loop."""
    task = asyncio.current_task()

    async def perform(step: Step) -> Dispositions:
        drained, deliveries = step
        if drained.handler.is_async:
            dispositions = await drained.run_async(deliveries)
        else:
            dispositions = drained.run(deliveries)
        await asyncio.sleep(0)
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # the worker's code turned the cancellation into a release
        return dispositions

    return await drive_async(drain.steps(), perform)
