"""Middleware: wrappers around one handler that make the effect of a message happen once.

A decorator attaches a middleware to a function and returns the function unchanged. Whoever runs the
function for a delivery runs its middleware around it, the topmost decorator outermost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from rmq.core.delivery import DeliveryData
from rmq.errors import InvalidType

F = TypeVar("F", bound=Callable[..., Any])
Next = Callable[..., Any]
NextAsync = Callable[..., Awaitable[Any]]

_ATTACHED, _REGISTERED = "__rmq_middleware__", "__rmq_registered__"


class HandlerInfo(Protocol):
    """The facts about a handler that its middleware may read."""

    name: str
    is_async: bool
    batch: int
    ordered: bool
    lease_ms: int | None
    middleware: tuple[Middleware, ...]


class Middleware:
    """Runs around a handler. Subclasses override `run` and `run_async`.

    Attributes:
        parameter: the name of the handler's parameter that this middleware fills, or "".
        accepts_batches: whether it works for a handler that gets a list.
        decorator: the name of its decorator, for error texts.
    """

    parameter = ""
    decorator = "middleware"
    accepts_batches = False

    def check_handler(self, handler: HandlerInfo) -> None:
        """Refuse a handler that this middleware cannot wrap; called when it is registered.

        Raises:
            ConfigurationError: the error names the handler and the change to make.
        """

    def check_lease(self, lease_ms: int) -> None:
        """Refuse a lease that cannot work; called when the lease of the deliveries is known."""

    def run(self, delivery: DeliveryData, call_next: Next) -> bool:
        """Call `call_next` with the filled parameter; return False if the work was done before."""
        call_next()
        return True

    async def run_async(self, delivery: DeliveryData, call_next: NextAsync) -> bool:
        """Do as `run`, for an async handler."""
        await call_next()
        return True

    def on_duplicate(self, delivery: DeliveryData) -> None:
        """Take note that the work was done before by another delivery; nothing is run."""

    async def on_duplicate_async(self, delivery: DeliveryData) -> None:
        """Do as `on_duplicate`, for an async handler."""


def attach(function: F, middleware: Middleware, decorator: str) -> F:
    """Wrap a function and the middleware that it already has; return the function.

    Raises:
        InvalidType: the function cannot carry middleware, or is registered already: too late.
    """
    if not callable(function):
        raise InvalidType(f"@{decorator}: {function!r} is not a function")
    if getattr(function, _REGISTERED, False):
        raise InvalidType(
            f"@{decorator}: {getattr(function, '__qualname__', function)!s} is registered already; "
            f"write @{decorator} below @topic.handler"
        )
    try:
        middleware.decorator = decorator
        setattr(function, _ATTACHED, (middleware, *middleware_of(function)))
    except AttributeError:
        raise InvalidType(
            f"@{decorator}: {function!r} cannot carry middleware; decorate the function itself"
        ) from None
    return function


def middleware_of(function: Callable[..., Any]) -> tuple[Middleware, ...]:
    """Return the middleware of a function, outermost first."""
    attached: tuple[Middleware, ...] = getattr(function, _ATTACHED, ())
    return attached


def active(chain: tuple[Middleware, ...]) -> tuple[Middleware, ...]:
    """Return the middleware that overrides `run` or `run_async`."""
    inactive = Middleware.run, Middleware.run_async
    return tuple(each for each in chain if (type(each).run, type(each).run_async) != inactive)


def run_through(
    chain: tuple[Middleware, ...], delivery: DeliveryData, call: Callable[..., Any]
) -> bool:
    """Call a function inside middleware; return False if the work was done before."""

    def run_from(position: int, filled: dict[str, Any]) -> bool:
        if position == len(chain):
            call(**filled)
            return True
        inner_ran = True

        def call_next(**parameters: Any) -> None:
            nonlocal inner_ran
            inner_ran = run_from(position + 1, {**filled, **parameters})

        return chain[position].run(delivery, call_next) and inner_ran

    return run_from(0, {})


async def run_through_async(
    chain: tuple[Middleware, ...], delivery: DeliveryData, call: Callable[..., Awaitable[Any]]
) -> bool:
    """Do as `run_through`, for an async function."""

    async def run_from(position: int, filled: dict[str, Any]) -> bool:
        if position == len(chain):
            await call(**filled)
            return True
        inner_ran = True

        async def call_next(**parameters: Any) -> None:
            nonlocal inner_ran
            inner_ran = await run_from(position + 1, {**filled, **parameters})

        return await chain[position].run_async(delivery, call_next) and inner_ran

    return await run_from(0, {})


def mark_registered(function: Callable[..., Any]) -> None:
    """Mark a function that became a handler: middleware attached later would not run."""
    try:
        setattr(function, _REGISTERED, True)
    except AttributeError:
        return  # a method of an object: nothing can be attached to it either
