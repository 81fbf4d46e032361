"""Registering a handler: what works is taken, what cannot work is refused with its reason."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

import rmq
from rmq.kernel.core.interceptor import Middleware, attach
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.handlers.handler import Handler

if TYPE_CHECKING:
    from somewhere import Unimported


URL = "redis://127.0.0.1:1/0"  # nobody is there: registering asks nothing of Redis


def registered(function: Callable[..., Any], **options: Any) -> Handler:
    client = rmq.Client(URL)
    topic = client.topic("orders")
    assert topic.handler(**options)(function) is function
    return client._handlers.by_topic["orders"].default


def refused(function: Callable[..., Any], *words: str, **options: Any) -> None:
    client = rmq.Client(URL)
    with pytest.raises(rmq.InvalidType) as caught:
        client.topic("orders").handler(**options)(function)
    for word in words:
        assert word in str(caught.value)
    assert client._handlers.by_topic == {}


# --- signatures that work ------------------------------------------------------------------------


def body_only(body): ...
def body_and_delivery(body, d): ...
def delivery_by_annotation(d: rmq.Delivery, body): ...
def delivery_alone(d: rmq.Delivery): ...
def delivery_by_default(body, d: rmq.Delivery = None): ...  # type: ignore[assignment]
def with_options_of_its_own(body, retries=3, *, loud=False): ...
def with_more(body, *args, **named): ...
def positional_only(body, d, /): ...
def of_three(tenant, body, d): ...
async def async_body(body): ...
async def async_both(body, d: rmq.AsyncDelivery): ...
async def async_delivery_first(d: rmq.AsyncDelivery, body): ...


class Shop:
    def charge(self, body, d): ...

    async def ship(self, body): ...

    @staticmethod
    def count(body): ...

    @classmethod
    def note(cls, d: rmq.Delivery): ...


class Called:
    def __call__(self, d: rmq.Delivery, body: dict): ...


class CalledAsync:
    async def __call__(self, body): ...


@functools.wraps(body_and_delivery)
def wrapped(*args, **named):
    return body_and_delivery(*args, **named)


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (body_only, "b"),
        (body_and_delivery, "bd"),
        (delivery_by_annotation, "db"),
        (delivery_alone, "d"),
        (delivery_by_default, "bd"),
        (with_options_of_its_own, "b"),
        (with_more, "b"),
        (positional_only, "bd"),
        (async_body, "b"),
        (async_both, "bd"),
        (async_delivery_first, "db"),
        (functools.partial(of_three, "acme"), "bd"),
        (functools.partial(delivery_by_annotation), "db"),
        (functools.partial(body_and_delivery, d=None), "b"),
        (functools.partial(Shop().charge), "bd"),
        (functools.partial(Called()), "db"),
        (functools.partial(async_body), "b"),
        (functools.partial(functools.partial(of_three, "acme"), d=None), "b"),
        (Shop().charge, "bd"),
        (Shop().ship, "b"),
        (Shop.count, "b"),
        (Shop.note, "d"),
        (Called(), "db"),
        (CalledAsync(), "b"),
        (lambda body: None, "b"),
        (lambda body, d: None, "bd"),
        (wrapped, "bd"),
    ],
)
def test_a_signature_that_works_says_who_gets_what(
    function: Callable[..., Any], takes: str
) -> None:
    assert registered(function).takes == takes


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (body_only, False),
        (async_body, True),
        (Called(), False),
        (CalledAsync(), True),
        (functools.partial(async_body), True),
        (functools.partial(CalledAsync()), True),
        (Shop().ship, True),
    ],
)
def test_async_functions_are_known_whatever_they_are_wrapped_in(
    function: Callable[..., Any], expected: bool
) -> None:
    assert registered(function).is_async is expected


def test_an_attribute_named_func_is_not_taken_for_a_partial() -> None:
    class Traced:
        func = staticmethod(async_body)

        def __call__(self, d: rmq.Delivery, body): ...

    made = registered(Traced())

    assert (made.is_async, made.takes) == (False, "db")


def test_the_function_stays_itself_and_can_be_called() -> None:
    topic = rmq.Client(URL).topic("orders")

    @topic.handler(concurrency=2)
    def double(body: int) -> int:
        return body * 2

    assert double(21) == 42
    assert double.__name__ == "double"


# --- signatures that cannot work -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: None, "it takes 0 parameters"),
        (lambda a, b, c: None, "it takes 3 parameters"),
        (lambda *args: None, "it takes *args"),
        (lambda body, *, tenant: None, "there is no value for its keyword 'tenant'"),
        (lambda *, body: None, "there is no value for its keyword 'body'"),
        (lambda **named: None, "it takes 0 parameters"),
        (of_three, "it takes 3 parameters"),
        (functools.partial(body_only, None), "it takes 0 parameters"),
        (Shop.charge, "it takes 3 parameters"),
        (print, "*args"),
    ],
)
def test_a_signature_that_cannot_work_is_refused(function: Callable[..., Any], reason: str) -> None:
    refused(function, reason, "write def handle(body)")


def test_an_async_def_that_asks_for_the_sync_delivery_is_refused() -> None:
    async def handle(body, d: rmq.Delivery): ...

    refused(handle, "'d'", "an async def gets rmq.AsyncDelivery")


def test_a_plain_def_that_asks_for_the_async_delivery_is_refused() -> None:
    def handle(body, d: rmq.AsyncDelivery): ...

    refused(handle, "'d'", "a plain def gets rmq.Delivery")


def test_two_deliveries_are_refused() -> None:
    def handle(one: rmq.Delivery, other: rmq.Delivery): ...

    refused(handle, "both parameters are annotated as deliveries")


@pytest.mark.parametrize("kind", [int, str, dict[str, int], list, "int | None", Handler])
def test_a_second_parameter_that_cannot_be_the_delivery_is_refused(kind: Any) -> None:
    def handle(body, y): ...

    handle.__annotations__["y"] = kind

    refused(handle, "'y' gets the delivery", "take several values as one")


@pytest.mark.parametrize(
    "kind", [Any, object, DeliveryData, "rmq.Delivery | None", Protocol, TypeVar("T")]
)
def test_a_second_parameter_may_have_a_type_that_deliveries_have(kind: Any) -> None:
    def handle(body, y): ...

    handle.__annotations__["y"] = kind

    assert registered(handle).takes == "bd"


def test_a_batch_with_two_parameters_is_refused() -> None:
    refused(body_and_delivery, "it takes 2 parameters", "def handle(deliveries)", batch=10)


def test_a_batch_that_asks_for_one_delivery_is_refused() -> None:
    refused(delivery_alone, "with batch= it gets a list of deliveries", batch=10)


def test_a_generator_is_refused_because_calling_it_runs_nothing() -> None:
    def handle(body):
        yield body

    async def handle_async(body):
        yield body

    refused(handle, "yield")
    refused(handle_async, "yield")


def test_what_is_no_function_is_refused() -> None:
    refused({"not": "callable"}, "is not a function")  # type: ignore[arg-type]


# --- annotations ---------------------------------------------------------------------------------


def test_annotations_may_name_builtins_of_the_function_around() -> None:
    Order = dict[str, int]

    def handle(d: rmq.Delivery, body: Order | None): ...

    topic = (client := rmq.Client(URL)).topic("orders")
    topic.handler()(handle)

    made = client._handlers.by_topic["orders"].default
    assert made.takes == "db"
    assert made.body_converter is not None
    assert made.body_converter({"id": 7}) == {"id": 7}


def test_names_of_the_function_s_own_module_come_before_those_of_the_one_that_registers() -> None:
    other: dict[str, Any] = {"Order": str}
    exec("from __future__ import annotations\ndef handle(body: Order): ...", other)
    registering: dict[str, Any] = {"client": rmq.Client(URL), "handle": other["handle"]}

    exec("Order = int\nclient.topic('orders').handler()(handle)", registering)

    read = registering["client"]._handlers.by_topic["orders"].default.body_converter
    assert read("text") == "text"


def test_a_local_class_of_the_caller_is_what_the_body_becomes() -> None:
    pytest.importorskip("pydantic")
    import pydantic

    class Order(pydantic.BaseModel):
        id: int

    topic = (client := rmq.Client(URL)).topic("orders")

    @topic.handler()
    def handle(order: Order) -> None: ...

    read = client._handlers.by_topic["orders"].default.body_converter
    assert read is not None
    assert read({"id": 7}) == Order(id=7)


def test_a_name_that_is_not_there_at_run_time_is_refused() -> None:
    def handle(body: Unimported): ...

    refused(handle, "an annotation cannot be read", "'Unimported'", "import it at run time")


def test_body_stands_in_for_an_annotation_that_cannot_be_read() -> None:
    def handle(d: rmq.Delivery, body: Unimported) -> Unimported: ...

    made = registered(handle, body=int)

    assert made.takes == "db"
    assert made.body_converter is not None
    assert made.body_converter(7) == 7


def test_a_return_annotation_is_ignored() -> None:
    def handle(body: int) -> Unimported: ...

    assert registered(handle).takes == "b"


def test_body_stands_above_the_annotation() -> None:
    def handle(body: int): ...

    read = registered(handle, body=str).body_converter
    assert read is not None
    assert read("text") == "text"
    with pytest.raises(rmq.DecodeError):
        read(7)


def test_a_handler_without_annotation_takes_any_body() -> None:
    assert registered(body_only).body_converter is None


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"concurrency": 0}, rmq.InvalidValue, ["concurrency", "0", "1 to"]),
        ({"concurrency": 10_001}, rmq.InvalidValue, ["concurrency", "10000"]),
        ({"concurrency": "4"}, rmq.InvalidType, ["concurrency", "'4'", "write 4"]),
        ({"concurrency": True}, rmq.InvalidType, ["concurrency", "True"]),
        ({"concurrency": 1.5}, rmq.InvalidType, ["concurrency", "1.5"]),
        ({"prefetch": 0}, rmq.InvalidValue, ["prefetch", "1 to 100000"]),
        ({"prefetch": 100_001}, rmq.InvalidValue, ["prefetch", "100000"]),
        ({"prefetch": None, "batch": 0}, rmq.InvalidValue, ["batch", "1 to 1000"]),
        ({"batch": BATCH_MAX + 1}, rmq.InvalidValue, ["batch", "1001"]),
        ({"batch": "10"}, rmq.InvalidType, ["batch", "'10'", "write 10"]),
        ({"batch": 10, "prefetch": 5}, rmq.InvalidValue, ["batch", "10", "prefetch", "5"]),
        ({"linger": 1}, rmq.InvalidValue, ["linger", "give batch"]),
        ({"batch": 5, "linger": -1}, rmq.InvalidValue, ["linger", "-1"]),
        ({"batch": 5, "linger": 61}, rmq.InvalidValue, ["linger", "61", "60"]),
        ({"batch": 5, "linger": "1"}, rmq.InvalidType, ["linger", "'1'", "seconds"]),
        ({"ordered": "yes"}, rmq.InvalidType, ["ordered", "'yes'", "True or False"]),
        ({"lease": 0.5}, rmq.InvalidValue, ["lease", "0.5", "at least 1"]),
        ({"lease": 43_201}, rmq.InvalidValue, ["lease", "43200"]),
        ({"lease": "30"}, rmq.InvalidType, ["lease", "'30'", "seconds"]),
        ({"max_runtime": 0}, rmq.InvalidValue, ["max_runtime", "0"]),
        ({"max_runtime": float("nan")}, rmq.InvalidValue, ["max_runtime", "nan"]),
        ({"max_runtime": "9"}, rmq.InvalidType, ["max_runtime", "'9'"]),
        ({"retry": "sometimes"}, rmq.InvalidValue, ["retry", "'sometimes'", "immediate"]),
        ({"retry": 5}, rmq.InvalidType, ["retry", "5", "rmq.Exponential"]),
        ({"retry": rmq.Exponential}, rmq.InvalidType, ["retry", "Exponential"]),
        ({"retry": rmq.Snooze}, rmq.InvalidType, ["retry", "Snooze"]),
        ({"on_error": {"ValueError": rmq.Retry(5)}}, rmq.InvalidType, ["on_error", "classes"]),
        ({"on_error": {int: rmq.Retry(5)}}, rmq.InvalidType, ["on_error", "int"]),
        ({"on_error": {ValueError: 5}}, rmq.InvalidType, ["on_error", "ValueError", "5"]),
        ({"on_error": {ValueError: "soon"}}, rmq.InvalidValue, ["'soon'"]),
        ({"on_error": {ValueError: rmq.Snooze}}, rmq.InvalidType, ["on_error", "Snooze"]),
        ({"on_error": [ValueError]}, rmq.InvalidType, ["on_error", "list"]),
        ({"on_error": {ValueError: rmq.Retry(-5)}}, rmq.InvalidValue, ["on_error", "-5"]),
        ({"on_error": {ValueError: rmq.Snooze("9")}}, rmq.InvalidType, ["on_error", "'9'"]),
    ],
)
def test_an_option_that_cannot_work_names_field_value_and_remedy(
    options: dict[str, Any], kind: type[Exception], words: list[str]
) -> None:
    client = rmq.Client(URL)

    with pytest.raises(kind) as caught:
        client.topic("orders").handler(**options)(body_only)

    for word in words:
        assert word in str(caught.value)
    assert client._handlers.by_topic == {}


def test_an_async_retry_function_is_refused_because_nobody_would_await_it() -> None:
    async def choose(delivery, error): ...

    refused(body_only, "retry", "async", retry=choose)


def test_usual_values_are_those_of_the_docs() -> None:
    plain, coroutine = registered(body_only), registered(async_body)

    assert (plain.concurrency, plain.prefetch) == (8, 1000)
    assert (coroutine.concurrency, coroutine.prefetch) == (100, 1000)
    assert (plain.batch, plain.linger_s, plain.ordered) == (0, 0, False)
    assert (plain.lease_ms, plain.max_runtime_s, plain.retry, plain.rules) == (None, None, None, {})


def test_prefetch_follows_concurrency_and_batch_and_bounds_concurrency() -> None:
    assert registered(body_only, concurrency=3).prefetch == 1000
    assert registered(body_only, concurrency=60, batch=10).prefetch == 1200
    assert registered(body_only, concurrency=50, prefetch=5).concurrency == 5
    assert registered(async_body, concurrency=10_000, batch=1000).prefetch == 100_000


def test_durations_are_seconds_or_timedeltas() -> None:
    made = registered(
        body_only, batch=2, linger=timedelta(seconds=2), lease=timedelta(minutes=1),
        max_runtime=timedelta(seconds=1.5),
    )  # fmt: skip

    assert (made.linger_s, made.lease_ms, made.max_runtime_s) == (2.0, 60_000, 1.5)


def test_a_second_handler_of_a_topic_is_refused_and_the_first_stays() -> None:
    client = rmq.Client(URL)
    client.topic("orders").handler()(body_only)

    with pytest.raises(rmq.InvalidValue, match="'orders' has a handler already, body_only"):
        client.topic("orders").handler()(async_body)

    assert client._handlers.by_topic["orders"].default.function is body_only
    client.topic("mail").handler()(async_body)


def test_another_client_may_have_another_handler_of_the_topic() -> None:
    assert registered(body_only).function is body_only
    assert registered(async_body).function is async_body


def test_an_async_client_registers_alike() -> None:
    client = rmq.AsyncClient(URL)

    client.topic("orders").handler(concurrency=3)(async_both)

    assert client._handlers.by_topic["orders"].default.concurrency == 3
    assert asyncio.iscoroutinefunction(client._handlers.by_topic["orders"].default.function)


def test_a_handler_without_options_needs_no_parentheses() -> None:
    client = rmq.Client(URL)
    Order = dict  # a name that is local here

    @client.topic("orders").handler
    def handle(order: Order) -> int:  # type: ignore[valid-type]
        return 7

    assert handle({}) == 7
    assert client._handlers.by_topic["orders"].default.function is handle


# --- guards --------------------------------------------------------------------------------------


class Filling(Middleware):
    parameter = "connection"


def filled(function: Any) -> Handler:
    return registered(attach(function, Filling(), "filling"))


def test_a_parameter_that_a_guard_fills_is_neither_body_nor_delivery() -> None:
    def by_place(body: dict, d: rmq.Delivery, connection: Any) -> None: ...
    def by_name(body: dict, *, connection: Any) -> None: ...
    def before_its_own(body: dict, connection: Any, retries: int = 3) -> None: ...

    assert filled(by_place).takes == "bd"
    assert filled(by_name).takes == "b"
    assert filled(before_its_own).takes == "b"


def test_a_parameter_that_a_guard_fills_stands_last() -> None:
    def wrong(body: dict, connection: Any, d: rmq.Delivery) -> None: ...
    def absent(body: dict) -> None: ...

    with pytest.raises(rmq.InvalidType, match="'connection' by name; put 'connection' last"):
        filled(wrong)
    with pytest.raises(rmq.InvalidType, match="fills 'connection', which it does not take"):
        filled(absent)


def test_a_class_whose_objects_are_async_functions_is_awaited_and_so_fails_aloud() -> None:
    """Its call makes an object and runs nothing: as a plain handler it would ack the message."""

    class Forgotten:
        def __init__(self, body: object) -> None: ...

        async def __call__(self) -> None: ...

    assert registered(Forgotten).is_async
