"""A process whose handlers have steps and cursors, and which ends or stops itself between two acts.

`python -m tests.faults.stepper <task>`: the task is JSON, a `Task`. Each event is a line in the
log: a word, the number of the message, the fence of the delivery, the pid, the name of the step (or
`page 3`), and a value.

    begin   the handler begins
    run     the function of a step, or the work on a page, begins; with the value that it will have
    value   `d.step` has returned a value, or `d.save` has saved the cursor behind a page
    lost    the delivery has raised LeaseLost, or another run had the row of the ledger
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import sqlalchemy as sa

import rmq
from rmq.kernel.consumer.steps import DeliverySteps
from rmq.kernel.results import scripts
from rmq.kernel.transport.lua import script_loader
from rmq.ledger import once
from tests.faults.follower import die_before
from tests.property.mutants import Change, loader

LEASE_S = 2
KINDS = ("thread", "async", "consumer")
STEPS, PAGES, SLEEP_S = 3, 3, 0.02
# Before the script that begins a step, before its function, before the script that stores its
# value, after it; before and after the script that saves a cursor. Others are names of scripts.
MOMENTS = ("begin", "function", "store", "stored", "cursor", "saved")
# Broken variants, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "receipt-not-checked": [
        ("step", "if not score or tonumber(score) ~= receipt then", "if false then")
    ],
    "done-not-answered": [
        ("step", "if state == 'b' and (earlier == 'd' or earlier == 'l') then", "if false then")
    ],
    "entry-left": [("ack", "if steps or waited then", "if false then")],
    "stored-first": [],
    "no-once": [],
}
# Errors of a delivery that lost its lease. `once` raises Snooze if another run has its row.
LOST = (rmq.LeaseLost, rmq.Snooze)
_begin, _script = DeliverySteps.begin, scripts.step
_WAYS = {b"b": "begin", b"d": "store", b"c": "cursor"}

effects = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("name", sa.String(32), nullable=False),
)


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        name: name of the topic.
        kind: of KINDS.
        moment: of MOMENTS, or a script before which it ends; empty: it lives.
        nth: the pass of this moment at which it ends, from 0.
        stops: whether it stops itself (SIGSTOP) instead of ending.
        log: file of the events.
        database: URL of a database whose rows the steps write, or empty.
        broken: a name of BROKEN, or empty.
    """

    url: str
    name: str
    kind: str = "thread"
    moment: str = ""
    nth: int = 0
    stops: bool = False
    log: str = os.devnull
    database: str = ""
    broken: str = ""

    def text(self) -> str:
        """The task as the word of a command."""
        return json.dumps(asdict(self))


def end_of(n: int, fence: int) -> tuple[str, int]:
    """Return how a delivery ends, and after how many steps: the same for the same delivery."""
    chance = zlib.crc32(b"%d %d" % (n, fence))
    ends = ("fail", "fail", "fail", "reject", "snooze", *["ack"] * 7)
    return ends[chance % len(ends)], 1 + chance // 100 % STEPS


class Book:
    """The log, and the moments at which the process ends."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._passes = itertools.count()
        self._log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, word: str, d: Any, name: str = "-", value: object = "-") -> None:
        text = f"{word} {d.body} {d.fence} {os.getpid()} {name.replace(' ', '-')} {value}\n"
        os.write(self._log, text.encode())

    def at(self, moment: str) -> None:
        """End or stop the process, if it is time."""
        if moment == self._task.moment and next(self._passes) == self._task.nth:
            os.kill(os.getpid(), signal.SIGSTOP if self._task.stops else signal.SIGKILL)
            time.sleep(0.05)  # until the signal has reached this thread

    @contextmanager
    def losing(self, d: Any) -> Iterator[None]:
        """Note that a delivery is lost."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, LOST):
                self.note("lost", d)
            elif not isinstance(error, ValueError | rmq.Reject):
                self.note("odd", d, repr(error).replace(" ", "_"))
            raise


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    book = Book(task)
    if task.moment and task.moment not in MOMENTS:
        die_before(task.moment, task.nth)
    if BROKEN.get(task.broken):
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    if task.broken == "stored-first":
        DeliverySteps.begin = _store_first  # type: ignore[method-assign]

    def script(keys: Any, id: bytes, receipt: float, item: Any, *others: Any) -> Any:
        book.at(_WAYS.get(item[0], ""))
        return _script(keys, id, receipt, item, *others)

    scripts.step = script  # type: ignore[assignment]
    engine = sa.create_engine(task.database) if task.database else None
    work = Work(book, engine, task.broken != "no-once")
    with rmq.Client(task.url, retry_for=30) as client:
        topic = client.topic(task.name)
        if task.kind == "consumer":
            _pull(topic, work)
        topic.handler(concurrency=4)(work.run_async if task.kind == "async" else work.run)
        return rmq.Worker(client, heartbeat="thread", grace=1).run()


