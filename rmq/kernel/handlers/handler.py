"""Register functions as handlers of a topic, and choose the handler of a message.

When you register a function, RMQ checks its signature, its annotations and its options. The worker
(`rmq.worker`) runs the function.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import body_types, interceptor, retry as policies
from rmq.kernel.core.interceptor import Middleware
from rmq.kernel.core.record import HEADERS
from rmq.kernel.core.retry import Policy
from rmq.kernel.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS, Settings
from rmq.kernel.core.validation import Duration, check_int, check_message_type, duration_ms
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.delivery.dispositions import Reject, Retry, Snooze
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.dependencies import is_async_function
from rmq.kernel.handlers.idempotency import Idempotent
from rmq.kernel.handlers.signature import Signature
from rmq.kernel.producer.encode import RETRY_MARK, RUNTIME_MARK
from rmq.kernel.topic.context import TopicContext

if TYPE_CHECKING:
    from rmq.features.schedules.declaration import Declaration


DEFAULT_THREADS, DEFAULT_TASKS = 8, 100  # concurrency unless the handler gives one
MAX_CONCURRENCY, MAX_PREFETCH = 10_000, 100_000

RetryFunction = Callable[[Any, BaseException], Duration | None]
RetryOption = Policy | str | RetryFunction
Rule = Retry | Reject | Snooze | Policy


class Handler:
    """A function with its topic and its checked options."""

    def __init__(
        self,
        context: TopicContext,
        function: Callable[..., Any],
        *,
        concurrency: int | None,
        prefetch: int | None,
        batch: int | None,
        linger: Duration,
        ordered: bool,
        lease: Duration | None,
        max_runtime: Duration | None,
        retry: RetryOption | None,
        on_error: Mapping[type[Exception], Rule] | None,
        body: Any,
        local_names: Mapping[str, Any],
        type: str | Sequence[str] | None = None,
    ) -> None:
        self.context = context
        self.function = function
        self.types = _types(type)  # message types; empty for the default handler
        self.name = getattr(function, "__qualname__", repr(function))
        if not callable(function):
            raise InvalidType(f"handler: {function!r} is not a function")
        self.is_async = is_async_function(function)
        default = DEFAULT_TASKS if self.is_async else DEFAULT_THREADS
        self.concurrency = check_int(
            default if concurrency is None else concurrency, "concurrency", 1, MAX_CONCURRENCY
        )
        self.batch = 0 if batch is None else check_int(batch, "batch", 1, BATCH_MAX)
        # Limit of the messages in flight, which `rmq.worker.queues.prefetch` fits to run times.
        most = max(BATCH_MAX, 2 * self.concurrency * max(1, self.batch))
        self.prefetch = check_int(
            min(most, MAX_PREFETCH) if prefetch is None else prefetch, "prefetch", 1, MAX_PREFETCH
        )
        self.is_prefetch_chosen = prefetch is not None
        self.concurrency = min(self.concurrency, self.prefetch)
        if self.batch > self.prefetch:
            raise InvalidValue(f"batch: {batch} is more than prefetch, {prefetch}; raise prefetch")
        self.linger_s = duration_ms(linger, "linger", high_ms=60_000, zero=True) / 1000
        if self.linger_s and not self.batch:
            raise InvalidValue("linger: only for a handler with batch; give batch as well")
        self.ordered = self.is_ordered = _check_bool(ordered, "ordered")  # `follow` may change it
        if self.ordered and self.batch:
            raise InvalidValue("ordered: not with batch; it handles messages one by one")
        self.lease_ms = (
            None if lease is None else duration_ms(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS)
        )
        self.max_runtime_s = (
            None if max_runtime is None else duration_ms(max_runtime, "max_runtime") / 1000
        )
        self.retry = _retry(retry)
        self.rules = _rules(on_error)
        self._read_middleware()
        signature = Signature(
            self.name,
            function,
            is_async=self.is_async,
            is_batch=self.batch > 0,
            filled={each.parameter for each in self.middleware if each.parameter},
            body=body,
            local_names=local_names,
        )
        self.dependencies = signature.dependencies
        self.takes = signature.arguments  # "b", "bd", "db", "d" or "list"
        try:
            self.body_converter = body_types.converter(signature.body_type)
        except InvalidType as error:
            raise InvalidType(f"handler {self.name}: {error}") from None

    def __repr__(self) -> str:
        return f"<handler {self.name} of {self.context.name!r}>"

    def _read_middleware(self) -> None:
        """Check the middleware around the function.

        If middleware claims a business key, it makes the claim before all other middleware runs.
        """
        attached = interceptor.middleware_of(self.function)
        claiming = [each for each in attached if isinstance(each, Idempotent)]
        if len(claiming) > 1:
            raise InvalidValue(f"handler {self.name}: @idempotent is applied twice with Claims")
        self.claims = claiming[0] if claiming else None
        self.middleware: tuple[Middleware, ...] = attached
        for each in attached:
            if self.batch and not each.accepts_batches:
                raise InvalidValue(
                    f"handler {self.name}: batch: {type(each).__name__} wraps one message at a "
                    "time; leave batch out"
                )
            each.check_handler(self)
        interceptor.mark_registered(self.function)

    def follow(self, settings: Settings) -> None:
        """Adapt the handler to the settings of its topic, which were read from Redis.

        Raises:
            InvalidValue: The settings do not allow `ordered`, or the lease does not fit the
                middleware.
        """
        self.ordered = settings.in_slot_order(self.ordered)
        for each in self.middleware:
            each.check_lease(settings.lease_ms if self.lease_ms is None else self.lease_ms)

    def check_stores(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Check that the stores of the middleware are complete, for example that a table exists.

        The argument `loop` is the event loop of async handlers, which runs in another thread.
        """
        for each in self.middleware:
            if self.is_async:
                assert loop is not None
                asyncio.run_coroutine_threadsafe(each.check_store_async(), loop).result()
            else:
                each.check_store()

    def convert_body(self, delivery: InnerDelivery) -> Any:
        """Return the body of a delivery, converted to the annotated type.

        The body is converted once.

        Raises:
            DecodeError: The body does not have the annotated type.
        """
        if self.body_converter is not None and delivery.claim is None:
            delivery.body = self.body_converter(delivery.body)
        return delivery.body

    def arguments(self, delivery: InnerDelivery, shown: DeliveryData) -> tuple[Any, ...]:
        """Return the arguments for a call of the handler's function.

        The argument `shown` is the object that the function gets for its delivery parameter, if it
        has one.

        Raises:
            DecodeError: The body does not have the annotated type.
        """
        body = delivery.body
        if self.body_converter is not None:
            body = self.convert_body(delivery)
        if self.takes == "b":
            return (body,)
        if self.takes == "bd":
            return (body, shown)
        return (shown, body) if self.takes == "db" else (shown,)

    def rule_for(
        self, error: BaseException, delivery: DeliveryData
    ) -> BaseException | Policy | None:
        """Return the rule that says how to settle a delivery after an error.

        The rule is an instance of Snooze, Reject or Retry, or a retry policy. None means the
        topic's retry policy.
        """
        if isinstance(error, Snooze | Reject | Retry):
            return error
        for kind in type(error).__mro__:
            if kind in self.rules:
                return self.rules[kind]
        own_policy = delivery.marks.get(RETRY_MARK)
        if own_policy is not None:
            return policies.from_redis(own_policy)
        if self.retry is None or isinstance(self.retry, Policy):
            return self.retry
        assert callable(self.retry)
        wait = self.retry(delivery, error)
        return None if wait is None else Retry(wait)

    def runtime_of(self, delivery: InnerDelivery) -> float | None:
        """Return the `max_runtime` for a delivery in seconds, or None if there is no limit."""
        own = delivery.marks.get(RUNTIME_MARK) if delivery.record[0] & HEADERS else None
        return self.max_runtime_s if own is None else int(own) / 1000


