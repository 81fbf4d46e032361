"""A process whose handlers wait for events, or which signals them, and kills itself between steps.

`python -m tests.faults.events_program <task>`: the task is JSON, a `Task`. The log has a line of
JSON for each event: a word, the number of the message, the delivery number, the attempt, the time,
and what belongs to the word.

    begin     the events of the delivery: key -> [body, timed_out, at_ms]
    wait      the key and the time limit of a wait, before it is raised
    fail      the handler fails
    done      the handler has succeeded, before its ack
    signal    of a signaller: the key, the body, and the answer
"""

from __future__ import annotations

import json
import os
import random
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import rmq
from rmq.kernel.consumer import state
from rmq.kernel.events import flows
from rmq.kernel.events.scripts import Signalled
from rmq.kernel.follow_ups import sweep
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.lua import script_loader
from tests.faults.follower import die_before
from tests.property.mutants import Change, loader

LEASE_S, SWEEP_S, LONG_S = 2, 0.5, 3600.0
GROUPS, SHARING = 5, 10  # groups of the ordered topic; messages that share a key
KINDS = ("worker", "async-worker", "consumer", "service")
SIGNALLER = "signaller"
# Broken variants, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "registration-forgotten": [
        (
            "event_checks",
            "redis.call('ZADD', waits, unpack(times))",
            "redis.call('ZREM', waits, unpack(ids))",
        )
    ],
    "event-before-the-wait-ignored": [("event_register", "if stored then", "if false then")],
    "delivered-twice": [
        (
            "event_deliver",
            "awaited == key and not seen[id] and tonumber(redis.call('ZSCORE', store, id))",
            "wait and not seen[id] and (tonumber(redis.call('ZSCORE', store, id)) or now)",
        )
    ],
    "woken-without-the-event": [
        ("event_deliver", "with_event(entry or '', 'e', key, at, data)", "entry or ''")
    ],
    "last-signal-wins": [("event_signal", "if not stored then", "if true then")],
    "timed-out-early": [
        ("event_deliver", "with_event(entry or '', 'e',", "with_event(entry or '', 't',")
    ],
}


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        stem: with which the names of the topics and the keys begin.
        kind: of KINDS, or SIGNALLER.
        first: number of the first message for which a signaller signals.
        count: number of these messages.
        command: the script before which it dies; empty: it lives.
        nth: the call of this script before which it dies, from 0.
        log: file of the events.
        broken: a name of BROKEN, or empty.
    """

    url: str
    stem: str
    kind: str = "consumer"
    first: int = 0
    count: int = 0
    command: str = ""
    nth: int = 0
    log: str = os.devnull
    broken: str = ""

    def text(self) -> str:
        """The task as the word of a command."""
        return json.dumps(asdict(self))


def names(stem: str) -> list[str]:
    """The names of the topics."""
    return [f"{stem}-{n}" for n in range(3)]


def topics(client: rmq.Client, stem: str) -> list[rmq.Topic]:
    """Declare the topics: a slot, two slots, and ordered groups."""
    return [
        client.topic(
            name, slots=1 + n % 2, retry="immediate", lease=LEASE_S, max_retries=16, dedup_window=0,
            groups=rmq.Groups() if n == 2 else None,
        )
        for n, name in enumerate(names(stem))
    ]  # fmt: skip


def waits_of(stem: str, n: int) -> list[tuple[str, float]]:
    """Return the keys for which a message waits one after another, and their first time limits.

    Some messages wait for a key of their own, some for a key of several messages, some for both.
    Some time limits are short.
    """
    own, shared = f"{stem}-own-{n}", f"{stem}-shared-{n // SHARING}"
    short_s = 0.3 + zlib.crc32(b"%d" % n) % 1200 / 1000
    return [
        [(own, LONG_S)],
        [(shared, LONG_S)],
        [(own, LONG_S), (shared, LONG_S)],
        [(shared, LONG_S)],
        [(own, short_s)],
        [(own, short_s), (shared, LONG_S)],
        [(own, LONG_S)],
    ][n % 7]


def keys_of(stem: str, n: int) -> list[str]:
    """Return the keys for which a message waits."""
    return [key for key, _ in waits_of(stem, n)]


def next_wait(stem: str, n: int, events: dict[str, Any]) -> tuple[str, float] | None:
    """Return the next wait of a message. After a short one has timed out, each 2nd waits again."""
    for key, limit in waits_of(stem, n):
        event = events.get(key)
        if event is None:
            return key, limit
        if event.timed_out and n % 2:
            return key, LONG_S
    return None


class Book:
    """The log of the process."""

    def __init__(self, task: Task) -> None:
        self._stem = task.stem
        self._log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *event: Any) -> None:
        os.write(self._log, json.dumps(event).encode() + b"\n")

    def handle(self, n: int, d: Any) -> None:
        """Handle a delivery: wait, fail, or succeed."""
        events = {
            key: [event.body, event.timed_out, round(event.at.timestamp() * 1000)]
            for key, event in d.events.items()
        }
        self.note("begin", n, d.fence, d.attempt, time.time(), events)
        chance = zlib.crc32(b"%d %d" % (n, d.fence)) % 100
        time.sleep((0, 0, 0, 0.05)[chance % 4])
        if chance < 6:
            self.note("fail", n, d.fence, d.attempt, time.time())
            raise ValueError(n)
        wait = next_wait(self._stem, n, d.events)
        if wait is not None:
            self.note("wait", n, d.fence, d.attempt, time.time(), *wait)
            raise rmq.WaitFor(*wait)
        self.note("done", n, d.fence, d.attempt, time.time())


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    # Only the time between two sweeps is shorter here. The times in the scripts are those of users.
    vars(state).update(SWEEP_S=SWEEP_S, FIRST_SWEEP_S=0.1)
    if BROKEN.get(task.broken):
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    if task.broken == "delivered-twice":
        _deliver_twice()
    if task.command:
        die_before(task.command, task.nth)
    book = Book(task)
    with rmq.Client(task.url, retry_for=30) as client:
        if task.kind == SIGNALLER:
            return _signal(client, task, book.note)
        declared = [client.topic(name) for name in names(task.stem)]  # slots as they are now
        if task.kind == "service":
            _serve(client, declared)
        if task.kind == "consumer":
            _pull(declared, book)
        for topic in declared:
            topic.handler(concurrency=4)(_handler(book, task.kind == "async-worker"))
        return rmq.Worker(client, heartbeat="thread", grace=1).run()


def _deliver_twice() -> None:
    """Deliver each event a second time, as another process may do at the same time."""
    once = flows._deliver

    def twice(prefix: str, key: bytes, event: Signalled) -> Flow[tuple[list[bytes], int]]:
        found = yield from once(prefix, key, event)
        time.sleep(0.05)
        yield from once(prefix, key, event)
        return found

    flows._deliver = twice


def _handler(book: Book, is_async: bool) -> Callable[..., Any]:
    def plain(body: int, d: rmq.Delivery) -> None:
        book.handle(body, d)

    async def awaited(body: int, d: rmq.AsyncDelivery) -> None:
        book.handle(body, d)

    return awaited if is_async else plain


def _pull(declared: list[rmq.Topic], book: Book) -> NoReturn:
    consumers = [topic.consumer() for topic in declared]
    while True:
        for consumer in consumers:
            for d in consumer.receive(5, wait=0):
                with suppress(rmq.LeaseLost, rmq.Cancelled, ValueError), d:
                    book.handle(d.body, d)
        time.sleep(0.02)


def _serve(client: rmq.Client, declared: list[rmq.Topic]) -> NoReturn:
    """Do the work of a server for events."""
    for topic in declared:
        topic.open()
    while True:
        with suppress(rmq.Unavailable, rmq.OutcomeUnknown):
            for topic in declared:
                topic.open()
                client._transport.run(sweep.try_sweep(topic._context, 0))
            client._transport.run(flows.deliver_pending(client._prefix))
        time.sleep(0.2)


def _signal(client: rmq.Client, task: Task, note: Callable[..., None]) -> int:
    """Signal the keys of some messages, some of them twice, before or after the messages wait."""
    rng = random.Random(os.getpid())
    numbers = list(range(task.first, task.first + task.count))
    rng.shuffle(numbers)
    for n in numbers:
        for key, limit in waits_of(task.stem, n):
            if limit < LONG_S and n % 3:
                continue  # its time limit ends before the storm signals this key
            for again in range(1 + (rng.random() < 0.15)):
                body = f"{os.getpid()}-{n}-{again}"
                began = time.time()
                try:
                    answer = client.signal(key, body).state
                except (rmq.Unavailable, rmq.OutcomeUnknown):
                    answer = client.signal(key, f"{body}-repeated").state
                note("signal", n, 0, 0, time.time(), key, body, answer, began)
            time.sleep(rng.choice((0, 0, 0.02, 0.05)))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1]))
