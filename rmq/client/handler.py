"""A handler: a function that is run for every message of a topic, and how it is to be run.

Everything that can be known when a function is registered is checked then: its signature, its
annotations, its options. How it is run is the worker's matter (`rmq.worker`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from rmq.client.consumer import AsyncDelivery, Delivery
from rmq.client.idempotency import Idempotent
from rmq.core import body_types, middleware, retry as policies
from rmq.core.delivery import DeliveryData, Reject, Retry, Snooze
from rmq.core.middleware import Middleware
from rmq.core.record import HEADERS
from rmq.core.retry import Policy
from rmq.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS
from rmq.core.topic_context import TopicContext
from rmq.core.validation import Duration, check_int, duration_ms
from rmq.errors import InvalidType, InvalidValue
from rmq.protocol.draft import RETRY_MARK, RUNTIME_MARK

THREADS, TASKS = 8, 100  # how many run at a time unless the handler says
MOST_AT_A_TIME, MOST_HELD = 10_000, 100_000

Choice = Callable[[Any, BaseException], Duration | None]
RetryOption = Policy | str | Choice
Rule = Retry | Reject | Snooze | Policy


class Handler:
    """A function with the topic it serves and its options, checked."""

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
        names: Mapping[str, Any],
    ) -> None:
        self.context = context
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        if not callable(function):
            raise InvalidType(f"handler: {function!r} is not a function")
        self.is_async = _is_async(function)
        usual = TASKS if self.is_async else THREADS
        self.concurrency = check_int(
            usual if concurrency is None else concurrency, "concurrency", 1, MOST_AT_A_TIME
        )
        self.batch = 0 if batch is None else check_int(batch, "batch", 1, BATCH_MAX)
        held = 2 * self.concurrency * max(1, self.batch)
        self.prefetch = check_int(
            min(held, MOST_HELD) if prefetch is None else prefetch, "prefetch", 1, MOST_HELD
        )
        self.is_prefetch_chosen = prefetch is not None
        self.concurrency = min(self.concurrency, self.prefetch)
        if self.batch > self.prefetch:
            raise InvalidValue(f"batch: {batch} is more than prefetch, {prefetch}; raise prefetch")
        self.linger_s = duration_ms(linger, "linger", high_ms=60_000, zero=True) / 1000
        if self.linger_s and not self.batch:
            raise InvalidValue("linger: it fills batches; give batch too")
        self.ordered = _flag(ordered, "ordered")
        if self.ordered and self.batch:
            raise InvalidValue("ordered: not with batch; an ordered handler gets one at a time")
        self.lease_ms = (
            None if lease is None else duration_ms(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS)
        )
        self.max_runtime_s = (
            None if max_runtime is None else duration_ms(max_runtime, "max_runtime") / 1000
        )
        self.retry = _retry(retry)
        self.rules = _rules(on_error)
        self._read_middleware()
        self._read_signature(body, names)

    def __repr__(self) -> str:
        return f"<handler {self.name} of {self.context.name!r}>"

    # --- guards ----------------------------------------------------------------------------------

    def _read_middleware(self) -> None:
        """What stands around the function. Claims are taken when a message comes, before all."""
        found = middleware.middleware_of(self.function)
        claiming = [one for one in found if isinstance(one, Idempotent)]
        if len(claiming) > 1:
            raise InvalidValue(f"handler {self.name}: @idempotent stands twice with Claims")
        self.claims = claiming[0] if claiming else None
        self.middleware: tuple[Middleware, ...] = found
        for one in found:
            if self.batch and not one.accepts_batches:
                raise InvalidValue(
                    f"handler {self.name}: batch: {type(one).__name__} guards one message at a "
                    "time; leave batch out"
                )
            one.check_handler(self)
        middleware.mark_registered(self.function)

    def check_lease(self, lease_ms: int) -> None:
        """The topic's lease is known: let the guards refuse what cannot work with it.

        Raises:
            InvalidValue: naming the guard's option.
        """
        for one in self.middleware:
            one.check_lease(lease_ms if self.lease_ms is None else self.lease_ms)

    # --- the signature ---------------------------------------------------------------------------

    def _refuse(self, why: str) -> InvalidType:
        return InvalidType(
            f"handler {self.name}: {why}; write def handle(body), def handle(body, delivery) or, "
            "with batch=, def handle(deliveries)"
        )

    def _read_signature(self, body: Any, names: Mapping[str, Any]) -> None:
        """Which parameter is the body, which the delivery, and what the body must be."""
        try:
            given = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError) as error:
            raise self._refuse(f"its signature cannot be read ({error})") from None
        if inspect.isgeneratorfunction(self._inner) or inspect.isasyncgenfunction(self._inner):
            raise self._refuse("it has a yield, so calling it would run nothing")
        filled = {one.parameter for one in self.middleware if one.parameter}
        absent = filled - {one.name for one in given}
        if absent:
            raise self._refuse(f"its guard fills {absent.pop()!r}, which it does not take")
        order = [one.name for one in given]
        given = [one for one in given if one.name not in filled]
        hints = self._hints(names, given, lenient=body is not None)
        kinds = inspect.Parameter
        for one in given:
            if one.kind is kinds.KEYWORD_ONLY and one.default is kinds.empty:
                raise self._refuse(f"nobody would fill its keyword {one.name!r}")
        taken = [
            one
            for one in given
            if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
            and (one.default is kinds.empty or hints.get(one.name) in (Delivery, AsyncDelivery))
        ]
        if not taken and any(one.kind is kinds.VAR_POSITIONAL for one in given):
            raise self._refuse("it takes *args, which does not say whether it wants the delivery")
        for name in filled:  # the others are passed by their places
            if any(order.index(name) < order.index(one.name) for one in taken):
                raise self._refuse(f"its guard fills {name!r} by name; put that one last")
        most = 1 if self.batch else 2
        if not 1 <= len(taken) <= most:
            raise self._refuse(f"it takes {len(taken)} parameters")
        wanted: Any = AsyncDelivery if self.is_async else Delivery
        wrong = Delivery if self.is_async else AsyncDelivery
        places = [n for n, one in enumerate(taken) if hints.get(one.name) in (wanted, wrong)]
        for n in places:
            if hints[taken[n].name] is wrong:
                kind = "an async def gets" if self.is_async else "a plain def gets"
                raise self._refuse(f"{taken[n].name!r}: {kind} rmq.{wanted.__name__}")
        if len(places) > 1:
            raise self._refuse("both parameters are annotated as deliveries")
        if not places and len(taken) == 2:
            places = [1]
        self.takes = "".join("d" if n in places else "b" for n in range(len(taken)))
        if self.batch:
            self.takes = "list"
            if places:
                raise self._refuse("with batch= it gets a list of deliveries")
        annotated = [hints.get(one.name) for n, one in enumerate(taken) if n not in places]
        asked = body if body is not None else (annotated[0] if annotated else None)
        if self.batch and body is None:
            asked = None  # list[rmq.Delivery]: what is in them is for body= to say
        try:
            self.read = body_types.converter(asked)
        except InvalidType as error:
            raise InvalidType(f"handler {self.name}: {error}") from None

    @property
    def _inner(self) -> Any:
        """The function that is run at last."""
        inner = _unwrapped(self.function)
        if inspect.isfunction(inner) or inspect.ismethod(inner):
            return inner
        return getattr(type(inner), "__call__", inner)  # noqa: B004 - of an object that is called

    def _hints(
        self, names: Mapping[str, Any], given: list[inspect.Parameter], lenient: bool
    ) -> dict[str, Any]:
        """What the parameters are annotated with. `lenient`: body= says what cannot be read."""
        inner, found = self._inner, {}
        for one in given:
            if one.annotation is inspect.Parameter.empty:
                continue
            alone = types.SimpleNamespace(__annotations__={one.name: one.annotation})
            known = getattr(inspect.unwrap(inner), "__globals__", {})
            try:
                found.update(typing.get_type_hints(alone, known, dict(names), include_extras=True))
            except Exception as error:
                if not lenient:
                    raise self._refuse(
                        f"an annotation cannot be read ({error}); import it at run time, "
                        "or give body="
                    ) from None
        return found

    def fit(self, delivery: DeliveryData) -> Any:
        """The body as its type asks for; read once, by whoever comes first.

        Raises:
            DecodeError: the body does not fit.
        """
        if self.read is not None and delivery._claim is None:
            delivery.body = self.read(delivery.body)
        return delivery.body

    def arguments(self, delivery: DeliveryData) -> tuple[Any, ...]:
        """What the function is called with.

        Raises:
            DecodeError: the body does not fit.
        """
        body = delivery.body
        if self.read is not None:
            body = self.fit(delivery)
        if self.takes == "b":
            return (body,)
        if self.takes == "bd":
            return (body, delivery)
        return (delivery, body) if self.takes == "db" else (delivery,)

    # --- what becomes of a failure ---------------------------------------------------------------

    def rule_for(
        self, error: BaseException, delivery: DeliveryData
    ) -> BaseException | Policy | None:
        """What an exception means: Snooze, Reject, Retry or a policy; None: the topic's policy."""
        if isinstance(error, Snooze | Reject | Retry):
            return error
        for kind in type(error).__mro__:
            if kind in self.rules:
                return self.rules[kind]
        own = delivery.marks.get(RETRY_MARK) if delivery._record[0] & HEADERS else None
        if own is not None:
            return policies.from_redis(own)
        if self.retry is None or isinstance(self.retry, Policy):
            return self.retry
        assert callable(self.retry)
        wait = self.retry(delivery, error)
        return None if wait is None else Retry(wait)

    def runtime_of(self, delivery: DeliveryData) -> float | None:
        """How long one run may take, seconds; None: for ever."""
        own = delivery.marks.get(RUNTIME_MARK) if delivery._record[0] & HEADERS else None
        return self.max_runtime_s if own is None else int(own) / 1000


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidType(f"{field}: {value!r}; give True or False")
    return value


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _is_async(function: Any) -> bool:
    inner = _unwrapped(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - the method of an object that is called
    )


