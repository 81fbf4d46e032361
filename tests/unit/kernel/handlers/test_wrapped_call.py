"""Hooks around a handler: what they return or raise decides, as the handler's own."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import rmq
from rmq.kernel.core.interceptor import Hooks
from rmq.worker.running.invoker import invoker_class
from rmq.worker.settling.disposition import ACK
from tests.unit.worker.running.test_invoker import delivered, registered, show


class Around(rmq.Interceptor):
    """Does what it is told, around any handler."""

    def __init__(self, seen: list[Any], name: str, act: Callable[[Any], bool] = bool) -> None:
        self.seen, self.name, self.act = seen, name, act

    def around_handle(self, delivery: Any, call_next: Any) -> None:
        self.seen.append(f"{self.name} in")
        call_next(delivery)
        self.seen.append(f"{self.name} out")

    async def around_handle_async(self, delivery: Any, call_next: Any) -> None:
        self.seen.append(f"{self.name} in")
        await call_next(delivery)
        self.seen.append(f"{self.name} out")


def run(function: Callable[..., Any], *chain: rmq.Interceptor, body: Any = 1) -> Any:
    handler = registered(function)
    runner: Any = invoker_class(handler)(handler, show, Hooks(chain))
    if handler.is_async:
        return asyncio.run(runner.run(delivered(body)))
    return runner.run(delivered(body))


@pytest.mark.parametrize("is_async", [False, True])
def test_the_first_interceptor_is_the_outermost(is_async: bool) -> None:
    seen: list[Any] = []

    def handle(body: int) -> None:
        seen.append(body)

    async def handle_async(body: int) -> None:
        seen.append(body)

    disposition = run(handle_async if is_async else handle, Around(seen, "a"), Around(seen, "b"))

    assert disposition is ACK
    assert seen == ["a in", "b in", 1, "b out", "a out"]


def test_a_hook_that_does_not_call_next_answers_instead_of_the_handler() -> None:
    class Answering(rmq.Interceptor):
        def around_handle(self, delivery: Any, call_next: Any) -> None: ...

    def handle(body: int) -> None:
        raise AssertionError("it never gets here")

    assert run(handle, Answering()) is ACK


def test_what_a_hook_raises_counts_as_raised_by_the_handler() -> None:
    class Refusing(rmq.Interceptor):
        def around_handle(self, delivery: Any, call_next: Any) -> None:
            call_next(delivery)
            raise rmq.Reject("not today")

    outcomes: list[rmq.Outcome] = []

    class Watching(rmq.Interceptor):
        def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
            outcomes.append(outcome)

    disposition = run(lambda body: None, Refusing(), Watching())

    assert disposition.verb == "reject"
    assert isinstance(outcomes[0].error, rmq.Reject)


def test_a_hook_that_catches_an_error_settles_the_message() -> None:
    class Catching(rmq.Interceptor):
        def around_handle(self, delivery: Any, call_next: Any) -> None:
            try:
                call_next(delivery)
            except ZeroDivisionError:
                return

    assert run(lambda body: 1 / 0, Catching()) is ACK


def test_a_hook_may_change_the_body_before_it_is_checked() -> None:
    seen: list[Any] = []

    class Decoding(rmq.Interceptor):
        def around_handle(self, delivery: Any, call_next: Any) -> None:
            delivery.body = int(delivery.body)
            call_next(delivery)

    def handle(body: int) -> None:
        seen.append(body)

    assert run(handle, Decoding(), body="7") is ACK
    assert seen == [7]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_body_that_does_not_fit_is_seen_by_the_hook_and_rejected(is_async: bool) -> None:
    seen: list[Any] = []

    def handle(body: int) -> None: ...

    async def handle_async(body: int) -> None: ...

    disposition = run(handle_async if is_async else handle, Around(seen, "a"), body="text")

    assert (disposition.verb, disposition.kind) == ("reject", "u")
    assert seen == ["a in"]


def test_a_decode_error_of_the_handler_itself_is_a_failure() -> None:
    def handle(body: int) -> None:
        raise rmq.DecodeError("of something else")

    assert run(handle, Around([], "a")).verb == "nack"


@pytest.mark.parametrize("returns", [False, True])
def test_a_call_that_was_not_awaited_does_not_settle_the_message(returns: bool) -> None:
    class Forgetful(rmq.Interceptor):
        async def around_handle_async(self, delivery: Any, call_next: Any) -> Any:
            result = call_next(delivery)
            return result if returns else None

    async def handle(body: int) -> None:
        raise AssertionError("it never gets here")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        disposition = run(handle, Around([], "a"), Forgetful())

    assert disposition.verb == "nack"
    assert "did not await it" in str(disposition.error)


def test_a_handler_without_anything_around_it_is_called_directly() -> None:
    handler = registered()

    def wrapped(interceptor: rmq.Interceptor) -> object:
        hooks = Hooks([interceptor])
        return invoker_class(handler)(handler, show, hooks).wrapped

    assert wrapped(rmq.Interceptor()) is None
    assert wrapped(Around([], "a")) is not None
