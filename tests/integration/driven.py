"""An async client with sync methods, so that one suite tests both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import rmq

# Both clients drive the same flows, and tests/unit/client/test_pairs.py compares their methods, so
# that a test runs on the sync one. With this mark it runs on the async one too: where the two
# differ, and once for each method.
both_clients = pytest.mark.parametrize("kind", ["sync", "async"], indirect=True)

_WRAPPED = (
    rmq.AsyncClient, rmq.AsyncTopic, rmq.AsyncConsumer, rmq.AsyncDelivery, rmq.AsyncAdmin,
    rmq.AsyncBatch, rmq.AsyncQuery, rmq.AsyncStage, rmq.AsyncSchedule, rmq.AsyncResultHandle,
    rmq.AsyncTopicHistory,
)  # fmt: skip


class Driven:
    """An async object whose awaitables are awaited on a loop of its own."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.__dict__["target"] = target
        self.__dict__["loop"] = loop

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self.target, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.target, name, value)

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, _WRAPPED):
            return Driven(value, self.loop)
        if isinstance(value, list):
            return [self._wrap(one) for one in value]
        if inspect.isasyncgen(value):
            return self._iterate(value)
        if inspect.iscoroutine(value):
            return self._wrap(self.loop.run_until_complete(value))
        if inspect.ismethod(value):
            return lambda *args, **named: self._wrap(
                value(*map(_unwrap, args), **{k: _unwrap(v) for k, v in named.items()})
            )
        return value

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                item = self.loop.run_until_complete(anext(items))
            except StopAsyncIteration:
                return
            yield self._wrap(item)

    def __enter__(self) -> Driven:
        self.loop.run_until_complete(self.target.__aenter__())
        return self

    def __exit__(self, *error: Any) -> bool:
        return bool(self.loop.run_until_complete(self.target.__aexit__(*error)))


class DrivenClient(Driven):
    """An async client; leaving it ends its loop, and the thread that the loop resolved names in."""

    def __exit__(self, *error: Any) -> bool:
        try:
            return super().__exit__(*error)
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def _unwrap(value: Any) -> Any:
    if isinstance(value, Driven):
        return value.target
    if isinstance(value, list) and any(isinstance(one, Driven) for one in value):
        return [one.target if isinstance(one, Driven) else one for one in value]
    return value


def connect(kind: str, url: str, **options: Any) -> Any:
    """A client of either kind, called alike."""
    if kind == "sync":
        return rmq.Client(url, **options)
    return DrivenClient(rmq.AsyncClient(url, **options), asyncio.new_event_loop())
