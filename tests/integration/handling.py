"""Handlers of both kinds on both clients, told and asked alike: for the tests of workers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import rmq
from tests.integration.driven import Driven

WITHIN_S = 60.0  # a bound for what should take moments: the machine is shared

# Plain handlers on a Client and async ones on an AsyncClient are what most programs have, and what
# `@both_clients` asks for; a test that says `@every_kind` runs on the two others as well.
every_kind = pytest.mark.parametrize(
    ("kind", "handles"),
    [("sync", "threads"), ("async", "tasks"), ("sync", "tasks"), ("async", "threads")],
    indirect=True,
)


def threads_left() -> list[str]:
    """The names of RMQ's threads that run; one of fakeredis and one of the exit are a process'."""
    names = {one.name for one in threading.enumerate()} - {"rmq-fakeredis", "rmq-exit"}
    return [name for name in names if name.startswith("rmq-")]


class Scene:
    """A client of either kind, whose handlers are plain or async: one body serves both."""

    def __init__(self, api: Any, handles: str) -> None:
        self.api = api
        self.is_async = handles == "tasks"
        self.delivery = rmq.AsyncDelivery if self.is_async else rmq.Delivery

    @property
    def client(self) -> Any:
        return self.api.target if isinstance(self.api, Driven) else self.api

    def handle(
        self,
        topic: Any,
        work: Callable[[Any], Any],
        *,
        guards: Sequence[Callable[[Any], Any]] = (),
        **options: Any,
    ) -> None:
        """Register `work(delivery)`, or `work(deliveries)` for a batch. `guards`: innermost first.

        It may be a generator: it yields what an async def would await, a pause in seconds, or an
        event to wait for.
        """

        async def handle_async(d: Any) -> None:
            await _steps_async(work(d))

        def handle(d: Any) -> None:
            _steps(work(d))

        function = handle_async if self.is_async else handle
        function.__annotations__ = {} if options.get("batch") else {"d": self.delivery}
        for guard in guards:
            guard(function)
        self.client.topic(topic.name).handler(**options)(function)

    @contextmanager
    def working(self, **options: Any) -> Iterator[rmq.Worker]:
        """A worker at work; stopped at the end. Its heartbeat is a thread, which starts quicker."""
        options.setdefault("heartbeat", "thread")
        worker = rmq.Worker(self.client, **options)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop(5)


def _steps(found: Any) -> None:
    """Run what a handler yields."""
    if not hasattr(found, "send"):
        return
    try:
        step = next(found)
        while True:
            try:
                if isinstance(step, threading.Event):
                    step.wait(60)
                elif step is not None:
                    time.sleep(step)
            except BaseException as error:
                step = found.throw(error)
            else:
                step = next(found)
    except StopIteration:
        return


async def _steps_async(found: Any) -> None:
    if not hasattr(found, "send"):
        return
    try:
        step = next(found)
        while True:
            try:
                if isinstance(step, threading.Event):
                    while not step.is_set():  # noqa: ASYNC110 - the test sets it in another thread
                        await asyncio.sleep(0.01)
                elif isinstance(step, int | float):
                    await asyncio.sleep(step)
                else:
                    await step
            except BaseException as error:
                step = found.throw(error)
            else:
                step = next(found)
    except StopIteration:
        return
