"""Dependencies of a run and of the process: order, clean-up, errors that cannot be hidden."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import pytest

import rmq
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.handlers.scopes import RunScope
from rmq.worker.process_scope import ProcessScope
from rmq.worker.running.event_loop import EventLoopThread

seen: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


@contextmanager
def noting_the_end() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        seen.append(("outer saw", str(error)))
        raise
    finally:
        seen.append("outer closed")


def outer() -> Iterator[str]:
    with noting_the_end():
        yield "outer"


def swallowing(outer: Annotated[str, rmq.Depends(outer)]) -> Iterator[str]:
    try:
        yield outer + " inner"
    except ValueError:
        seen.append("swallowed")


async def outer_async() -> AsyncIterator[str]:
    with noting_the_end():
        try:
            yield "outer"
        finally:
            await asyncio.sleep(0)


async def swallowing_async(outer: Annotated[str, rmq.Depends(outer_async)]) -> AsyncIterator[str]:
    try:
        yield outer + " inner"
    except ValueError:
        seen.append("swallowed")


def registered(function: Callable[..., Any]) -> Handler:
    client = rmq.Client("redis://127.0.0.1:1/0")
    client.topic("t").handler(function)
    return next(iter(client._handlers.by_topic["t"]))


def run_of(function: Callable[..., Any], values: Any = None) -> None:
    handler = registered(function)
    scope = RunScope(handler.dependencies, values or {})
    if handler.is_async:

        async def call_async(**filled: Any) -> None:
            await function(1, **filled)

        asyncio.run(scope.call_async(call_async, None))
    else:
        scope.call(lambda **filled: function(1, **filled), None)


def working(body: int, value: Annotated[str, rmq.Depends(swallowing)]) -> None:
    seen.append(value)


async def working_async(body: int, value: Annotated[str, rmq.Depends(swallowing_async)]) -> None:
    seen.append(value)


def failing(body: int, value: Annotated[str, rmq.Depends(swallowing)]) -> None:
    raise ValueError("no")


async def failing_async(body: int, value: Annotated[str, rmq.Depends(swallowing_async)]) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("function", [working, working_async])
def test_what_was_opened_is_closed_after_a_success(function: Any) -> None:
    run_of(function)
    assert seen == ["outer inner", "outer closed"]


@pytest.mark.parametrize("function", [failing, failing_async])
def test_no_dependency_hides_an_error_from_the_worker_or_from_the_others(function: Any) -> None:
    with pytest.raises(ValueError, match="no"):
        run_of(function)
    assert seen == ["swallowed", ("outer saw", "no"), "outer closed"]


def test_an_error_of_the_clean_up_is_an_error_of_the_run() -> None:
    def committing() -> Iterator[None]:
        yield
        raise OSError("no commit")

    def handle(body: int, value: None = rmq.Depends(committing)) -> None: ...

    with pytest.raises(OSError, match="no commit"):
        run_of(handle)


def test_a_dependency_may_raise_another_error_in_place_of_the_handlers() -> None:
    def translating() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise rmq.Retry(5) from error

    def handle(body: int, value: None = rmq.Depends(translating)) -> None:
        raise ValueError

    with pytest.raises(rmq.Retry):
        run_of(handle)


def test_those_that_ask_for_one_function_share_its_value_within_a_run_only() -> None:
    def made() -> object:
        seen.append("made")
        return object()

    def other(value: object = rmq.Depends(made)) -> object:
        return value

    def handle(
        body: int, one: object = rmq.Depends(made), two: object = rmq.Depends(other)
    ) -> None:
        assert one is two

    run_of(handle)
    run_of(handle)

    assert seen == ["made", "made"]


# --- the process ---------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    thread = EventLoopThread()
    yield thread.loop
    thread.stop(5)


def never() -> bool:
    return False


def plain_life() -> Iterator[int]:
    seen.append(("plain", threading.get_ident()))
    yield 1
    seen.append(("plain end", threading.get_ident()))


async def async_life(
    n: Annotated[int, rmq.Depends(plain_life, scope="process")],
) -> AsyncIterator[int]:
    async with asyncio.TaskGroup():  # which has to be left in the task that entered it
        seen.append(("async", asyncio.get_running_loop()))
        yield n + 1
        seen.append(("async end", asyncio.get_running_loop()))


def test_lifespans_are_opened_and_closed_where_they_belong(loop: asyncio.AbstractEventLoop) -> None:
    scope = ProcessScope([async_life, plain_life], [])

    assert scope.needs_loop
    assert scope.open(loop, never)
    scope.close(60)

    assert not scope.failed
    assert [name for name, _ in seen] == ["plain", "async", "async end", "plain end"]
    assert seen[0][1] == seen[3][1] != threading.get_ident()
    assert seen[1][1] is seen[2][1] is loop
    assert list(scope.values.values()) == [1, 2]


def test_a_start_that_fails_closes_what_was_open_and_names_the_culprit(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def failing_life() -> AsyncIterator[None]:
        raise OSError("no pool")
        yield

    scope = ProcessScope([plain_life, async_life, failing_life], [])
    with pytest.raises(rmq.LifespanFailed, match="failing_life raised OSError: no pool") as raised:
        scope.open(loop, never)
    scope.close(60)

    assert isinstance(raised.value.__cause__, OSError)
    assert scope.failed
    assert seen[-1][0] == "plain end"


def test_an_interrupted_start_is_cancelled_and_closed(loop: asyncio.AbstractEventLoop) -> None:
    begun = threading.Event()

    async def slow() -> AsyncIterator[None]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield
        finally:
            seen.append("slow closed")

    scope = ProcessScope([plain_life, slow], [])

    assert not scope.open(loop, begun.is_set)
    scope.close(60)

    assert [entry[0] for entry in seen[:1]] + seen[1:2] + [seen[2][0]] == [
        "plain", "slow closed", "plain end",
    ]  # fmt: skip


def test_a_close_that_hangs_is_given_up_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    released, ended = threading.Event(), threading.Event()

    def hanging() -> Iterator[None]:
        yield
        released.wait()
        ended.set()

    scope = ProcessScope([hanging], [])
    scope.open(None, never)
    scope.close(0.2)

    assert scope.failed
    assert "was not closed in time" in caplog.text
    released.set()
    assert ended.wait(60)


def test_an_error_of_the_close_is_logged_and_remembered(caplog: pytest.LogCaptureFixture) -> None:
    def failing_life() -> Iterator[None]:
        yield
        raise OSError("no end")

    scope = ProcessScope([plain_life, failing_life], [])
    scope.open(None, never)
    scope.close(60)

    assert scope.failed
    assert "no end" in caplog.text
    assert seen[-1][0] == "plain end"


def test_handlers_that_share_a_dependency_of_the_process_share_its_value() -> None:
    def handle(body: int, n: int = rmq.Depends(plain_life, scope="process")) -> None:
        seen.append(n)

    handler = registered(handle)
    scope = ProcessScope([plain_life], [handler.dependencies, handler.dependencies])
    scope.open(None, never)
    run_of(handle, scope.values)
    scope.close(60)

    assert [entry if isinstance(entry, int) else entry[0] for entry in seen] == [
        "plain", 1, "plain end",
    ]  # fmt: skip
