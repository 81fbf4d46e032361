"""Call a handler inside the code that wraps it: interceptors, middleware and dependencies.

The `around_` hooks of interceptors are outermost. Inside these hooks is the handler's middleware,
and inside the middleware are the handler's dependencies. A handler without wrappers is called
directly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rmq.errors import DecodeError, InvalidType
from rmq.kernel.core.interceptor import Hook, Hooks, Middleware, run_through, run_through_async
from rmq.kernel.delivery.delivery import DeliveryData, inner_of
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.handlers.scopes import RunScope, Values

_Call = Callable[..., None]
_CallAsync = Callable[..., Awaitable[None]]


class WrappedRun:
    """The state of one run of a handler.

    Attributes:
        has_begun: Whether the middleware has called the handler.
        misfit: Error if the body does not fit the handler, or None.
        was_done: Whether the middleware found that the work was already done.
    """

    __slots__ = ("_unfinished", "has_begun", "misfit", "was_done")

    def __init__(self) -> None:
        self.has_begun = False
        self.misfit: DecodeError | None = None
        self.was_done = False
        self._unfinished = 0

    def begin(self, call: Callable[..., Any], **filled: Any) -> Any:
        """Call the handler's function inside all middleware. Record that it was called."""
        self.has_begun = True
        return call(**filled)

    def awaited(self, function: _CallAsync) -> Callable[[Any], Awaitable[None]]:
        """Wrap an async function, so that RMQ knows whether its result was awaited."""

        async def finish(subject: Any) -> None:
            try:
                await function(subject)
            finally:
                self._unfinished -= 1

        def call_next(subject: Any) -> Awaitable[None]:
            self._unfinished += 1
            return finish(subject)

        return call_next

    def check_awaited(self) -> None:
        """Raise an error if the hook of an interceptor called the handler without awaiting it."""
        if self._unfinished:
            raise InvalidType(
                "interceptors: a hook called call_next and did not await it, so the handler has "
                "not run to its end; write `await call_next(delivery)`"
            )


class WrappedCall:
    """Calls one handler with its interceptors, middleware and dependencies around it."""

    def __init__(
        self,
        handler: Handler,
        around: list[Hook],
        middleware: tuple[Middleware, ...],
        process_values: Values,
        function: Callable[..., Any],
    ) -> None:
        self._handler = handler
        self._around = around
        self._middleware = middleware
        self._function = function
        self._scope = (
            RunScope(handler.dependencies, process_values) if handler.dependencies else None
        )

    # --- in a thread -----------------------------------------------------------------------------

    def run(self, run: WrappedRun, delivery: DeliveryData) -> None:
        """Run a handler that is not async, for one delivery."""
        self._call_around(partial(self._run_one, run), delivery)

    def run_batch(self, deliveries: list[DeliveryData]) -> None:
        """Run a handler that is not async, for a list of deliveries."""
        self._call_around(self._run_list, deliveries)

    def _call_around(self, call_next: Callable[[Any], None], subject: Any) -> None:
        for hook in reversed(self._around):
            call_next = partial(_call_hook, hook, call_next)
        call_next(subject)

    def _run_one(self, run: WrappedRun, delivery: DeliveryData) -> None:
        arguments = self._arguments(run, delivery)
        call: _Call = partial(self._function, inner_of(delivery), *arguments)
        if self._scope is not None:
            call = partial(self._scope.call, call, delivery)
        if self._middleware:
            begin = partial(run.begin, call)
            run.was_done = not run_through(self._middleware, delivery, begin)
        else:
            call()

    def _run_list(self, deliveries: list[DeliveryData]) -> None:
        call: _Call = partial(self._function, None, deliveries)
        if self._scope is not None:
            self._scope.call(call, None)
        else:
            call()

    def _arguments(self, run: WrappedRun, delivery: DeliveryData) -> tuple[Any, ...]:
        try:
            return self._handler.arguments(inner_of(delivery), delivery)
        except DecodeError as error:
            run.misfit = error
            raise

    # --- in an event loop ------------------------------------------------------------------------

    async def run_async(self, run: WrappedRun, delivery: DeliveryData) -> None:
        """Run an async handler for one delivery."""
        await self._call_around_async(run, partial(self._run_one_async, run), delivery)

    async def run_batch_async(self, deliveries: list[DeliveryData]) -> None:
        """Run an async handler for a list of deliveries."""
        await self._call_around_async(WrappedRun(), self._run_list_async, deliveries)

    async def _call_around_async(
        self, run: WrappedRun, call_next: _CallAsync, subject: Any
    ) -> None:
        for hook in reversed(self._around):
            call_next = partial(_call_hook_async, hook, run.awaited(call_next))
        await call_next(subject)
        run.check_awaited()

    async def _run_one_async(self, run: WrappedRun, delivery: DeliveryData) -> None:
        call: _CallAsync = partial(
            self._function, inner_of(delivery), *self._arguments(run, delivery)
        )
        if self._scope is not None:
            call = partial(self._scope.call_async, call, delivery)
        if self._middleware:
            begin = partial(run.begin, call)
            run.was_done = not await run_through_async(self._middleware, delivery, begin)
        else:
            await call()

    async def _run_list_async(self, deliveries: list[DeliveryData]) -> None:
        call: _CallAsync = partial(self._function, None, deliveries)
        if self._scope is not None:
            await self._scope.call_async(call, None)
        else:
            await call()


def _call_hook(hook: Hook, call_next: Callable[[Any], None], subject: Any) -> None:
    hook(subject, call_next)


async def _call_hook_async(hook: Hook, call_next: _CallAsync, subject: Any) -> None:
    await hook(subject, call_next)


def wrapped_call(
    handler: Handler,
    hooks: Hooks,
    middleware: tuple[Middleware, ...],
    process_values: Values,
    function: Callable[..., Any],
) -> WrappedCall | None:
    """Return an object that calls a handler inside its wrappers.

    Return None if there are no wrappers.

    Raises:
        InvalidType: An interceptor has `around_` hooks only for async handlers, and this handler is
            not async. Or the hooks are only for other handlers, and this handler is async.
    """
    around = hooks.around(handler)
    if not around and not middleware and not handler.dependencies:
        return None
    return WrappedCall(handler, around, middleware, process_values, function)
