"""Tasks that note what they do in a list of Redis, and the broker of `taskiq worker`."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import redis
from taskiq import Context, TaskiqDepends, TaskiqEvents

from rmq.taskiq import Broker, ResultBackend

LEASE_S = 1.0


def make(url: str, name: str, broker_url: str = "") -> Broker:
    """Make the broker, and register the tasks on it."""
    place = broker_url or url
    broker = Broker(place, queue_name=name, lease=LEASE_S, retry="immediate", retry_for=5)
    broker = broker.with_result_backend(ResultBackend(place, expires=600))
    raw = redis.Redis.from_url(url)

    def write(*words: object) -> None:
        raw.rpush(f"{name}:notes", " ".join(map(str, (*words, time.time()))))

    @broker.on_event(TaskiqEvents.WORKER_STARTUP)
    def ready(state: object) -> None:
        raw.set(f"{name}:ready:{os.getpid()}", 1)

    @broker.task(task_name="note")
    async def note(number: int) -> int:
        write("ran", number)
        return number

    @broker.task(task_name="work")
    async def work(number: int, seconds: float) -> None:
        write("began", number)
        await asyncio.sleep(seconds)
        write("ended", number)

    @broker.task(task_name="plain")
    def plain(number: int, seconds: float) -> None:
        write("began", number)
        time.sleep(seconds)
        write("ended", number)

    @broker.task(task_name="by_hand", ack_type="manual")
    async def by_hand(number: int, context: Context = TaskiqDepends()) -> None:
        write("began", number)
        await context.ack()
        write("acked", number)
        await asyncio.sleep(600)

    return broker


def worker() -> Broker:
    """The broker of a worker process."""
    environ: Any = os.environ
    return make(environ["SHOP_URL"], environ["SHOP_NAME"], environ["SHOP_BROKER"])
