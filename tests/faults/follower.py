"""A process that handles messages of a chain of topics, and kills itself between two commands.

`python -m tests.faults.follower <task>`: the task is JSON, a `Task`. Each handled message is a line
in the log: the position of its topic, its body, its id, and the id of the dead letter that it is a
copy of, or -.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import rmq
from rmq.kernel.follow_ups import flows, scripts
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.single.blocking import Transport
from tests.property.mutants import Change, loader

TOPICS, LEASE_S = 5, 2
KINDS = ("consumer", "worker", "async-worker")
DYING = ("reject", "dead_to")  # how messages of all topics but the last become dead letters
COPY = "if died.dead_to then\ncopy_dead(died, now)"
# Broken variants, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "number-not-compared": [("pending_send", "if number <= highest then", "if false then")],
    "removed-first": [],
    "lease-copies-nothing": [("rollback_expired_leases", COPY, "if died.dead_to then\n")],
    "nack-copies-twice": [("nack", COPY, f"{COPY} copy_dead(died, now)")],
}
WAYS = ("reject", "reject", "fail", "fail", "lose")  # in which messages die, with `dead_to`
_run, _attempt = Transport.run, flows._attempt


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        stem: with which the names of the topics begin.
        kind: of KINDS.
        how: how the next message is sent: `then`; by a dead letter, `reject` (its follow-up) or
            `dead_to` (its copy); or in two steps, `send_first` or `ack_first`.
        command: the script before which it dies; empty: it lives.
        nth: the call of this script before which it dies, from 0.
        log: file of the handled messages.
        broken: a name of BROKEN, or empty.
    """

    url: str
    stem: str
    kind: str = "consumer"
    how: str = "then"
    command: str = ""
    nth: int = 0
    log: str = os.devnull
    broken: str = ""

    def text(self) -> str:
        """The task as the word of a command."""
        return json.dumps(asdict(self))


def name_of(step: Any) -> str:
    """The name of the script of a step; '' if it is no script."""
    script = getattr(getattr(step, "commands", [step])[0], "script", None)
    return "" if script is None else str(script.name)


def names(stem: str) -> list[str]:
    """The names of the topics of the chain."""
    return [f"{stem}-{n}" for n in range(TOPICS)]


def topics(client: rmq.Client, stem: str, how: str) -> list[rmq.Topic]:
    """Declare the topics of the chain, with 1, 2, 3, 1 and 2 slots.

    They do not remember settled ids: only the numbers of the entries tell what was stored. With
    `dead_to`, a message of all topics but the last has no retries: each failure makes it a dead
    letter.
    """
    all_names = names(stem)
    return [
        client.topic(
            name, slots=1 + n % 3, retry="immediate", lease=LEASE_S, dedup_window=0,
            max_retries=0 if how == "dead_to" and n + 1 < TOPICS else 16,
            dead_to=all_names[n + 1] if how == "dead_to" and n + 1 < TOPICS else None,
        )
        for n, name in enumerate(all_names)
    ]  # fmt: skip


def way_of(n: int, body: int) -> str:
    """The way of WAYS in which a message of a topic dies."""
    return WAYS[zlib.crc32(b"%d %d" % (n, body)) % len(WAYS)]


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    if task.command:
        die_before(task.command, task.nth)
    if BROKEN.get(task.broken):
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    if task.broken == "removed-first":
        flows._attempt = _remove_first
    log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def follow(n: int, d: rmq.Delivery, target: rmq.Topic | None) -> None:
        os.write(log, f"{n} {d.body} {d.id} {d.marks.get('rmq-dead-id', '-')}\n".encode())
        if target is None:
            return
        if task.how == "then":
            d.then(target, d.body)
        elif task.how in DYING:
            if task.how == "dead_to" and way_of(n, d.body) == "fail":
                raise ValueError("the next topic gets it")
            then = [(target, rmq.Outgoing(d.body))] if task.how == "reject" else []
            raise rmq.Reject("the next topic gets it", then=then)

    with rmq.Client(task.url, retry_for=30) as client:
        chain = [client.topic(name) for name in names(task.stem)]  # slots as they are now
        if task.kind == "consumer":
            _pull(chain, task, follow)
        for n, topic in enumerate(chain):
            target = chain[n + 1] if n + 1 < TOPICS else None
            _handle(n, topic, target, follow, task)
        return rmq.Worker(client, heartbeat="thread", grace=1).run()


def die_before(command: str, nth: int) -> None:
    seen = itertools.count()

    def dying(flow: Any) -> Any:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = flow.send(value) if error is None else flow.throw(error)
            except StopIteration as end:
                return end.value
            if name_of(step) == command and next(seen) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            value = error = None
            try:
                value = yield step
            except BaseException as caught:
                error = caught

    def run(self: Transport, flow: Any, **options: Any) -> Any:
        return _run(self, dying(flow), **options)

    Transport.run = run  # type: ignore[method-assign]


def _remove_first(context: Any, keys: Any, target: str, entries: Any) -> Any:
    yield flows._settle(keys, target, scripts.number_of(entries[-1]), b"")
    return (yield from _attempt(context, keys, target, entries))


def _handle(
    n: int, topic: rmq.Topic, target: rmq.Topic | None, follow: Callable[..., None], task: Task
) -> None:
    def plain(body: int, d: rmq.Delivery) -> None:
        follow(n, d, target)

    async def awaited(body: int, d: rmq.AsyncDelivery) -> None:
        follow(n, d, target if task.how in DYING else None)  # type: ignore[arg-type]
        if target is not None:
            await d.then(target.name, body)

    topic.handler(concurrency=4)(awaited if task.kind == "async-worker" else plain)


def _pull(chain: list[rmq.Topic], task: Task, follow: Callable[..., None]) -> NoReturn:
    consumers = [topic.consumer() for topic in chain]
    while True:
        for n, consumer in enumerate(consumers):
            target = chain[n + 1] if n + 1 < TOPICS else None
            batch = consumer.receive(7, wait=0)
            with suppress(rmq.LeaseLost):
                for d in batch:
                    if task.how == "then":
                        follow(n, d, target)
                        continue
                    if task.how in DYING:
                        is_lost = target is not None and way_of(n, d.body) == "lose"
                        if task.how == "dead_to" and is_lost:
                            continue  # its lease ends
                        with suppress(ValueError), d:
                            follow(n, d, target)
                        continue
                    if task.how == "ack_first":
                        d.ack()
                    if target is not None:
                        target.send(d.body)
                    if task.how == "send_first":
                        d.ack()
                if task.how == "then":
                    consumer.ack(batch)
        time.sleep(0.02)


def is_done(client: rmq.Client, stem: str) -> bool:
    """Whether the chain is empty. A topic comes after those that send to it."""
    for name in names(stem):
        stats = client.admin.stats(name)
        if stats["records"] > stats["dead"] or stats["pending"]:
            return False
    return True
