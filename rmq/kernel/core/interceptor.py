"""Run user code around every send and every handler (interceptors), or one handler (middleware).

The methods of an interceptor are called hooks.

RMQ logs an error of a `before_` or `after_` hook, and then ignores the error, because an
interceptor must not lose a message. An `around_` hook runs instead of the handler, and usually
calls the handler. So an error of an `around_` hook counts as an error of the handler.

Middleware is for effects that must happen once per message, for example `rmq.idempotent`. A
decorator attaches a middleware to a function and returns the function unchanged. When a worker runs
the function for a delivery, it runs the middleware around the function. The topmost decorator is
the outermost middleware.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.sequence import ProducerSequence

if TYPE_CHECKING:
    from rmq.kernel.delivery.delivery import DeliveryData

log = logging.getLogger("rmq")


class Outcome(NamedTuple):
    """The result of one run of a handler.

    Attributes:
        verb: How the worker settles the delivery: "ack", "nack", "reject" or "release". "cancelled"
            means that the message ends because somebody requested its cancellation. "lost" means
            that the delivery's lease has expired. "own" means that the handler itself has settled
            the delivery.
        seconds: Duration of the handler's run, in seconds.
        error: Exception that the handler raised, or None.
    """

    verb: Literal["ack", "nack", "reject", "release", "cancelled", "lost", "own"]
    seconds: float
    error: BaseException | None = None


class Interceptor:
    """Base class of interceptors.

    Override the methods (hooks) that you need.

    For an AsyncClient and its async handlers, hooks may be `async def`. RMQ calls the hooks of one
    object from several threads.
    """

    def before_send(self, topic: str, message: Outgoing) -> Any:
        """Called before RMQ checks, encodes and sends a message.

        The hook may change the message.
        """

    def after_send(self, topic: str, message: Outgoing, result: SendResult | BaseException) -> Any:
        """Called after a send.

        If the send failed, the argument `result` is the exception.
        """

    def before_handle(self, delivery: DeliveryData) -> Any:
        """Called before a handler runs."""

    def after_handle(self, delivery: DeliveryData, outcome: Outcome) -> Any:
        """Called after a handler has run, and before RMQ settles its delivery."""

    def on_overrun(self, delivery: DeliveryData) -> None:
        """Called when a handler reaches its max_runtime, and RMQ settles its delivery as failed.

        RMQ calls the hook in a thread of the worker. The handler keeps running, and RMQ calls
        `after_handle` when the handler ends.
        """

    def around_handle(self, delivery: Any, call_next: Callable[[Any], None]) -> None:
        """Called instead of a handler that is not async. `call_next(delivery)` runs the handler.

        If this hook returns or raises, RMQ continues as if the handler had returned or raised. If
        the hook does not call `call_next`, the handler does not run, but RMQ still settles the
        message when the hook returns.
        """
        call_next(delivery)

    async def around_handle_async(
        self, delivery: Any, call_next: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Called instead of an async handler. Use it in the same way as `around_handle`."""
        await call_next(delivery)

    def around_batch(self, deliveries: Any, call_next: Callable[[Any], None]) -> None:
        """Called instead of a batch handler that is not async, with the list of deliveries.

        You may call `call_next` with a part of the list. RMQ also settles the other deliveries, as
        if the handler had run for them.
        """
        call_next(deliveries)

    async def around_batch_async(
        self, deliveries: Any, call_next: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Called instead of an async batch handler. Use it in the same way as `around_batch`."""
        await call_next(deliveries)

    def watch(self, worker: Any) -> None:
        """Called each time before a worker with this interceptor starts."""

    def _make_sequence(self) -> ProducerSequence | None:
        """Return the sequence that numbers a client's messages, or None.

        Only `rmq.Audit` numbers messages.
        """
        return None


Hook = Callable[..., Any]
AROUND = ("around_handle", "around_handle_async", "around_batch", "around_batch_async")


class Hooks:
    """The methods (hooks) of a list of interceptors.

    The list has only hooks that an interceptor overrides. `before_*` hooks run in the order of the
    list, and `after_*` hooks in reverse order. So the first interceptor is the outermost.
    """

    __slots__ = (
        "after_handle", "after_send", "before_handle", "before_send", "chain", "on_overrun",
        "producer_sequence",
    )  # fmt: skip

    def __init__(self, chain: Iterable[Interceptor] = ()) -> None:
        self.chain = tuple(chain)
        for interceptor in self.chain:
            if not isinstance(interceptor, Interceptor):
                raise InvalidType(
                    f"interceptors: {interceptor!r}; give objects of subclasses of rmq.Interceptor"
                )
            _check_kinds(interceptor)
        sequences = [made for each in self.chain if (made := each._make_sequence())]
        if len(sequences) > 1:
            raise InvalidValue("interceptors: rmq.Audit is given twice; give it once")
        self.producer_sequence = sequences[0] if sequences else None
        self.before_send = self._overridden("before_send")
        self.after_send = self._overridden("after_send")[::-1]
        self.before_handle = self._overridden("before_handle")
        self.after_handle = self._overridden("after_handle")[::-1]
        self.on_overrun = self._overridden("on_overrun")

    def _overridden(self, name: str) -> list[Hook]:
        return [getattr(each, name) for each in self.chain if _overrides(each, name)]

    def inside(self, outermost: Interceptor) -> Hooks:
        """Return these hooks with one more interceptor, which runs around all others."""
        hooks = copy.copy(self)
        hooks.chain = (outermost, *self.chain)
        return hooks

    def around(self, handler: HandlerInfo) -> list[Hook]:
        """Return the `around_` hooks for a handler, outermost first.

        Raises:
            InvalidType: An interceptor has `around_` hooks for other kinds of handlers, but not for
                this kind. The handler would run without this interceptor.
        """
        name = AROUND[2 * bool(handler.batch) + handler.is_async]
        for interceptor in self.chain:
            others = [other for other in AROUND if _overrides(interceptor, other)]
            if others and name not in others:
                kind = "an async def" if handler.is_async else "a plain def"
                kind += " with batch" * bool(handler.batch)
                raise InvalidType(
                    f"interceptors: {type(interceptor).__name__} has {others[0]}, which does not "
                    f"run around handler {handler.name}, {kind}; "
                    f"give it {name} as well, even if it only calls call_next"
                )
        return self._overridden(name)

    def refuse_async(self, where: str, names: Iterable[str]) -> None:
        """Raise an error if an interceptor has an async hook with one of these names.

        Args:
            where: Name of the caller in the error. The caller cannot await hooks.
            names: Names of the hooks.

        Raises:
            InvalidType: A hook is async. The error names the hook.
        """
        for name in names:
            for hook in getattr(self, name):
                if inspect.iscoroutinefunction(hook):
                    raise InvalidType(
                        f"interceptors: {hook.__qualname__} is async, and {where} is not; "
                        "make it a plain def"
                    )


def _overrides(interceptor: Interceptor, name: str) -> bool:
    return getattr(type(interceptor), name) is not getattr(Interceptor, name)


def _check_kinds(interceptor: Interceptor) -> None:
    """Raise an error if an `around_` hook of an interceptor has the wrong kind.

    The hook must not be a generator. It must be async if its name ends in `_async`, and must not be
    async otherwise.
    """
    for name in AROUND:
        hook = getattr(interceptor, name)
        if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
            raise InvalidType(
                f"interceptors: {hook.__qualname__} has a yield; call call_next instead"
            )
        is_async = inspect.iscoroutinefunction(hook)
        if is_async and not name.endswith("_async"):
            raise InvalidType(
                f"interceptors: {hook.__qualname__} is async; name it {name}_async, or make it a "
                "plain def"
            )
        if name.endswith("_async") and not is_async:
            raise InvalidType(f"interceptors: {hook.__qualname__} is plain; make it an async def")


def call_hook(hook: Hook, *args: Any) -> Any:
    """Call a hook of an interceptor, and return its result, which may be awaitable.

    If the hook raises an exception, RMQ only logs it.
    """
    try:
        return hook(*args)
    except Exception:
        log_hook_error(hook)
    return None


def call_hooks(hooks: Iterable[Hook], *args: Any) -> None:
    """Call hooks of interceptors that are not async."""
    for hook in hooks:
        call_hook(hook, *args)


async def call_hooks_async(hooks: Iterable[Hook], *args: Any) -> None:
    """Call hooks of interceptors in an event loop, and await their awaitable results."""
    for hook in hooks:
        result = call_hook(hook, *args)
        if inspect.isawaitable(result):
            await await_hook(hook, result)


async def await_hook(hook: Hook, result: Awaitable[Any]) -> None:
    """Await the result of an interceptor's async hook.

    If the hook raises an exception, RMQ only logs it.
    """
    try:
        await result
    except Exception:
        log_hook_error(hook)


def start_hooks(hooks: list[Hook], *args: Any) -> Iterator[Awaitable[Any]]:
    """Call hooks of interceptors one after another. Yield an awaitable for each async hook."""
    for hook in hooks:
        result = call_hook(hook, *args)
        if inspect.isawaitable(result):
            yield await_hook(hook, result)


def log_hook_error(hook: Hook) -> None:
    """Log the exception that a hook of an interceptor has raised."""
    log.exception("interceptor %s raised; the message continues without it", hook.__qualname__)


F = TypeVar("F", bound=Callable[..., Any])
Next = Callable[..., Any]
NextAsync = Callable[..., Awaitable[Any]]

_ATTACHED, _REGISTERED = "__rmq_middleware__", "__rmq_registered__"


class HandlerInfo(Protocol):
    """Facts about a handler that its middleware may read."""

    name: str
    is_async: bool
    batch: int
    ordered: bool
    lease_ms: int | None
    middleware: tuple[Middleware, ...]


class Middleware:
    """Base class of middleware, which runs around a handler. Override `run` and `run_async`.

    Attributes:
        parameter: Name of the handler's parameter that gets a value from this middleware, or "".
        accepts_batches: Whether this middleware works for batch handlers.
        decorator: Name of the decorator that attaches this middleware, for error texts.
    """

    parameter = ""
    decorator = "middleware"
    accepts_batches = False

    def check_handler(self, handler: HandlerInfo) -> None:
        """Raise an error for a handler that this middleware cannot wrap.

        RMQ calls this method when the handler is registered.

        Raises:
            ConfigurationError: The middleware cannot wrap the handler. The error says what to
                change.
        """

    def check_lease(self, lease_ms: int) -> None:
        """Raise an error if the topic's lease is too short or too long for this middleware.

        RMQ calls this method after it has read the topic's settings.
        """

    def check_store(self) -> None:
        """Check that the store has everything that the middleware needs, such as a table.

        If something is missing, the worker does not start. If the store does not answer, the worker
        may start.

        Raises:
            ConfigurationError: Something is missing. The error says what to create.
        """

    async def check_store_async(self) -> None:
        """Do the same as `check_store`. RMQ calls this method for an async handler."""

    def run(self, delivery: DeliveryData, call_next: Next) -> bool:
        """Run the handler by a call of `call_next`.

        The keyword arguments of `call_next` become arguments of the handler. If an earlier
        delivery has already done the work, return False instead of running the handler.
        """
        call_next()
        return True

    async def run_async(self, delivery: DeliveryData, call_next: NextAsync) -> bool:
        """Do the same as `run`. RMQ calls this method for an async handler."""
        await call_next()
        return True

    def on_duplicate(self, delivery: DeliveryData) -> None:
        """Called instead of the handler when another delivery has already done the work."""

    async def on_duplicate_async(self, delivery: DeliveryData) -> None:
        """Do the same as `on_duplicate`. RMQ calls this method for an async handler."""


def attach(function: F, middleware: Middleware, decorator: str) -> F:
    """Attach a middleware to a function, around the middleware that the function already has.

    Return the same function.

    Raises:
        InvalidType: A middleware cannot be attached to the function, or the function is already a
            registered handler.
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
    """Return the middleware that is attached to a function, outermost first."""
    attached: tuple[Middleware, ...] = getattr(function, _ATTACHED, ())
    return attached


def active(chain: tuple[Middleware, ...]) -> tuple[Middleware, ...]:
    """Return the middleware of a list that overrides `run` or `run_async`."""
    inactive = Middleware.run, Middleware.run_async
    return tuple(each for each in chain if (type(each).run, type(each).run_async) != inactive)


def run_through(
    chain: tuple[Middleware, ...], delivery: DeliveryData, call: Callable[..., Any]
) -> bool:
    """Call a function with middleware around it.

    If an earlier delivery has done the work, return False.
    """

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
    """Do the same as `run_through`, for an async function."""

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
    """Mark a function as a registered handler.

    `attach` then refuses the function, because the new middleware would not run.
    """
    try:
        setattr(function, _REGISTERED, True)
    except AttributeError:
        return  # a bound method cannot carry middleware either, so no mark is needed
