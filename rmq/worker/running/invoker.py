"""Call a handler for one delivery or a batch, and decide how each delivery is settled.

The result is a `Disposition`, and the settler settles the delivery. `PlainInvoker` is generated
from `AsyncInvoker`. `CancellableInvoker` also cancels an async handler after its `max_runtime`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from rmq.errors import DecodeError, InvalidType
from rmq.kernel.core.interceptor import call_hooks_async
from rmq.kernel.delivery.delivery import settle_with_of
from rmq.kernel.delivery.dispositions import Then, with_topics
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.handlers.wrapped_call import WrappedRun
from rmq.worker.running.event_loop import call_in
from rmq.worker.running.invoker_base import AsyncCall, AsyncRun, InvokerBase
from rmq.worker.running.invoker_blocking import PlainInvoker
from rmq.worker.settling.disposition import (
    ACK,
    DUPLICATE,
    Disposition,
    RuntimeExceeded,
    Settled,
    acked,
    cancelled_run,
    error_of_run,
    outcome_of,
    outcomes,
    runtime_exceeded,
    undecodable,
    without_then,
)
from rmq.worker.settling.unhandled import Unhandled


class AsyncInvoker(InvokerBase):
    """Runs one handler, with its claims, interceptor hooks, middleware and dependencies.

    Attributes:
        run: Function that runs the handler for one delivery. It returns how to settle the delivery.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.run: AsyncRun = self._run if self.handler.claims is None else self._run_claimed

    async def _run_claimed(self, delivery: InnerDelivery) -> Disposition:
        disposition = self.dispositions.by_claim(delivery)
        if disposition is not None:
            return await self._on_duplicate(delivery) if disposition is DUPLICATE else disposition
        with self._claiming([delivery]) as done:
            disposition = await self._run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    async def _run(self, delivery: InnerDelivery) -> Disposition:
        shown: Any = self.make_delivery(delivery) if self._is_shown else None
        if self.hooks.before_handle:
            await call_hooks_async(self.hooks.before_handle, shown)
        delivery.started = started = time.monotonic()
        raised: BaseException | None = None
        run: WrappedRun | None = None
        try:
            if self.wrapped is None:
                call: AsyncCall = partial(
                    self._call, delivery, *self.handler.arguments(delivery, shown)
                )
            else:
                run = WrappedRun()
                call = partial(self.wrapped.run_async, run, shown)
        except DecodeError as error:
            raised, disposition = error, undecodable(error)
        else:
            raised = await self._raised_by(call, [delivery])
            if run is not None:
                disposition = self.dispositions.of_wrapped(run, delivery, raised)
            else:
                disposition = (
                    ACK if raised is None else self.dispositions.by_error(delivery, raised)
                )
        if disposition.then:  # before the hooks, because a trace continues in these messages
            disposition = await self.with_then(delivery, disposition)
        if self.hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            await call_hooks_async(self.hooks.after_handle, shown, outcome)
        return disposition

    async def _call(
        self, delivery: InnerDelivery | None, /, *arguments: Any, **filled: Any
    ) -> None:
        try:
            returned = await self.handler.function(*arguments, **filled)
        finally:
            if os.getpid() != self._pid:
                self._end_fork()
        if returned is not None:
            await self._use_returned(delivery, returned)

    async def _raised_by(
        self, call: AsyncCall, deliveries: Sequence[InnerDelivery] = ()
    ) -> BaseException | None:
        try:
            await call()
        except BaseException as error:  # sys.exit() in a handler is a failure
            return error
        return None

    async def _use_returned(self, delivery: InnerDelivery | None, returned: object) -> None:
        self.dispositions.check_returned(returned)
        if delivery is not None and delivery.keeps_result:
            self.dispositions.keep_result(delivery, returned)
        if not isinstance(returned, Then):
            return
        if delivery is None:
            raise InvalidType(
                f"handler {self.handler.name}: a handler of batches returned an rmq.Then, which "
                "names no delivery; call d.then(topic, body) of each delivery"
            )
        verbs, run = settle_with_of(self.make_delivery(delivery))
        for topic, out in with_topics(returned.follow_ups, delivery.origin.keys.topic):
            if verbs.then_now(delivery, topic, out) is None:
                await run(verbs.then(delivery, topic, out))

    async def with_then(self, delivery: InnerDelivery, disposition: Disposition) -> Disposition:
        """Prepare the follow-up messages of a rejected message.

        If the follow-up messages cannot be sent, the delivery fails.
        """
        if not disposition.then:
            return disposition
        verbs, run = settle_with_of(self.make_delivery(delivery))
        try:
            then = await run(verbs.then_of_reject(delivery, disposition.then))
        except Exception as error:
            return without_then(error)
        return disposition._replace(then=then)

    async def _on_duplicate(self, delivery: InnerDelivery) -> Disposition:
        for guard in self._middleware:
            raised = await self._raised_by(
                partial(guard.on_duplicate_async, self.make_delivery(delivery))
            )
            if raised is not None:
                return await self.with_then(delivery, self.dispositions.by_error(delivery, raised))
        return DUPLICATE

    async def run_batch(self, batch: list[InnerDelivery]) -> list[Settled]:
        """Run the handler for a batch: a list of deliveries."""
        batch, decided = self.dispositions.split_by_claim(batch)
        with self._claiming(batch) as done:
            settled = await self._run_batch(batch)
            done.update(acked(settled))
        return decided + settled

    async def _run_batch(self, batch: list[InnerDelivery]) -> list[Settled]:
        shown = {delivery: self.make_delivery(delivery) for delivery in batch}
        for each in shown.values():
            await call_hooks_async(self.hooks.before_handle, each)
        started = time.monotonic()
        for delivery in batch:
            delivery.started = started
        ready, results = self.dispositions.split_by_fit(batch)
        if ready:
            function = (
                partial(self._call, None) if self.wrapped is None else self.wrapped.run_batch_async
            )
            call = partial(function, [shown[delivery] for delivery in ready])
            raised = await self._raised_by(call, ready)
            results += self.dispositions.of_batch(ready, raised)
        results = [
            (delivery, await self.with_then(delivery, how) if how.then else how, raised)
            for delivery, how, raised in results
        ]
        for delivery, outcome in outcomes(results, started):
            await call_hooks_async(self.hooks.after_handle, shown[delivery], outcome)
        return [(delivery, disposition) for delivery, disposition, _ in results]


