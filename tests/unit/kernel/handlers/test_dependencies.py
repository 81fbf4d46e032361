"""Dependencies that a handler may have; all others are refused when it is registered."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import rmq
from rmq.kernel.handlers.dependencies import flattened
from rmq.kernel.handlers.handler import Handler

if TYPE_CHECKING:
    from decimal import Decimal


def plain() -> int:
    return 1


async def awaited() -> int:
    return 2


def yielding() -> Iterator[int]:
    yield 3


async def yielding_async() -> AsyncIterator[int]:
    yield 4


@contextlib.contextmanager
def managed() -> Iterator[int]:
    yield 5


@contextlib.asynccontextmanager
async def managed_async() -> AsyncIterator[int]:
    yield 6


class Settings:
    def __init__(self, number: Annotated[int, rmq.Depends(plain)]) -> None:
        self.number = number

    async def __call__(self) -> int:
        return 7


class Decorated:
    @managed()
    def __call__(self, first: Annotated[int, rmq.Depends(plain)]) -> int:
        return first


def adding(first: Annotated[int, rmq.Depends(plain)], second: int = rmq.Depends(yielding)) -> int:
    return first + second


def registered(function: Callable[..., Any], **options: Any) -> Handler:
    client = rmq.Client("redis://127.0.0.1:1/0")
    client.topic("t").handler(**options)(function)
    return next(iter(client._handlers.by_topic["t"]))


@pytest.mark.parametrize(
    ("function", "is_async", "is_manager"),
    [
        (plain, False, False),
        (functools.partial(plain), False, False),
        (awaited, True, False),
        (functools.partial(awaited), True, False),
        (yielding, False, True),
        (yielding_async, True, True),
        (managed, False, True),
        (managed_async, True, True),
        (Settings, False, False),
        (Settings(1), True, False),
        (functools.partial(Settings(1)), True, False),
        (Decorated(), False, False),
    ],
)
def test_the_kind_of_a_function_is_known(function: Any, is_async: bool, is_manager: bool) -> None:
    async def handle_async(body: int, value: int = rmq.Depends(function)) -> None: ...

    def handle(body: int, value: int = rmq.Depends(function)) -> None: ...

    node = registered(handle_async if is_async else handle).dependencies.nodes()["value"]

    assert (node.is_async, node.is_manager) == (is_async, is_manager)


def test_a_shared_dependency_is_one_node_and_comes_before_those_that_take_it() -> None:
    def handle(
        body: int, one: Annotated[int, rmq.Depends(plain)], sum: int = rmq.Depends(adding)
    ) -> None: ...

    nodes = flattened(registered(handle).dependencies.nodes().values())

    assert [node.name for node in nodes] == ["plain", "yielding", "adding"]


def test_the_body_is_still_the_first_parameter_and_the_delivery_the_second() -> None:
    def handle(body: dict[str, int], d: rmq.Delivery, one: int = rmq.Depends(plain)) -> None: ...

    handler = registered(handle)

    assert handler.takes == "bd"
    assert handler.body_converter is not None
    handle({}, None, 3)  # type: ignore[arg-type]  # it is an ordinary function


def test_a_handler_may_take_nothing_but_the_delivery_and_dependencies() -> None:
    def handle(d: rmq.Delivery, *, one: int = rmq.Depends(plain)) -> None: ...

    assert registered(handle).takes == "d"


def takes_what(what) -> int:  # type: ignore[no-untyped-def]
    return 0


def takes_delivery(d: rmq.Delivery) -> int:
    return 0


def takes_async_delivery(d: rmq.AsyncDelivery) -> int:
    return 0


def takes_unreadable(x: Decimal) -> int:
    return 0


def takes_by_position(x: Annotated[int, rmq.Depends(plain)], /) -> int:
    return 0


def lives_longer(x: Annotated[int, rmq.Depends(plain)]) -> int:
    return 0


def takes_awaited(x: Annotated[int, rmq.Depends(awaited)]) -> int:
    return 0


@pytest.mark.parametrize(
    ("function", "scope", "says"),
    [
        (awaited, "run", "awaited: it is async, and a plain handler cannot await it"),
        (awaited, "process", "awaited: it is async, and a plain handler cannot await it"),
        (takes_awaited, "run", "takes_awaited: it is plain, and awaited is async"),
        (takes_what, "run", "there is no value for 'what'"),
        (takes_async_delivery, "run", "'d': here it gets rmq.Delivery"),
        (takes_unreadable, "run", "annotation of 'x' cannot be read .*import it at run time"),
        (takes_by_position, "run", "'x' cannot be given by name"),
        (lives_longer, "process", "give plain scope='process' too"),
        (takes_delivery, "process", "takes a delivery, but lives longer"),
    ],
)  # fmt: skip
def test_what_a_plain_handler_cannot_use_is_refused(function: Any, scope: Any, says: str) -> None:
    def handle(body: int, value: int = rmq.Depends(function, scope=scope)) -> None: ...

    with pytest.raises(rmq.InvalidType, match=says):
        registered(handle)


def test_a_plain_dependency_would_block_the_loop_of_an_async_handler() -> None:
    async def handle(body: int, value: int = rmq.Depends(plain)) -> None: ...

    with pytest.raises(
        rmq.InvalidType, match=r"plain: it is plain, and would block the event loop"
    ):
        registered(handle)


def test_a_plain_one_of_the_process_serves_async_handlers() -> None:
    async def handle(body: int, value: int = rmq.Depends(plain, scope="process")) -> None: ...

    registered(handle)


def test_a_batch_has_no_single_delivery() -> None:
    def handle(deliveries: Any, value: int = rmq.Depends(takes_delivery)) -> None: ...

    with pytest.raises(rmq.InvalidType, match="a handler with batch= has no single delivery"):
        registered(handle, batch=5)


def test_a_dependency_that_depends_on_itself_is_refused() -> None:
    def circle(x: int) -> int:
        return x

    circle.__annotations__["x"] = Annotated[int, rmq.Depends(circle)]

    def handle(body: int, value: int = rmq.Depends(circle)) -> None: ...

    with pytest.raises(rmq.InvalidType, match="circle: it depends on itself"):
        registered(handle)


def test_a_parameter_before_the_body_is_refused() -> None:
    def handle(value: Annotated[int, rmq.Depends(plain)], body: int) -> None: ...

    with pytest.raises(
        rmq.InvalidType, match="a dependency fills 'value' by name; put 'value' last"
    ):
        registered(handle)


def test_an_annotation_that_cannot_be_read_is_not_taken_for_the_delivery() -> None:
    def handle(body: int, value: Annotated[Decimal, rmq.Depends(plain)]) -> None: ...

    with pytest.raises(rmq.InvalidType, match="an annotation cannot be read"):
        registered(handle, body=int)


def test_names_of_the_function_around_it_may_be_used() -> None:
    def local() -> int:
        return 1

    def nested(x: Annotated[int, rmq.Depends(local)]) -> int:
        return x

    client = rmq.Client("redis://127.0.0.1:1/0")

    @client.topic("t").handler
    def handle(body: int, value: Annotated[int, rmq.Depends(nested)]) -> None: ...

    assert set(next(iter(client._handlers.by_topic["t"])).dependencies.nodes()) == {"value"}


@pytest.mark.parametrize("given", [3, "get_session", None])
def test_only_a_function_can_be_depended_on(given: Any) -> None:
    with pytest.raises(rmq.InvalidType, match=r"give it without \(\)"):
        rmq.Depends(given)


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(rmq.InvalidValue, match="give 'run' or 'process'"):
        rmq.Depends(plain, scope="request")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [plain, awaited, 3])
def test_a_lifespan_has_to_yield(function: Any) -> None:
    client = rmq.Client("redis://127.0.0.1:1/0")
    with pytest.raises(rmq.InvalidType, match="does not yield"):
        client.lifespan(function)


def test_a_lifespan_with_a_parameter_that_nobody_fills_is_refused() -> None:
    client = rmq.Client("redis://127.0.0.1:1/0")

    def around(app: Any) -> Iterator[None]:
        yield

    with pytest.raises(rmq.InvalidType, match="there is no value for 'app'"):
        client.lifespan(around)