def _check_bool(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidType(f"{field}: {value!r}; give True or False")
    return value


def _retry(asked: RetryOption | None) -> Policy | RetryFunction | None:
    if asked is None or not callable(asked):
        return None if asked is None else policies.parse_policy(asked)
    if isinstance(asked, type):
        raise InvalidType(f"retry: the class {asked.__name__}; give an object: {asked.__name__}()")
    if is_async_function(asked):
        raise InvalidType(f"retry: {asked!r} is async, and cannot be awaited; use a def")
    return asked


def _rules(on_error: Mapping[type[Exception], Rule] | None) -> dict[type, Rule]:
    rules: dict[type, Rule] = {}
    if on_error is not None and not isinstance(on_error, Mapping):
        raise InvalidType(
            f"on_error: {type(on_error).__name__}; give a dict of exception class to rule"
        )
    for kind, rule in (on_error or {}).items():
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise InvalidType(f"on_error: {kind!r}; its keys are exception classes")
        checked: Any = policies.parse_policy(rule) if isinstance(rule, str) else rule
        if isinstance(checked, type) and issubclass(checked, Retry | Reject):
            checked = checked()
        if not isinstance(checked, Retry | Reject | Snooze | Policy):
            raise InvalidType(
                f"on_error: {kind.__name__}: {rule!r}; give rmq.Retry(5), rmq.Reject('why'), "
                "rmq.Snooze(60) or a retry policy"
            )
        delay = getattr(checked, "delay", None)
        if delay is not None:
            duration_ms(delay, f"on_error: {kind.__name__}: delay", zero=True)
        rules[kind] = checked
    return rules


def _types(asked: object) -> tuple[str, ...]:
    if asked is None:
        return ()
    names: object = (asked,) if isinstance(asked, str) else asked
    if not isinstance(names, Sequence) or isinstance(names, bytes):
        raise InvalidType(f"type: {asked!r}; give a type, or a list of types")
    checked = tuple(map(check_message_type, names))
    if not checked:
        raise InvalidValue("type: the list is empty; leave type out for the default handler")
    if len(set(checked)) < len(checked):
        raise InvalidValue(f"type: {asked!r}; give each type once")
    return checked


def caller_locals(depth: int) -> Mapping[str, Any]:
    """Return the local variables of the function that defines a handler.

    The handler's annotations may use these variables. An example is a class that the same function
    defines. The argument `depth` is the distance to this function on the stack: 1 is the direct
    caller.
    """
    frame = sys._getframe(depth)
    return {} if frame.f_locals is frame.f_globals else frame.f_locals


class TopicHandlers:
    """The handlers of one topic: one for each message type, and a default handler.

    The object is immutable. To add a handler, RMQ creates a new object.

    Attributes:
        context: The topic.
        default: Handler of all messages that have no handler in `by_type`, or None.
        by_type: Handlers by message type.
        lease_ms: Lease in ms. All handlers of the topic have the same lease.
        has_claims: Whether at least one handler claims business keys.
    """

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self._handlers = tuple(handlers)
        first = self._handlers[0]
        self.context = first.context
        self.lease_ms = first.lease_ms
        self.has_claims = any(each.claims is not None for each in self._handlers)
        self.default = next((each for each in self._handlers if not each.types), None)
        self.by_type: dict[str | None, Handler] = {
            name: each for each in self._handlers for name in each.types
        }

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers)

    @property
    def ordered(self) -> bool:
        """Whether messages of a slot are handled one after another.

        This is the same for all handlers of a topic.
        """
        return self._handlers[0].ordered

    def __len__(self) -> int:
        return len(self._handlers)

    def route(self, message_type: str | None) -> Handler | None:
        """Return the handler for a message type, or None if there is none.

        The topic's setting `unhandled` says how long a message without a handler waits.
        """
        return self.by_type.get(message_type, self.default)

    @property
    def is_single(self) -> bool:
        """Whether one handler gets all messages of the topic."""
        return self.default is not None and len(self._handlers) == 1

    def including(self, handler: Handler) -> TopicHandlers:
        """Return a copy of these handlers with one more handler.

        Raises:
            InvalidValue: These messages already have a handler. Or the new handler differs in an
                option that all handlers of a topic share.
        """
        name = self.context.name
        if not handler.types and self.default is not None:
            raise InvalidValue(
                f"handler {handler.name}: topic {name!r} has a handler already, "
                f"{self.default.name}; a message has one handler. Give type= for messages of one "
                "type"
            )
        for each in handler.types:
            if each in self.by_type:
                raise InvalidValue(
                    f"handler {handler.name}: topic {name!r} has a handler for type {each!r} "
                    f"already, {self.by_type[each].name}; a message has one handler"
                )
        first = self._handlers[0]
        for option in ("is_ordered", "lease_ms"):
            own, others = getattr(handler, option), getattr(first, option)
            if own != others:
                shown = option.removeprefix("is_").removesuffix("_ms")
                raise InvalidValue(
                    f"handler {handler.name}: {shown} applies to the whole topic {name!r}; "
                    f"{first.name} has {_shown(others)} and this handler has {_shown(own)}; give "
                    "all handlers of the topic the same value"
                )
        if handler.ordered and handler.is_async != first.is_async:
            raise InvalidValue(
                f"handler {handler.name}: messages of the ordered topic {name!r} run one after the "
                f"other, so either all of its handlers are async or none is; {first.name} is "
                + ("async" if first.is_async else "not")
            )
        return TopicHandlers((*self._handlers, handler))


def _shown(option: bool | int | None) -> str:
    if option is None or isinstance(option, bool):
        return "none" if option is None else str(option)
    return f"{option / 1000:g} s"


class Handlers:
    """The handlers of one client, by topic, and the schedules that its program declares."""

    def __init__(self) -> None:
        self.by_topic: dict[str, TopicHandlers] = {}
        self.lifespans: list[Callable[..., Any]] = []  # run around the life of each worker
        self.schedules: dict[tuple[str, str], Declaration] = {}  # by topic and name

    def add(self, handler: Handler) -> None:
        """Register a handler.

        Raises:
            InvalidValue: The topic already has a handler for these messages. Or the new handler
                differs in an option that all handlers of a topic share.
        """
        known = self.by_topic.get(handler.context.name)
        self.by_topic[handler.context.name] = (
            TopicHandlers((handler,)) if known is None else known.including(handler)
        )