def _retry(asked: RetryOption | None) -> Policy | Choice | None:
    if asked is None or not callable(asked):
        return None if asked is None else policies.parse_policy(asked)
    if isinstance(asked, type):
        raise InvalidType(f"retry: the class {asked.__name__}; give an object: {asked.__name__}()")
    if _is_async(asked):
        raise InvalidType(f"retry: {asked!r} is async, and nobody would await it; make it plain")
    return asked


def _rules(on_error: Mapping[type[Exception], Rule] | None) -> dict[type, Rule]:
    found: dict[type, Rule] = {}
    if on_error is not None and not isinstance(on_error, Mapping):
        raise InvalidType(
            f"on_error: {type(on_error).__name__}; give a dict of exception class to rule"
        )
    for kind, rule in (on_error or {}).items():
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise InvalidType(f"on_error: {kind!r}; its keys are exception classes")
        made: Any = policies.parse_policy(rule) if isinstance(rule, str) else rule
        if isinstance(made, type) and issubclass(made, Retry | Reject):
            made = made()
        if not isinstance(made, Retry | Reject | Snooze | Policy):
            raise InvalidType(
                f"on_error: {kind.__name__}: {rule!r}; give rmq.Retry(5), rmq.Reject('why'), "
                "rmq.Snooze(60) or a retry policy"
            )
        delay = getattr(made, "delay", None)
        if delay is not None:
            duration_ms(delay, f"on_error: {kind.__name__}: delay", zero=True)
        found[kind] = made
    return found


class Handlers:
    """The handlers of one client, by topic."""

    def __init__(self) -> None:
        self.by_topic: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register one.

        Raises:
            InvalidValue: the topic has a handler.
        """
        name = handler.context.name
        if name in self.by_topic:
            raise InvalidValue(
                f"handler {handler.name}: topic {name!r} has a handler already, "
                f"{self.by_topic[name].name}; a message has one handler"
            )
        self.by_topic[name] = handler


def locals_of_caller(depth: int) -> Mapping[str, Any]:
    """The names that annotations may use where a handler is defined inside a function."""
    frame = sys._getframe(depth)
    return {} if frame.f_locals is frame.f_globals else frame.f_locals
