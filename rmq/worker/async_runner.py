"""Runs an async handler, in the event loop that awaits. The twin for plain ones: `plain_runner`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rmq.core.delivery import DeliveryData
from rmq.core.interceptor import call_hooks_async
from rmq.errors import DecodeError, RMQError
from rmq.worker.disposition import (
    ACK,
    DONE_BEFORE,
    RELEASE,
    Disposition,
    Settled,
    outcome_of,
    outcomes,
    runtime_exceeded,
    undecodable,
)
from rmq.worker.handler_runner import HandlerRunner
from rmq.worker.wrapped_call import WrappedRun


class AsyncRunner(HandlerRunner):
    """Runs one async handler, with its middleware and the hooks of interceptors.

    A run is cancelled at its `max_runtime`.
    """

    async def run(self, delivery: DeliveryData) -> Disposition:
        """Run the handler for one delivery."""
        decide = self._dispositions
        if delivery._claim is not None and (disposition := decide.by_claim(delivery)):
            return await self._done_before(delivery) if disposition is DONE_BEFORE else disposition
        if self._hooks.before_handle:
            await call_hooks_async(self._hooks.before_handle, delivery)
        started = time.monotonic()
        raised: BaseException | None = None
        run: WrappedRun | None = None
        try:
            if self.wrapped is None:
                call: Callable[..., Awaitable[object]] = partial(
                    self._call, *self._handler.arguments(delivery)
                )
            else:
                run = WrappedRun()
                call = partial(self.wrapped.run_async, run, delivery)
        except DecodeError as error:
            raised, disposition = error, undecodable(error)
        else:
            try:
                result = await _call_with_limit(call, self._handler.runtime_of(delivery))
                raised = result if isinstance(result, BaseException) else None
                if run is not None:
                    disposition = decide.of_wrapped(run, delivery, raised)
                elif raised is not None:
                    disposition = decide.by_error(delivery, raised)
                else:
                    disposition = ACK
            except asyncio.CancelledError:
                disposition = RELEASE  # the worker is stopping
        if self._hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            await call_hooks_async(self._hooks.after_handle, delivery, outcome)
        return disposition

    async def _done_before(self, delivery: DeliveryData) -> Disposition:
        try:
            for guard in self._middleware:
                await guard.on_duplicate_async(delivery)
        except asyncio.CancelledError:
            return RELEASE  # the worker is stopping
        except Exception as error:
            return self._dispositions.by_error(delivery, error)
        return DONE_BEFORE

    async def _call(self, *arguments: Any, **filled: Any) -> None:
        self._dispositions.check_returned(await self._handler.function(*arguments, **filled))

    async def run_batch(self, batch: list[DeliveryData]) -> list[Settled]:
        """Run the handler for a list of deliveries."""
        batch, early = self._dispositions.split_by_claim(batch)
        for delivery in batch:
            await call_hooks_async(self._hooks.before_handle, delivery)
        started = time.monotonic()
        ready, results = self._dispositions.split_by_fit(batch)
        if ready:
            limits = [self._handler.runtime_of(delivery) for delivery in ready]
            seconds = min((limit for limit in limits if limit is not None), default=None)
            try:
                function = self._call if self.wrapped is None else self.wrapped.run_batch_async
                result = await _call_with_limit(partial(function, ready), seconds)
                raised = result if isinstance(result, BaseException) else None
                results += self._dispositions.of_batch(ready, raised)
            except asyncio.CancelledError:  # the worker is stopping
                results += [(delivery, RELEASE, None) for delivery in ready]
        for delivery, outcome in outcomes(results, started):
            await call_hooks_async(self._hooks.after_handle, delivery, outcome)
        return early + [(delivery, disposition) for delivery, disposition, _ in results]


async def _call_with_limit(call: Callable[[], Awaitable[object]], seconds: float | None) -> object:
    """Await a call within its limit; return its value, or the exception that it raised."""
    if seconds is None:
        try:
            return await call()
        except asyncio.CancelledError:
            if _is_cancelled_from_outside():
                raise
            return RMQError("the handler cancelled itself")
        except BaseException as error:
            return error
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            result = await _call_with_limit(call, None)
    except TimeoutError:
        return runtime_exceeded(seconds)
    # A handler may swallow the cancellation and return.
    return runtime_exceeded(seconds) if limit.expired() else result


def _is_cancelled_from_outside() -> bool:
    """Return whether the worker cancelled the task, and not the handler itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
