"""The brokers of `bench.taskiq_tasks`: a task that does nothing but count itself in a file."""

from __future__ import annotations

import os
from typing import Any

from taskiq import AsyncBroker
from taskiq_redis import ListQueueBroker

from rmq.taskiq import Broker


def make(side: str, url: str, name: str) -> AsyncBroker:
    """Make the broker of a side on one queue."""
    broker: AsyncBroker
    if side == "rmq":
        broker = Broker(url, queue_name=name)
    else:
        broker = ListQueueBroker(url, queue_name=name)
    counter = os.environ.get("BENCH_COUNTER")
    file = os.open(counter, os.O_WRONLY | os.O_APPEND) if counter else None

    async def noop(body: str) -> None:
        if file is not None:
            os.write(file, b".")

    broker.task(task_name="noop")(noop)
    return broker


def worker() -> Any:
    """Make the broker of a worker process."""
    environ = os.environ
    return make(environ["BENCH_SIDE"], environ["BENCH_URL"], environ["BENCH_NAME"])
