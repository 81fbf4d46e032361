"""Brokers of taskiq on a server of the tests, and receivers in the process of a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

try:
    from taskiq.receiver import Receiver

    from rmq.taskiq import Broker, ResultBackend
except ImportError as missing:
    if os.environ.get("CI"):
        raise
    pytest.skip(f"the extra taskiq is not installed: {missing}", allow_module_level=True)

from tests.servers import Server
from tests.taskiq.workers import Workers

Make = Callable[..., Broker]
FAST = {"retry_for": 2, "retry": "immediate"}


@pytest.fixture
async def make_broker(server: Server, name: str) -> AsyncIterator[Make]:
    """Makes brokers of the topic of this test, with a result backend."""
    made: list[Broker] = []

    def make(url: str = server.url, **options: Any) -> Broker:
        broker = Broker(url, queue_name=name, **(FAST | options))
        made.append(broker.with_result_backend(ResultBackend(url, retry_for=2)))
        return broker

    yield make
    for broker in made:
        await broker.shutdown()


@pytest.fixture
def broker(make_broker: Make) -> Broker:
    return make_broker()


@contextlib.asynccontextmanager
async def working(broker: Broker, **options: Any) -> AsyncIterator[None]:
    """Run a receiver of a broker."""
    finish = asyncio.Event()
    given = {"max_async_tasks": 10, "run_startup": True, **options}
    with ThreadPoolExecutor(2) as pool:
        receiver = Receiver(broker, executor=pool, **given)
        running = asyncio.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await running


@pytest.fixture
def workers(server: Server, name: str) -> Iterator[Workers]:
    """Processes of `taskiq worker` on a queue of this test."""
    made = Workers(server.url, name)
    yield made
    made.stop()
