"""Run a handler for one delivery or a batch, and decide how each delivery is settled.

Nothing here talks to Redis. The decision is a `Disposition`; the settler carries it out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rmq.client.handler import Handler
from rmq.core.claim import BUSY, DONE, FAILED, FIRST, UNSURE
from rmq.core.delivery import DeliveryData
from rmq.core.interceptor import Hooks, Outcome, call_hook, call_hooks_async
from rmq.core.middleware import active
from rmq.errors import DecodeError, InvalidType, RMQError
from rmq.worker.detached_claims import DetachedClaims
from rmq.worker.disposition import (
    ACK,
    DONE_BEFORE,
    RELEASE,
    Disposition,
    Overrun,
    Settled,
    disposition_for,
    outcome_of,
    runtime_exceeded,
    undecodable,
)
from rmq.worker.run_scope import Values
from rmq.worker.wrapped_call import WrappedCall, WrappedRun, wrapped_call

log = logging.getLogger("rmq")

_Result = tuple[DeliveryData, Disposition, BaseException | None]  # with the raised exception


class Runner:
    """Runs one handler, with its middleware and the hooks of interceptors."""

    def __init__(
        self,
        handler: Handler,
        hooks: Hooks,
        claims: DetachedClaims | None = None,
        process_values: Values | None = None,
    ) -> None:
        self.handler = handler
        self.hooks = hooks
        self.claims = claims
        self.middleware = active(handler.middleware)
        call = self._call_async if handler.is_async else self._call
        values = {} if process_values is None else process_values  # filled before the first run
        self.wrapped = wrapped_call(handler, hooks, self.middleware, values, call)

    def runtime_of(self, delivery: DeliveryData) -> float | None:
        """Return how long one run may take, seconds; None: for ever."""
        return self.handler.runtime_of(delivery)

    @contextmanager
    def _tracked_claims(self, deliveries: Iterable[DeliveryData]) -> Iterator[set[DeliveryData]]:
        """Note the begin and end of a run, for its claims. Deliveries done are added to the set."""
        done: set[DeliveryData] = set()
        claims = self.claims
        if claims is None:
            yield done
            return
        for delivery in deliveries:
            claims.begin(delivery)
        try:
            yield done
        finally:
            for delivery in deliveries:
                claims.end(delivery, delivery in done)

    def disposition_by_claim(self, delivery: DeliveryData) -> Disposition | None:
        """Decide by the state of its claim, before the handler is run; None: run it."""
        claim = delivery._claim
        if claim is None or claim.state == FIRST:
            return None
        if claim.state == DONE:
            return DONE_BEFORE
        if claim.state in (BUSY, UNSURE):
            return Disposition("release", claim.wait_s)
        assert claim.state == FAILED
        assert claim.error is not None
        if isinstance(claim.error, DecodeError):
            return undecodable(claim.error)
        return disposition_for(self.handler, delivery, claim.error)

    def _done_before(self, delivery: DeliveryData) -> Disposition:
        try:
            for guard in self.middleware:
                guard.on_duplicate(delivery)
        except Exception as error:
            return disposition_for(self.handler, delivery, error)
        return DONE_BEFORE

    async def _done_before_async(self, delivery: DeliveryData) -> Disposition:
        try:
            for guard in self.middleware:
                await guard.on_duplicate_async(delivery)
        except asyncio.CancelledError:
            return RELEASE  # the worker is stopping
        except Exception as error:
            return disposition_for(self.handler, delivery, error)
        return DONE_BEFORE

    # --- in a thread -----------------------------------------------------------------------------

    def run(self, delivery: DeliveryData) -> Disposition:
        """Run a plain function for one delivery."""
        if self.claims is None:
            return self._run(delivery)
        with self._tracked_claims([delivery]) as done:
            disposition = self._run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    def _run(self, delivery: DeliveryData) -> Disposition:
        if delivery._claim is not None and (disposition := self.disposition_by_claim(delivery)):
            return self._done_before(delivery) if disposition is DONE_BEFORE else disposition
        for hook in self.hooks.before_handle:
            call_hook(hook, delivery)
        started = time.monotonic()
        raised: BaseException | None = None
        if self.wrapped is not None:
            disposition, raised = self._run_wrapped(self.wrapped, delivery)
        else:
            try:
                arguments = self.handler.arguments(delivery)
            except DecodeError as error:
                raised, disposition = error, undecodable(error)
            else:
                try:
                    self._call(*arguments)
                    disposition = ACK
                except BaseException as error:  # sys.exit() in a handler is a failure of it
                    raised, disposition = error, disposition_for(self.handler, delivery, error)
        if self.hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            for hook in self.hooks.after_handle:
                call_hook(hook, delivery, outcome)
        return disposition

    def _run_wrapped(
        self, wrapped: WrappedCall, delivery: DeliveryData
    ) -> tuple[Disposition, BaseException | None]:
        run, raised = WrappedRun(), None
        try:
            wrapped.run(run, delivery)
        except BaseException as error:
            raised = error
        return self._disposition_of_wrapped(run, delivery, raised), raised

    def _disposition_of_wrapped(
        self, run: WrappedRun, delivery: DeliveryData, error: BaseException | None
    ) -> Disposition:
        if error is None:
            return DONE_BEFORE if run.was_done else ACK
        if run.misfit is not None and error is run.misfit:
            return undecodable(run.misfit)
        return disposition_for(self.handler, delivery, error)

    def _call(self, *arguments: Any, **filled: Any) -> None:
        returned = self.handler.function(*arguments, **filled)
        if inspect.iscoroutine(returned):
            returned.close()
            raise InvalidType(
                f"handler {self.handler.name}: it returned a coroutine, which nobody awaits; make "
                "it an async def"
            )
        self._refuse_generator(returned)

    async def _call_async(self, *arguments: Any, **filled: Any) -> None:
        self._refuse_generator(await self.handler.function(*arguments, **filled))

    def _refuse_generator(self, returned: object) -> None:
        """Refuse a generator: none of its code has run, and the message would be acked."""
        if inspect.isgenerator(returned):
            returned.close()
        elif not inspect.isasyncgen(returned):
            return
        raise InvalidType(
            f"handler {self.handler.name}: it returned a generator, so none of its code has run; a "
            "decorator hides a function with a yield. Remove the yield"
        )

    def disposition_of_overrun(self, overrun: Overrun) -> Disposition:
        """Decide how a delivery is settled whose run goes on beyond its max_runtime."""
        error = runtime_exceeded(overrun.max_runtime_s)
        return disposition_for(self.handler, overrun.delivery, error)

    def run_batch(self, batch: list[DeliveryData]) -> list[Settled]:
        """Run a plain function for a list of deliveries."""
        with self._tracked_claims(batch) as done:
            dispositions = self._run_batch(batch)
            done.update(_acked(dispositions))
        return dispositions

    def _run_batch(self, batch: list[DeliveryData]) -> list[Settled]:
        batch, early = self._split_by_claim(batch)
        for delivery in batch:
            for hook in self.hooks.before_handle:
                call_hook(hook, delivery)
        started, raised = time.monotonic(), None
        ready, results = self._split_by_fit(batch)
        try:
            if ready:
                (self._call if self.wrapped is None else self.wrapped.run_batch)(ready)
        except BaseException as error:
            raised = error
        results += self._batch_results(ready, raised)
        for delivery, outcome in _outcomes(results, started):
            for hook in self.hooks.after_handle:
                call_hook(hook, delivery, outcome)
        return early + [(delivery, disposition) for delivery, disposition, _ in results]

    def _split_by_claim(
        self, batch: list[DeliveryData]
    ) -> tuple[list[DeliveryData], list[Settled]]:
        """Return the deliveries to run, and the dispositions of those that claims decide."""
        if self.handler.claims is None:
            return batch, []
        ready: list[DeliveryData] = []
        decided: list[Settled] = []
        for delivery in batch:
            disposition = self.disposition_by_claim(delivery)
            if disposition is None:
                ready.append(delivery)
            else:
                decided.append((delivery, disposition))
        return ready, decided

    def _split_by_fit(self, batch: list[DeliveryData]) -> tuple[list[DeliveryData], list[_Result]]:
        """Read the bodies; return the deliveries whose bodies fit, and the results of the rest."""
        if self.handler.body_converter is None:
            return batch, []
        ready: list[DeliveryData] = []
        results: list[_Result] = []
        for delivery in batch:
            try:
                self.handler.convert_body(delivery)
                ready.append(delivery)
            except DecodeError as error:
                results.append((delivery, undecodable(error), error))
        return ready, results

    def _batch_results(
        self, batch: list[DeliveryData], raised: BaseException | None
    ) -> list[_Result]:
        if raised is None:
            return [(delivery, ACK, None) for delivery in batch]
        return [
            (delivery, disposition_for(self.handler, delivery, raised), raised)
            for delivery in batch
        ]

    # --- in an event loop ------------------------------------------------------------------------

    async def run_async(self, delivery: DeliveryData) -> Disposition:
        """Run an async function for one delivery."""
        if self.claims is None:
            return await self._run_async(delivery)
        with self._tracked_claims([delivery]) as done:
            disposition = await self._run_async(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    async def _run_async(self, delivery: DeliveryData) -> Disposition:
        if delivery._claim is not None and (disposition := self.disposition_by_claim(delivery)):
            if disposition is DONE_BEFORE:
                return await self._done_before_async(delivery)
            return disposition
        if self.hooks.before_handle:
            await call_hooks_async(self.hooks.before_handle, delivery)
        started = time.monotonic()
        raised: BaseException | None = None
        run: WrappedRun | None = None
        try:
            if self.wrapped is None:
                call: Callable[..., Awaitable[object]] = partial(
                    self._call_async, *self.handler.arguments(delivery)
                )
            else:
                run = WrappedRun()
                call = partial(self.wrapped.run_async, run, delivery)
        except DecodeError as error:
            raised, disposition = error, undecodable(error)
        else:
            try:
                result = await self._call_with_limit(call, self.handler.runtime_of(delivery))
                raised = result if isinstance(result, BaseException) else None
                if run is not None:
                    disposition = self._disposition_of_wrapped(run, delivery, raised)
                elif raised is not None:
                    disposition = disposition_for(self.handler, delivery, raised)
                else:
                    disposition = ACK
            except asyncio.CancelledError:
                disposition = RELEASE  # the worker is stopping
        if self.hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            await call_hooks_async(self.hooks.after_handle, delivery, outcome)
        return disposition

    async def _call_with_limit(
        self, call: Callable[[], Awaitable[object]], seconds: float | None
    ) -> object:
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
                result = await self._call_with_limit(call, None)
        except TimeoutError:
            return runtime_exceeded(seconds)
        # A handler may swallow the cancellation and return.
        return runtime_exceeded(seconds) if limit.expired() else result

    async def run_batch_async(self, batch: list[DeliveryData]) -> list[Settled]:
        """Run an async function for a list of deliveries."""
        with self._tracked_claims(batch) as done:
            dispositions = await self._run_batch_async(batch)
            done.update(_acked(dispositions))
        return dispositions

    async def _run_batch_async(self, batch: list[DeliveryData]) -> list[Settled]:
        batch, early = self._split_by_claim(batch)
        for delivery in batch:
            await call_hooks_async(self.hooks.before_handle, delivery)
        started = time.monotonic()
        ready, results = self._split_by_fit(batch)
        if ready:
            limits = [self.handler.runtime_of(delivery) for delivery in ready]
            seconds = min((limit for limit in limits if limit is not None), default=None)
            try:
                function = (
                    self._call_async if self.wrapped is None else self.wrapped.run_batch_async
                )
                result = await self._call_with_limit(partial(function, ready), seconds)
                raised = result if isinstance(result, BaseException) else None
                results += self._batch_results(ready, raised)
            except asyncio.CancelledError:  # the worker is stopping
                results += [(delivery, RELEASE, None) for delivery in ready]
        for delivery, outcome in _outcomes(results, started):
            await call_hooks_async(self.hooks.after_handle, delivery, outcome)
        return early + [(delivery, disposition) for delivery, disposition, _ in results]


def _acked(settled: Iterable[Settled]) -> list[DeliveryData]:
    return [delivery for delivery, disposition in settled if disposition.verb == "ack"]


def _outcomes(results: Iterable[_Result], started: float) -> Iterator[tuple[DeliveryData, Outcome]]:
    for delivery, disposition, raised in results:
        yield delivery, outcome_of(delivery, disposition, time.monotonic() - started, raised)


def _is_cancelled_from_outside() -> bool:
    """Return whether the worker cancelled the task, and not the handler itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
