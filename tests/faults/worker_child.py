"""A worker process that something is going to happen to.

Its task is the JSON in the first argument. Each message says what its handler is to do: `do` at the
first attempt, `again` at the others (and at all of a worker that is asked to).

    quick        return            hold s     work for s seconds, looking at d.lost
    exit [n]     end the process   block s    sleep without letting anybody else run
                 (to attempt n)    gil s      sleep without letting go of the GIL
    fail         raise             hang s r   hold, or block s r, for longer than max_runtime r
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import redis

import rmq
from rmq.kernel.core.score import shared_lease
from rmq.kernel.delivery.delivery import inner_of
from tests.faults import worker_mutants

LOOK_S, ASK_S = 0.02, 0.1


class Book:
    """Writes a history, a line at a time."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, pid: int = 0, **more: Any) -> None:
        line = {**moment(), "e": what, "pid": pid or os.getpid(), **more}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def moment() -> dict[str, int]:
    """The time of a line: monotonic in ns, and the wall clock in ms."""
    return {"t": time.monotonic_ns(), "wall": time.time_ns() // 1_000_000}


class Play:
    """The work of a handler as a generator of pauses, which the handler sleeps or awaits."""

    def __init__(self, book: Book, url: str, always_again: bool, in_loop: bool) -> None:
        self.book = book
        self.in_loop = in_loop
        self.always_again = always_again
        self.raw = redis.Redis.from_url(url, socket_timeout=0.2, socket_connect_timeout=0.2)

    def __call__(self, body: dict[str, Any], d: Any) -> Iterator[float]:
        called = moment()  # asking for its lease may take long: Redis is away, it is stopped
        first = d.attempt == 1 and not self.always_again
        act, *more = body["do"] if first else body["again"]
        about = {"n": body["n"], "fence": d.fence}
        until_ms = self._lease_end(d) or called["wall"]
        self.book.write("deliver", attempt=d.attempt, until=until_ms, **called, **about)
        if act == "exit" and d.attempt <= (more or [17])[0]:
            self.book.write("exit")
            os._exit(9)
        if act == "fail":
            self.book.write("fail", **about)
            raise RuntimeError("asked to fail")
        if len(more) > 1:
            blind = act == "block"
            self.book.write(
                "hang", runtime=more[1], blind=blind, loop=blind and self.in_loop, **about
            )
        if act == "block":
            time.sleep(more[0])
        if act == "gil":
            ctypes.PyDLL(None).usleep(int(more[0] * 1_000_000))
        if act in ("hold", "hang"):
            yield from self._hold(more[0], d, until_ms, about)
        self.book.write("done", **about)

    def _hold(self, seconds: float, d: Any, until_ms: int, about: Any) -> Iterator[float]:
        lost, until, asked, now = False, time.monotonic() + seconds, 0.0, 0.0
        while now < until:
            try:
                yield LOOK_S
            except GeneratorExit:  # its task was cancelled, and that is how it is told
                self.book.write("lost", **about)
                self.book.write("fail", **about)
                raise
            now = time.monotonic()  # so that it looks once more after a stop, before it ends
            if d.lost and not lost:
                lost = True
                self.book.write("lost", **about)
            if time.monotonic() >= asked + ASK_S:
                asked = time.monotonic()
                found = self._lease_end(d)
                if found is not None and found > until_ms:
                    until_ms = found
                    self.book.write("until", until=until_ms, **about)

    def _lease_end(self, d: Any) -> int | None:
        """When the lease of a delivery ends, epoch ms; None where it is not known, or is gone."""
        keys, score = inner_of(d).origin.keys, d.receipt.score
        try:
            if self.raw.zscore(keys.prepare, d.id.member) != score:
                return None
            found: Any = self.raw.zscore(keys.leases, shared_lease(score))
        except redis.RedisError:
            return None  # it is away: the test's doing
        return None if found is None else int(found)


def _report_health(worker: rmq.Worker, book: Book) -> None:
    told = None
    while True:
        found = worker.health()
        if found.ok != told:
            told = found.ok
            book.write("health", ok=found.ok, problems=found.problems)
        time.sleep(0.05)


def main(text: str) -> int:
    task: dict[str, Any] = json.loads(text)
    logging.basicConfig(level="WARNING", format="%(asctime)s %(threadName)s %(message)s")
    book = Book(task["log"])
    kind = task["kind"]
    play = Play(book, task["url"], task["again"], kind == "async")
    made = rmq.AsyncClient if kind == "async" else rmq.Client
    client = made(task["url"], **task["client"])
    topic = client.topic(task["topic"])
    options = {**task["handler"], **({"ordered": True} if kind == "ordered" else {})}

    if kind == "async":

        @topic.handler(**options)
        async def handle(body: dict, d: rmq.AsyncDelivery) -> None:
            for pause in play(body, d):
                await asyncio.sleep(pause)

    elif kind == "batch":

        @topic.handler(batch=4, **options)
        def handle(batch: list[rmq.Delivery]) -> None:
            for d in batch:
                for pause in play(d.body, d):
                    time.sleep(pause)

    else:

        @topic.handler(**options)
        def handle(body: dict, d: rmq.Delivery) -> None:
            for pause in play(body, d):
                time.sleep(pause)

    for mutant in filter(None, task["mutant"].split("+")):
        getattr(worker_mutants, mutant)()
    worker = rmq.Worker(client, **task["worker"])
    threading.Thread(target=_report_health, args=(worker, book), daemon=True).start()
    return worker.run()
