"""A worker whose messages are cancelled, and which may kill itself between two commands.

`python -m tests.faults.cancelled_worker <task>`: the task is JSON, a `Task`. Each event is a line
in the log: a word, the number of the message, the fence of the delivery, and its receipt.

    begin    the handler begins
    effect   it has done its work, and returns
    stop     it was interrupted
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.faults.follower import die_before
from tests.property.mutants import Change, loader

KINDS = ("thread", "async", "deaf")  # deaf: threads that never look whether they are cancelled
STEP_S = 0.02
# Broken scripts, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "rollback-ignores-request": [
        ("rollback_expired_leases", "if fields[14] then", "if false then")
    ],
    "release-ignores-request": [
        ("release", "local cancelled = remove_cancelled_from(valid, now)", "local cancelled = {}")
    ],
    "ack-leaves-request": [("ack", "forget_requests(valid_ids, cancelling)", "")],
}


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        name: name of the topic.
        kind: of KINDS.
        command: the script before which it dies; empty: it lives.
        nth: the call of this script before which it dies, from 0.
        log: file of the events.
        broken: a name of BROKEN, or empty.
    """

    url: str
    name: str
    kind: str = "thread"
    command: str = ""
    nth: int = 0
    log: str = os.devnull
    broken: str = ""

    def text(self) -> str:
        """The task as the word of a command."""
        return json.dumps(asdict(self))


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    if task.command:
        die_before(task.command, task.nth)
    if task.broken:
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(word: str, body: list[Any], d: Any) -> None:
        os.write(log, f"{word} {body[0]} {d.fence} {d.receipt}\n".encode())

    with rmq.Client(task.url, retry_for=30) as client:
        handler = _async_handler(note) if task.kind == "async" else _handler(note, task.kind)
        client.topic(task.name).handler(concurrency=8)(handler)
        return rmq.Worker(client, heartbeat="thread", grace=1).run()


Note = Callable[[str, list[Any], Any], None]


def _handler(note: Note, kind: str) -> Callable[..., None]:
    def work(body: list[Any], d: rmq.Delivery) -> None:
        note("begin", body, d)
        until = time.monotonic() + body[1]
        try:
            while time.monotonic() < until:
                time.sleep(STEP_S)
                if kind == "thread":
                    d.checkpoint()
        except rmq.Cancelled:
            note("stop", body, d)
            raise
        note("effect", body, d)

    return work


def _async_handler(note: Note) -> Callable[..., Any]:
    async def work(body: list[Any], d: rmq.AsyncDelivery) -> None:
        note("begin", body, d)
        try:
            await asyncio.sleep(body[1])
        except asyncio.CancelledError:
            note("stop", body, d)
            raise
        note("effect", body, d)

    return work
