"""The worker of `bench.worker` in a separate process: prints one JSON object for each mark."""

from __future__ import annotations

import json
import sys
import threading
import time

import psutil

import rmq

SLOTS = 4
BATCH = 1000


def _print(**facts: float) -> None:
    print(json.dumps(facts), flush=True)


def _resident() -> float:
    """Return the resident memory of this process, MiB."""
    return float(psutil.Process().memory_info().rss) / 2**20


def idle(url: str, topics: int) -> None:
    """Serve topics without messages until stdin ends."""
    client = rmq.Client(url)
    for number in range(topics):
        client.topic(f"idle-{number}", slots=SLOTS).handler()(lambda body: None)
    before = set(threading.enumerate())
    with rmq.Worker(client) as worker:
        time.sleep(3)  # until its first-time work is done
        threads = len(set(threading.enumerate()) - before)
        _print(threads=threads, resident=_resident(), ok=worker.health().ok)
        sys.stdin.read()


def handle(url: str, messages: int) -> None:
    """Handle messages with an empty handler; print the memory after each tenth of them."""
    client = rmq.Client(url)
    topic = client.topic("no-ops")
    handled, tenth = 0, threading.Semaphore(0)

    @topic.handler(concurrency=2, prefetch=2 * BATCH)
    def count(body: int) -> None:
        nonlocal handled
        handled += 1
        if handled % (messages // 10) == 0:
            tenth.release()

    with rmq.Worker(client):
        for _ in range(10):
            for first in range(0, messages // 10, BATCH):
                topic.send_many([rmq.Outgoing(n) for n in range(first, first + BATCH)])
            tenth.acquire()
            _print(resident=_resident())


if __name__ == "__main__":
    {"idle": idle, "handle": handle}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
