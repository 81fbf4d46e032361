"""The app of `bench.celery_tasks`: a task that does nothing but count itself in a file.

The size of the file is the number of runs, in all processes of a pool, without a call of Redis.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

import rmq.celery  # noqa: F401  registers the URL


def make(broker: str, name: str) -> Celery:
    """Make the app on one queue."""
    app = Celery(name, broker=broker, set_as_current=False)
    app.conf.update(
        task_ignore_result=True, task_default_queue=name, worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )  # fmt: skip
    counter = os.environ.get("BENCH_COUNTER")
    file = os.open(counter, os.O_WRONLY | os.O_APPEND) if counter else None

    def noop(body: str) -> None:
        if file is not None:
            os.write(file, b".")

    app.task(name="noop")(noop)
    return app


if "BENCH_BROKER" in os.environ:
    app: Any = make(os.environ["BENCH_BROKER"], os.environ["BENCH_NAME"])
