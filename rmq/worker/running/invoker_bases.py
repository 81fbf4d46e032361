"""Base classes of the invokers of plain and of async handlers, with the code that differs.

`invoker` has the code that is the same for both.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rmq.kernel.core.interceptor import Hooks, active
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.around import wrapped_call
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.handlers.scopes import Values
from rmq.worker.handled_topic import Show
from rmq.worker.running.event_loop import call_in
from rmq.worker.settling.detached_claims import DetachedClaims
from rmq.worker.settling.disposition import (
    HandlerDispositions,
    RuntimeExceeded,
    cancelled_run,
    error_of_run,
    runtime_exceeded,
)

log = logging.getLogger("rmq")

FORK_LOG_S = 5.0  # longest log call of a process that a handler forked
STDERR = 2  # file descriptor; sys.stderr may have none

PlainCall = Callable[[], object]
AsyncCall = Callable[[], Awaitable[object]]


class _InvokerBase:
    """A handler with its claims, its middleware and the hooks of interceptors.

    Args:
        handler: The handler.
        show: Makes the object that the handler gets for a delivery.
        hooks: Hooks of the interceptors.
        claims: Claims of the handler, if it has claims.
        process_values: Values of the dependencies and lifespans of this process. They are filled in
            before the first call of the handler.
        is_stopping: Whether the worker is stopping, so that a cancelled delivery is released.
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
        self._is_shown = bool(hooked or handler.takes != "b")  # otherwise the delivery is not used

    def _call(self, delivery: InnerDelivery | None, /, *arguments: Any, **filled: Any) -> Any:
        """Call the handler, and await it if it is async. `delivery` is None for a batch."""
        raise NotImplementedError

    def _end_fork(self) -> None:
        """End a process that the handler has forked. It would continue as a copy of this worker.

        A thread that logged during the fork may have left a lock of a log stream locked forever in
        this process. So the process also ends if the log call does not return.
        """
        faulthandler.dump_traceback_later(FORK_LOG_S, exit=True, file=STDERR)
        log.error(
            "handler %s: a process that it forked came back from it, and is ended; end it by "
            "os._exit", self.handler.name, exc_info=sys.exc_info()[0] is not None,
        )  # fmt: skip
        os._exit(1)

    @contextmanager
    def _claiming(self, deliveries: Iterable[InnerDelivery]) -> Iterator[set[InnerDelivery]]:
        """Keep claims up to date during a call.

        Yields a set. The caller adds to it each delivery whose work is done.
        """
        done: set[InnerDelivery] = set()
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


class PlainInvokerBase(_InvokerBase):
    """Calls a plain handler in the calling thread."""

    def _use_returned(self, delivery: InnerDelivery | None, returned: object) -> None:
        raise NotImplementedError

    def _call(self, delivery: InnerDelivery | None, /, *arguments: Any, **filled: Any) -> None:
        try:
            returned = self.handler.function(*arguments, **filled)
        finally:
            if os.getpid() != self._pid:
                self._end_fork()
        if returned is not None:
            self._use_returned(delivery, returned)

    def _raised_by(
        self, call: PlainCall, deliveries: Sequence[InnerDelivery] = ()
    ) -> BaseException | None:
        """Return the error that a call raised.

        The watchdog checks the `max_runtime` of the call.
        """
        try:
            call()
        except BaseException as error:  # sys.exit() in a handler is a failure
            return error
        return None


class AsyncInvokerBase(_InvokerBase):
    """Calls an async handler in the event loop of the caller.

    Cancels the call at its `max_runtime`, or on request.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._tasks: dict[InnerDelivery, asyncio.Task[Any]] = {}  # of running handlers

    async def _use_returned(self, delivery: InnerDelivery | None, returned: object) -> None:
        raise NotImplementedError

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
        """Await a call for at most the shortest `max_runtime` of the deliveries.

        Return its error.
        """
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
                task.uncancel()  # `interrupt` has cancelled it; the worker uses it again
        return None

    def interrupt(self, delivery: InnerDelivery) -> None:
        """Cancel the task that runs the handler for a delivery, if there is one.

        Any thread may call this, after it has set the delivery's `cancelled`.
        """
        task = self._tasks.get(delivery)
        if task is not None:
            call_in(task.get_loop(), self._interrupt_now, delivery)

    def _interrupt_now(self, delivery: InnerDelivery) -> None:
        task = self._tasks.pop(delivery, None)  # None: the handler has ended meanwhile
        if task is not None:
            task.cancel()


async def _raised_within(call: AsyncCall, seconds: float) -> RuntimeExceeded | None:
    """Await a call. If it took too long, return an error even if it has returned a result."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await call()
    except BaseException:
        if not limit.expired():
            raise
    return runtime_exceeded(seconds) if limit.expired() else None
