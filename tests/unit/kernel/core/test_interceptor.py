"""Hooks around a handler: which are refused, and where one is missing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import rmq
from rmq.kernel.core.interceptor import Hooks


class Plain(rmq.Interceptor):
    def around_handle(self, delivery: Any, call_next: Callable[[Any], None]) -> None:
        call_next(delivery)


class Both(Plain):
    async def around_handle_async(self, delivery: Any, call_next: Any) -> None:
        await call_next(delivery)


class NotAwaited(rmq.Interceptor):
    async def around_handle(self, delivery: Any, call_next: Any) -> None: ...  # type: ignore[override]


class NotAsync(rmq.Interceptor):
    def around_batch_async(self, deliveries: Any, call_next: Any) -> None: ...  # type: ignore[override]


class Yielding(rmq.Interceptor):
    def around_handle(self, delivery: Any, call_next: Any) -> Any:
        yield


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (NotAwaited, "around_handle is async; name it around_handle_async"),
        (NotAsync, "around_batch_async is plain; make it an async def"),
        (Yielding, "around_handle has a yield; call call_next instead"),
    ],
)
def test_a_hook_that_cannot_work_is_refused_with_its_client(
    kind: type[rmq.Interceptor], says: str
) -> None:
    with pytest.raises(rmq.InvalidType, match=says):
        rmq.Client("redis://127.0.0.1:1/0", interceptors=[kind()])


@pytest.mark.parametrize(
    ("is_async", "batch", "says"),
    [
        (
            True,
            0,
            "Plain has around_handle, .*handler h, an async def; give it around_handle_async",
        ),
        (False, 5, "h, a plain def with batch; give it around_batch as well"),
        (True, 5, "h, an async def with batch; give it around_batch_async as well"),
    ],
)
def test_a_handler_that_would_run_without_the_hook_is_refused(
    is_async: bool, batch: int, says: str
) -> None:
    handler: Any = SimpleNamespace(name="h", is_async=is_async, batch=batch)
    with pytest.raises(rmq.InvalidType, match=says):
        Hooks([Plain()]).around(handler)


def test_a_worker_refuses_it_before_it_starts() -> None:
    client = rmq.Client("redis://127.0.0.1:1/0")

    @client.topic("t").handler
    async def handle(body: int) -> None: ...

    with pytest.raises(rmq.InvalidType, match="give it around_handle_async as well"):
        rmq.Worker(client, interceptors=[Plain()])
    rmq.Worker(client, interceptors=[Both()])


def test_without_a_hook_there_is_nothing_around_a_handler() -> None:
    handler: Any = SimpleNamespace(name="h", is_async=True, batch=5)
    assert Hooks([rmq.Interceptor()]).around(handler) == []