def _store_first(self: DeliverySteps, delivery: Any, name: str) -> Any:
    begun = yield from _begin(self, delivery, name)
    if not begun.lost and not begun.is_done:
        yield from self.end(delivery, name, None)
    return begun


def _pull(topic: rmq.Topic, work: Work) -> NoReturn:
    with topic.consumer() as consumer:
        while True:
            for d in consumer.receive(3, wait=0.2):
                with suppress(rmq.LeaseLost, ValueError), d:
                    work.run(d.body, d)


class Work:
    """The handlers: steps, each of which later attempts read, and pages behind a cursor."""

    def __init__(self, book: Book, engine: sa.Engine | None, is_once: bool) -> None:
        self._book, self._engine, self._is_once = book, engine, is_once

    def run(self, body: int, d: rmq.Delivery) -> None:
        """Handle a message in a thread."""
        note, at = self._book.note, self._book.at
        note("begin", d)
        with self._book.losing(d):
            end, after = end_of(body, d.fence)
            for number in range(STEPS):
                name = f"step {number}"
                note("value", d, name, d.step(name, self._step, name, d))
                at("stored")
                self._end(end, number + 1 == after)
            for page in range(d.saved or 0, PAGES):
                note("run", d, f"page {page}")
                time.sleep(SLEEP_S / 2)
                d.save(page + 1)
                note("value", d, f"page {page}")
                at("saved")

    async def run_async(self, body: int, d: rmq.AsyncDelivery) -> None:
        """Handle a message in a task. The steps run next to each other."""
        note, at = self._book.note, self._book.at
        note("begin", d)

        async def step(name: str) -> None:
            note("value", d, name, await d.step(name, self._step_async, name, d))
            at("stored")

        with self._book.losing(d):
            await asyncio.gather(*(step(f"step {number}") for number in range(STEPS)))
            self._end(end_of(body, d.fence)[0], True)
            for page in range(await d.saved or 0, PAGES):
                note("run", d, f"page {page}")
                await asyncio.sleep(SLEEP_S / 2)
                await d.save(page + 1)
                note("value", d, f"page {page}")
                at("saved")

    def _end(self, end: str, is_time: bool) -> None:
        if is_time and end == "fail":
            raise ValueError("later")
        if is_time and end == "reject":
            raise rmq.Reject("a redrive sends it back")
        if is_time and end == "snooze":
            raise rmq.Snooze(0)

    def _step(self, name: str, d: Any) -> str:
        value = self._begin(name, d)
        time.sleep(SLEEP_S)
        if self._engine is None:
            return value
        if not self._is_once:
            with self._engine.begin() as connection:
                self._write(connection, name, d)
            return value
        with once(self._engine, d, name) as opened:
            if opened is not None:
                self._write(opened, name, d)
        return value

    async def _step_async(self, name: str, d: Any) -> str:
        value = self._begin(name, d)
        await asyncio.sleep(SLEEP_S)
        return value

    def _begin(self, name: str, d: Any) -> str:
        self._book.at("function")
        value = f"{d.fence}:{time.monotonic_ns()}"
        self._book.note("run", d, name, value)
        return value

    def _write(self, connection: sa.Connection, name: str, d: Any) -> None:
        connection.execute(sa.insert(effects).values(n=d.body, name=name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
