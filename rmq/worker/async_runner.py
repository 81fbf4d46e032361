"""Runs an async handler, in the event loop that awaits. The twin for plain ones: `plain_runner`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rmq.core.delivery import DeliveryData
from rmq.core.interceptor import call_hooks_async
from rmq.errors import DecodeError
from rmq.worker.disposition import (
    ACK,
    DONE_BEFORE,
    Disposition,
    RuntimeExceeded,
    Settled,
    error_of_cancel,
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
            raised = await self._raised_by(call, self._handler.runtime_of(delivery))
            if run is not None:
                disposition = decide.of_wrapped(run, delivery, raised)
            else:
                disposition = ACK if raised is None else decide.by_error(delivery, raised)
        if self._hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            await call_hooks_async(self._hooks.after_handle, delivery, outcome)
        return disposition

    async def _done_before(self, delivery: DeliveryData) -> Disposition:
        for guard in self._middleware:
            raised = await self._raised_by(partial(guard.on_duplicate_async, delivery))
            if raised is not None:
                return self._dispositions.by_error(delivery, raised)
        return DONE_BEFORE

    async def _raised_by(
        self, call: Callable[[], Awaitable[object]], seconds: float | None = None
    ) -> BaseException | None:
        """Await a call within its limit; return what it raised."""
        try:
            if seconds is not None:
                return await _raised_within(call, seconds)
            await call()
        except asyncio.CancelledError as error:
            return error_of_cancel(error, self._dispositions.is_stopping)
        except BaseException as error:
            return error
        return None

    async def _call(self, *arguments: Any, **filled: Any) -> None:
        try:
            returned = await self._handler.function(*arguments, **filled)
        finally:
            self._leave_fork()
        self._dispositions.check_returned(returned)

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
            function = self._call if self.wrapped is None else self.wrapped.run_batch_async
            raised = await self._raised_by(partial(function, ready), seconds)
            results += self._dispositions.of_batch(ready, raised)
        for delivery, outcome in outcomes(results, started):
            await call_hooks_async(self._hooks.after_handle, delivery, outcome)
        return early + [(delivery, disposition) for delivery, disposition, _ in results]


async def _raised_within(
    call: Callable[[], Awaitable[object]], seconds: float
) -> RuntimeExceeded | None:
    """Await a call; return the error if it took too long, whatever else it raised or returned."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await call()
    except BaseException:
        if not limit.expired():
            raise
    return runtime_exceeded(seconds) if limit.expired() else None
