"""A shop whose tasks run on RMQ. README.md says how to start it."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject

import rmq.celery  # noqa: F401  registers rmq://

# The name of this module, so that tasks have the same name in the worker and in the program.
app = Celery("app", broker=os.environ.get("SHOP_BROKER", "rmq://localhost:6379/0"))
app.conf.update(task_acks_late=True, task_ignore_result=True)


@app.task
def charge(order: int, cents: int) -> None:
    """Charge an order, and remind the customer later."""
    if order == 13:
        raise Reject("no card", requeue=False)
    time.sleep(0.1)
    print(f"charged order {order}: {cents} cents", flush=True)
    remind.apply_async((order, time.time() + 5), countdown=5, priority=5)


@app.task
def remind(order: int, due: float) -> None:
    """Remind the customer of an order."""
    print(f"reminder for order {order}, {1000 * (time.time() - due):.0f} ms late", flush=True)


@app.task
def report(orders: int) -> None:
    """Print a report, when nothing else is due."""
    print(f"{orders} orders were placed", flush=True)


def main() -> None:
    tasks: list[Any] = [charge.signature((n, 100 * n), priority=9) for n in range(20)]
    report.apply_async((len(tasks),), priority=0)
    for task in tasks:
        task.apply_async()
    print(f"sent {len(tasks)} orders and a report", flush=True)


if __name__ == "__main__":
    main()
