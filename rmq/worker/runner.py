"""Run a handler for one delivery or a batch; the result says how each delivery is settled.

Nothing here talks to Redis. The decision is a `Disposition`; the settler carries it out. A plain
handler runs in the thread that calls, an async one in the event loop that awaits. What no handler
takes is decided by `Unhandled`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rmq.errors import DecodeError
from rmq.kernel.core.delivery import DeliveryData, HeldDelivery
from rmq.kernel.core.interceptor import Hooks, active, call_hook, call_hooks_async
from rmq.kernel.core.validation import format_duration
from rmq.kernel.handlers.around import WrappedCall, WrappedRun, wrapped_call
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.handlers.scopes import Values
from rmq.kernel.topic import context
from rmq.worker.disposition import (
    ACK,
    DONE_BEFORE,
    DetachedClaims,
    Disposition,
    HandlerDispositions,
    RuntimeExceeded,
    Settled,
    Show,
    error_of_cancel,
    outcome_of,
    outcomes,
    runtime_exceeded,
    undecodable,
)

log = logging.getLogger("rmq")


class Runner:
    """A handler with its claims, its middleware and the hooks of interceptors.

    Args:
        handler: is run.
        show: makes what the handler sees of a delivery.
        hooks: of the interceptors.
        claims: of its runs, if it has any.
        process_values: of the dependencies and lifespans of this process; filled before the first
            run.
        is_stopping: whether a run that is cancelled now is handed back, as the worker stops it.
    """

    def __init__(
        self,
        handler: Handler,
        show: Show,
        hooks: Hooks,
        claims: DetachedClaims | None = None,
        process_values: Values | None = None,
        is_stopping: Callable[[], bool] = lambda: True,
    ) -> None:
        self.handler = handler
        self.show = show
        self.hooks = hooks
        self.claims = claims
        self.dispositions = HandlerDispositions(handler, show, is_stopping)
        self._pid = os.getpid()
        self._middleware = active(handler.middleware)
        values = {} if process_values is None else process_values
        self.wrapped = wrapped_call(handler, hooks, self._middleware, values, self._call)
        hooked = hooks.before_handle or hooks.after_handle or self.wrapped is not None
        self._is_shown = bool(hooked or handler.takes != "b")  # else nobody looks at a delivery

    def _call(self, *arguments: Any, **filled: Any) -> Any:
        """Call the handler; an async one is awaited."""
        raise NotImplementedError

    def _leave_fork(self) -> None:
        """End a process that the handler has forked: it would go on as a copy of this worker."""
        if os.getpid() != self._pid:
            log.error(
                "handler %s: a process that it forked came back from it, and is ended; end it by "
                "os._exit", self.handler.name, exc_info=sys.exc_info()[0] is not None,
            )  # fmt: skip
            os._exit(1)

    @contextmanager
    def _claiming(self, deliveries: Iterable[HeldDelivery]) -> Iterator[set[HeldDelivery]]:
        """Note the begin and end of a run, for its claims. Deliveries done are added to the set."""
        done: set[HeldDelivery] = set()
        if self.claims is None:
            yield done
            return
        for delivery in deliveries:
            self.claims.begin(delivery)
        try:
            yield done
        finally:
            for delivery in deliveries:
                self.claims.end(delivery, delivery in done)


class PlainRunner(Runner):
    """Runs one plain handler, in the calling thread."""

    def run(self, delivery: HeldDelivery) -> Disposition:
        """Run the handler for one delivery."""
        if delivery.claim is None:
            return self._run(delivery)
        disposition = self.dispositions.by_claim(delivery)
        if disposition is not None:
            return self._done_before(delivery) if disposition is DONE_BEFORE else disposition
        with self._claiming([delivery]) as done:
            disposition = self._run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    def _run(self, delivery: HeldDelivery) -> Disposition:
        """Run the handler inside hooks, middleware and dependencies; decide by what it raises."""
        shown: Any = self.show(delivery) if self._is_shown else None
        for hook in self.hooks.before_handle:
            call_hook(hook, shown)
        started = time.monotonic()
        raised: BaseException | None = None
        if self.wrapped is not None:
            disposition, raised = self._run_wrapped(self.wrapped, delivery, shown)
        else:
            try:
                arguments = self.handler.arguments(delivery, shown)
            except DecodeError as error:
                raised, disposition = error, undecodable(error)
            else:
                try:
                    self._call(*arguments)
                    disposition = ACK
                except BaseException as error:  # sys.exit() in a handler is a failure of it
                    raised, disposition = error, self.dispositions.by_error(delivery, error)
        if self.hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            for hook in self.hooks.after_handle:
                call_hook(hook, shown, outcome)
        return disposition

    def _run_wrapped(
        self, wrapped: WrappedCall, delivery: HeldDelivery, shown: DeliveryData
    ) -> tuple[Disposition, BaseException | None]:
        run, raised = WrappedRun(), None
        try:
            wrapped.run(run, shown)
        except BaseException as error:
            raised = error
        return self.dispositions.of_wrapped(run, delivery, raised), raised

    def _call(self, *arguments: Any, **filled: Any) -> None:
        try:
            returned = self.handler.function(*arguments, **filled)
        finally:
            self._leave_fork()
        if returned is not None:
            self.dispositions.check_returned(returned)

    def _done_before(self, delivery: HeldDelivery) -> Disposition:
        try:
            for guard in self._middleware:
                guard.on_duplicate(self.show(delivery))
        except Exception as error:
            return self.dispositions.by_error(delivery, error)
        return DONE_BEFORE

    def run_batch(self, batch: list[HeldDelivery]) -> list[Settled]:
        """Run the handler for a list of deliveries."""
        batch, decided = self.dispositions.split_by_claim(batch)
        with self._claiming(batch) as done:
            settled = self._run_batch(batch)
            done.update(_acked(settled))
        return decided + settled

    def _run_batch(self, batch: list[HeldDelivery]) -> list[Settled]:
        shown = {delivery: self.show(delivery) for delivery in batch}
        for each in shown.values():
            for hook in self.hooks.before_handle:
                call_hook(hook, each)
        started, raised = time.monotonic(), None
        ready, results = self.dispositions.split_by_fit(batch)
        try:
            if ready:
                function = self._call if self.wrapped is None else self.wrapped.run_batch
                function([shown[delivery] for delivery in ready])
        except BaseException as error:
            raised = error
        results += self.dispositions.of_batch(ready, raised)
        for delivery, outcome in outcomes(results, started):
            for hook in self.hooks.after_handle:
                call_hook(hook, shown[delivery], outcome)
        return [(delivery, disposition) for delivery, disposition, _ in results]


class AsyncRunner(Runner):
    """Runs one async handler, in the event loop that awaits; cancels it at its `max_runtime`."""

    async def run(self, delivery: HeldDelivery) -> Disposition:
        """Run the handler for one delivery."""
        if delivery.claim is None:
            return await self._run(delivery)
        disposition = self.dispositions.by_claim(delivery)
        if disposition is not None:
            return await self._done_before(delivery) if disposition is DONE_BEFORE else disposition
        with self._claiming([delivery]) as done:
            disposition = await self._run(delivery)
            done.update([delivery] if disposition.verb == "ack" else [])
        return disposition

    async def _run(self, delivery: HeldDelivery) -> Disposition:
        """Run the handler inside hooks, middleware and dependencies; decide by what it raises."""
        shown: Any = self.show(delivery) if self._is_shown else None
        if self.hooks.before_handle:
            await call_hooks_async(self.hooks.before_handle, shown)
        started = time.monotonic()
        raised: BaseException | None = None
        run: WrappedRun | None = None
        try:
            if self.wrapped is None:
                call: Callable[..., Awaitable[object]] = partial(
                    self._call, *self.handler.arguments(delivery, shown)
                )
            else:
                run = WrappedRun()
                call = partial(self.wrapped.run_async, run, shown)
        except DecodeError as error:
            raised, disposition = error, undecodable(error)
        else:
            raised = await self._raised_by(call, self.handler.runtime_of(delivery))
            if run is not None:
                disposition = self.dispositions.of_wrapped(run, delivery, raised)
            else:
                disposition = (
                    ACK if raised is None else self.dispositions.by_error(delivery, raised)
                )
        if self.hooks.after_handle:
            outcome = outcome_of(delivery, disposition, time.monotonic() - started, raised)
            await call_hooks_async(self.hooks.after_handle, shown, outcome)
        return disposition

    async def _call(self, *arguments: Any, **filled: Any) -> None:
        try:
            returned = await self.handler.function(*arguments, **filled)
        finally:
            self._leave_fork()
        if returned is not None:
            self.dispositions.check_returned(returned)

    async def _raised_by(
        self, call: Callable[[], Awaitable[object]], seconds: float | None = None
    ) -> BaseException | None:
        """Await a call within its limit; return what it raised."""
        try:
            if seconds is not None:
                return await _raised_within(call, seconds)
            await call()
        except asyncio.CancelledError as error:
            return error_of_cancel(error, self.dispositions.is_stopping)
        except BaseException as error:
            return error
        return None

    async def _done_before(self, delivery: HeldDelivery) -> Disposition:
        for guard in self._middleware:
            raised = await self._raised_by(partial(guard.on_duplicate_async, self.show(delivery)))
            if raised is not None:
                return self.dispositions.by_error(delivery, raised)
        return DONE_BEFORE

    async def run_batch(self, batch: list[HeldDelivery]) -> list[Settled]:
        """Run the handler for a list of deliveries."""
        batch, decided = self.dispositions.split_by_claim(batch)
        with self._claiming(batch) as done:
            settled = await self._run_batch(batch)
            done.update(_acked(settled))
        return decided + settled

    async def _run_batch(self, batch: list[HeldDelivery]) -> list[Settled]:
        shown = {delivery: self.show(delivery) for delivery in batch}
        for each in shown.values():
            await call_hooks_async(self.hooks.before_handle, each)
        started = time.monotonic()
        ready, results = self.dispositions.split_by_fit(batch)
        if ready:
            limits = [self.handler.runtime_of(delivery) for delivery in ready]
            seconds = min((limit for limit in limits if limit is not None), default=None)
            function = self._call if self.wrapped is None else self.wrapped.run_batch_async
            call = partial(function, [shown[delivery] for delivery in ready])
            raised = await self._raised_by(call, seconds)
            results += self.dispositions.of_batch(ready, raised)
        for delivery, outcome in outcomes(results, started):
            await call_hooks_async(self.hooks.after_handle, shown[delivery], outcome)
        return [(delivery, disposition) for delivery, disposition, _ in results]


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


def _acked(settled: Iterable[Settled]) -> list[HeldDelivery]:
    return [delivery for delivery, disposition in settled if disposition.verb == "ack"]


AnyRunner = PlainRunner | AsyncRunner


def runner_class(handler: Handler) -> type[PlainRunner] | type[AsyncRunner]:
    """Return the class of the runner of a handler."""
    return AsyncRunner if handler.is_async else PlainRunner


SHORTEST_S, LONGEST_S = 0.1, 60.0  # the wait until an unhandled message is taken again
KNOWN_MS = 60_000  # how long a process must have known a type before it rejects a message
TYPES_MAX = 1000  # that are remembered


class Unhandled:
    """Decides about the messages of one topic whose type no handler of this worker has.

    Another worker may have one, so they are released, which costs no retry, and wait: as long again
    as they have been due, from SHORTEST_S to LONGEST_S. After the topic's `unhandled` they are dead
    letters, unless this process met their type less than KNOWN_MS ago: where all workers start at
    once after a long stop, those with the handler get their turn.
    """

    def __init__(self, handlers: TopicHandlers) -> None:
        self._context = handlers.context
        self._met_ms: dict[str | None, int] = {}  # when this process first met a type, epoch ms

    def disposition(self, delivery: HeldDelivery) -> Disposition:
        """Decide how an unhandled delivery is settled: released for a while, or rejected."""
        message_type, now_ms = delivery.type, context.now_ms()
        met_ms = self._met_ms.get(message_type)
        if met_ms is None:
            met_ms = self._meet(message_type, now_ms)
        known_ms = now_ms - met_ms
        age_ms = _age_ms(delivery, now_ms, known_ms)
        limit_ms = self._context.settings.unhandled_ms
        if limit_ms and age_ms >= limit_ms and known_ms >= min(limit_ms, KNOWN_MS):
            return Disposition("reject", None, self._reason(message_type, limit_ms), "n")
        wait_s = min(age_ms, known_ms) / 1000
        return Disposition("release", min(max(wait_s, SHORTEST_S), LONGEST_S))

    def _meet(self, message_type: str | None, now_ms: int) -> int:
        """Note, and log, that a type without a handler has been met; return when."""
        if len(self._met_ms) >= TYPES_MAX:
            del self._met_ms[next(iter(self._met_ms))]
        self._met_ms[message_type] = now_ms
        limit_ms = self._context.settings.unhandled_ms
        end = (
            "for ever" if not limit_ms else f"and are dead after {format_duration(limit_ms / 1000)}"
        )
        log.warning(
            "topic %r: this worker has no handler for %s; they wait for a worker that has one, %s",
            self._context.name, _described(message_type), end,
        )  # fmt: skip
        return now_ms

    def _reason(self, message_type: str | None, limit_ms: int) -> str:
        redrive = f"rmq dlq redrive {self._context.name} --reason unhandled"
        if message_type is not None:
            redrive += f" --type {message_type}"
        return (
            f"no handler for {_described(message_type)} within "
            f"{format_duration(limit_ms / 1000)}; start a worker that has one, and then send them "
            f"back: {redrive}"
        )


def _described(message_type: str | None) -> str:
    return (
        "messages without a type" if message_type is None else f"messages of type {message_type!r}"
    )


def _age_ms(delivery: HeldDelivery, now_ms: int, known_ms: int) -> int:
    """Return how long a message has been due, by this machine's clock.

    An id that was derived from a dedup key has no time, and under a test's clock no id has one: the
    age is then how long this process has known the type.
    """
    due = delivery.due or (None if context.now_us else delivery.id.made_at)
    return known_ms if due is None else max(0, now_ms - round(due.timestamp() * 1000))
