"""Tasks of the project. They write what they did into `DONE`."""

from __future__ import annotations

import threading
import time
from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

DONE: list[Any] = []
GO = threading.Event()


class NoSuchOrder(Exception):
    pass


@task
def add(a: int, b: int = 1) -> int:
    DONE.append((a, b))
    return a + b


@task
async def add_async(a: int, b: int = 1) -> int:
    return a + b


@task
def fail(text: str) -> None:
    raise NoSuchOrder(text)


@task
def fail_builtin() -> None:
    {}["missing"]


@task
def exit_process() -> None:
    raise SystemExit("no")


@task
def return_set() -> set[int]:
    return {1}


@task(takes_context=True)
def attempts(context: Any, until: int) -> int:
    result = context.task_result
    DONE.append((context.attempt, len(result.errors), context.delivery.attempt))
    if context.attempt < until:
        raise NoSuchOrder(f"attempt {context.attempt}")
    return context.attempt


@task
def wait() -> None:
    GO.wait(30)


@task
def pause(seconds: float) -> None:
    time.sleep(seconds)


@task
def write_order(number: int) -> None:
    from tests.integrations.shop.models import Order

    Order.objects.create(number=number)