class CancellableInvoker(AsyncInvoker):
    """Cancels an async handler after its `max_runtime`, or when its message is cancelled.

    For plain handlers, the watchdog checks the `max_runtime`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tasks: dict[InnerDelivery, asyncio.Task[Any]] = {}  # of running handlers

    async def _raised_by(
        self, call: AsyncCall, deliveries: Sequence[InnerDelivery] = ()
    ) -> BaseException | None:
        limits = [self.handler.runtime_of(delivery) for delivery in deliveries]
        seconds = min((limit for limit in limits if limit is not None), default=None)
        task: Any = None  # None: no request to cancel interrupts the call
        if deliveries and not self.handler.batch:
            task = asyncio.current_task()
            self._tasks[deliveries[0]] = task
        try:
            if task is not None and deliveries[0].is_cancelled:
                raise asyncio.CancelledError  # before `interrupt` could find the task
            if seconds is not None:
                return await _raised_within(call, seconds)
            await call()
        except BaseException as error:
            if task is not None and deliveries[0].is_cancelled:
                return cancelled_run(error)
            return error_of_run(error, self.dispositions.is_stopping)
        finally:
            if task is not None and self._tasks.pop(deliveries[0], None) is None:
                task.uncancel()  # `interrupt` cancelled the task, which is used again
        return None

    def interrupt(self, delivery: InnerDelivery) -> None:
        """Cancel the task that runs the handler for a delivery, if there is such a task.

        You may call this method from any thread. Set the `cancelled` event of the delivery first.
        """
        task = self._tasks.get(delivery)
        if task is not None:
            call_in(task.get_loop(), self._interrupt_now, delivery)

    def _interrupt_now(self, delivery: InnerDelivery) -> None:
        task = self._tasks.pop(delivery, None)  # None: the handler has ended meanwhile
        if task is not None:
            task.cancel()


async def _raised_within(call: AsyncCall, seconds: float) -> RuntimeExceeded | None:
    """Await a call for at most `seconds` seconds, and return an error if the call took longer.

    The function returns the error even if the call ignored its cancellation and returned a result.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await call()
    except BaseException:
        if not limit.expired():
            raise
    return runtime_exceeded(seconds) if limit.expired() else None


AnyInvoker = PlainInvoker | CancellableInvoker


class TopicInvokers:
    """The invokers of a topic. Each invoker calls one handler.

    Args:
        handlers: Handlers of the topic.

    Attributes:
        unhandled: Object that decides how to settle deliveries without a handler.
    """

    def __init__(self, handlers: TopicHandlers) -> None:
        self._handlers = handlers
        self._by_handler: dict[Handler, AnyInvoker] = {}
        self.unhandled = Unhandled(handlers)

    def add(self, invoker: AnyInvoker) -> None:
        """Add the invoker of a handler."""
        self._by_handler[invoker.handler] = invoker

    def invoker_for(self, delivery: InnerDelivery) -> AnyInvoker | None:
        """Return the invoker for a delivery, or None if the delivery has no handler."""
        handler = self._handlers.route(delivery.type)
        return None if handler is None else self._by_handler[handler]

    def disposition_of_overrun(self, delivery: InnerDelivery, max_runtime_s: float) -> Disposition:
        """Decide how to settle a delivery whose handler has exceeded its `max_runtime`."""
        invoker = self.invoker_for(delivery)
        assert invoker is not None  # a delivery without a handler has no limit
        disposition = invoker.dispositions.of_overrun(delivery, max_runtime_s)
        if isinstance(invoker, PlainInvoker):
            return invoker.with_then(delivery, disposition)
        return (
            asyncio.run(invoker.with_then(delivery, disposition))
            if disposition.then
            else disposition
        )


def invoker_class(handler: Handler) -> type[PlainInvoker] | type[CancellableInvoker]:
    """Return the invoker class for a handler. Only async handlers can be cancelled."""
    return CancellableInvoker if handler.is_async else PlainInvoker
