"""A process that handles messages of groups: `python -m tests.faults.groups_worker <task>`.

The task is JSON. It is a worker, or a plain consumer, of one topic in order and of one that is not.
Every delivery leaves two lines in a file of its process, which `groups_account` reads:

    b <ns> <group> <number> <ns of its take, 0 if that is not known>
    d, f <ns> <group> <number>        handled to the end; failed
"""

from __future__ import annotations

import json
import os
import random
import time
from contextlib import suppress
from typing import Any

import rmq
from tests.faults.groups_mutants import apply

BATCH = 4
POISON = "poison"


class Book:
    """The file of a process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, word: str, body: list[Any], *more: int) -> None:
        told = " ".join(map(str, (word, time.monotonic_ns(), body[0], body[1], *more)))
        os.write(self._fd, told.encode() + b"\n")


def main(text: str) -> int:
    task: dict[str, Any] = json.loads(text)
    apply(task["broken"])
    book, rng, work_s = Book(task["log"]), random.Random(os.getpid()), task["work_s"]
    client = rmq.Client(task["url"], retry_for=30)

    def work(body: list[Any], taken_ns: int = 0) -> None:
        book.write("b", body, taken_ns)
        time.sleep(work_s * (20 if rng.random() < 0.01 else 1))
        if body[2] == POISON:
            book.write("f", body)
            raise RuntimeError(POISON)
        book.write("d", body)

    if task["kind"] == "worker":
        for name in task["topics"]:
            handle: Any = lambda body: work(body)  # noqa: E731 - of each topic one
            client.topic(name).handler(concurrency=4, lease=task["lease"])(handle)
        return rmq.Worker(client, heartbeat=task["heartbeat"]).run()
    consumers = [client.topic(name).consumer(lease=task["lease"]) for name in task["topics"]]
    while True:
        for consumer in consumers:
            taken_ns = time.monotonic_ns()  # at the latest: an answer may be asked for again
            for d in consumer.receive(BATCH, wait=1):
                settle = d.ack
                try:
                    work(d.body, taken_ns)
                except RuntimeError:
                    settle = d.nack
                with suppress(rmq.LeaseLost):  # it stood still
                    settle()
