"""A worker process of an ordered handler: `python -m tests.faults.ordered_worker <url> ...`.

It writes what `order_account` reads; acks follow the runs, so a kill leaves several messages that
it has handled and not settled.
"""

from __future__ import annotations

import os
import time
from typing import Any

import rmq


def main(url: str, name: str, log: str, lease: str) -> int:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(word: str, body: list[Any]) -> None:
        os.write(out, f"{word} {body[0]} {body[1]} {os.getpid()}\n".encode())

    client = rmq.Client(url, retry_for=30)

    def handle(body: list[Any]) -> None:
        tell("begin", body)
        time.sleep(0.005)  # most kills hit a run
        tell("done", body)

    client.topic(name).handler(ordered=True, concurrency=4, lease=float(lease))(handle)
    return rmq.Worker(client).run()
