"""A worker of Celery in a storm: `python -m tests.celery.storm_worker <task>`.

The task is JSON, a `Task`. Each run of a task of Celery writes two lines into the log, when it
begins and when it ends: a word, the number of the task, the number of the retry, the pids of the
process and of the worker, and the time.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery import Celery

import rmq
import rmq.celery
from rmq.integrations.celery import inbox

assert rmq.celery.Transport.driver_name == "rmq"

RETRY_S = 0.3  # countdown of a task that is tried again
BROKEN = ("acks-early", "renews-never")  # variants that a storm must find


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        stem: first part of the name of the topic.
        log: file of the runs.
        lease: of the deliveries, s.
        pool: options of the worker.
        broken: a name of BROKEN, or empty.
    """

    url: str
    stem: str
    log: str
    lease: float
    pool: tuple[str, ...] = ("-P", "prefork", "-c", "2")
    broken: str = ""

    def text(self) -> str:
        """It as JSON."""
        return json.dumps(asdict(self))


def make(task: Task) -> Celery:
    """Make the app, for workers and for their callers."""
    app = Celery(
        task.stem,
        broker=task.url.replace("redis", "rmq", 1),
        broker_transport_options={
            "lease": task.lease, "topic_prefix": f"{task.stem}.", "retry_for": 30,
            "topic": {"retry": rmq.Exponential(base=0.1, cap=1.0)},
        },
        task_ignore_result=True,
        worker_prefetch_multiplier=4,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )  # fmt: skip
    worker, log = os.getpid(), Path(task.log)

    def note(word: str, number: int, retries: int) -> None:
        line = f"{word} {number} {retries} {os.getpid()} {worker} {time.time()}\n"
        with log.open("ab", buffering=0) as file:
            file.write(line.encode())

    def run(self: Any, number: int, seconds: float) -> None:
        note("began", number, self.request.retries)
        time.sleep(seconds)
        note("ended", number, self.request.retries)

    late = {"acks_late": task.broken != "acks-early", "reject_on_worker_lost": True}
    app.task(name="storm.late", bind=True, shared=False, **late)(run)
    app.task(name="storm.early", bind=True, shared=False)(run)

    @app.task(name="storm.again", bind=True, shared=False, **late)
    def again(self: Any, number: int, seconds: float) -> None:
        run(self, number, seconds)
        if self.request.retries == 0:
            raise self.retry(countdown=RETRY_S)

    return app


def main(text: str) -> None:
    """Run a worker until it is killed."""
    task = Task(**json.loads(text))
    os.setsid()  # its children are killed with it
    if task.broken == "renews-never":
        inbox.RENEW_PARTS = 0.001  # type: ignore[misc]
    name = f"w{os.getpid()}@{task.stem}"
    make(task).worker_main(["worker", "-n", name, "-l", "WARNING", *task.pool])
