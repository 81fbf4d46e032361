"""A process that handles messages which keep their results, and kills itself between two commands.

`python -m tests.faults.resulting <task>`: the task is JSON, a `Task`. The log has a line of JSON
for each event: a word, the body of the message, and what belongs to the word.

    deliver   the value of the delivery, before it is handled
    acked     the value, and when the ack began and had returned, by the monotonic clock
    sending   the id, before the message is sent
    sent      the id, when the send has returned
    told      outcome and value, as a wait for the result has returned them
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.faults.follower import die_before
from tests.property.mutants import Change, loader

LEASE_S, LATE_S, KEEP_S, EXPIRES_S = 1, 2.2, 3600, 0.2
KINDS = ("consumer", "worker", "async-worker")
SENDER = "sender"  # sends messages, waits for results, cancels and redrives
SENDS = 3  # messages of a send of a sender
# Broken variants, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "acks-store-no-result": [
        ("ack_then", "note_outcomes(valid_ids, now, nil, ended)", "now = now")
    ],
    "redrives-keep-the-result": [
        ("redrive", "redis.call('HEXISTS', slot, 'outcomes') == 1", "false")
    ],
    "result-before-the-receipt": [
        (
            "ack_then",
            "local from = results_from + result_count + 1",
            "note_outcomes({unpack(ARGV, ids_from, ids_from + n - 1)}, now, 's') "
            "local from = results_from + result_count + 1",
        )
    ],
    "rollback-stores-no-result": [
        ("rollback_expired_leases", "note_outcomes(ids, now, 'd')", "now = now")
    ],
    "expiry-stores-no-result": [
        ("prepare", "note_outcomes(ids, now, 'd')", "now = now"),
        ("prepare", "note_outcomes(ids, now, 'e')", "now = now"),
    ],
    "requests-end-without-result": [
        (script, "note_outcomes(ids, now, 'c')", "now = now")
        for script in ("rollback_expired_leases", "nack", "reject", "release")
    ],
    "purges-store-no-result": [("purge", "note_outcomes(ids, now, 'p')", "now = now")],
    "late-progress": [("progress", "not score or tonumber(score) ~= receipt", "false")],
}
ENDS = (
    "ack", "ack", "ack", "progress", "nack", "nack", "reject", "release", "lose", "late", "late",
)  # fmt: skip
Note = Callable[..., None]


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        name: the topic.
        kind: of KINDS, or SENDER.
        command: the script before which it dies; empty: it lives.
        nth: the call of this script before which it dies, from 0.
        log: file of the events.
        broken: a name of BROKEN, or empty.
    """

    url: str
    name: str
    kind: str = "consumer"
    command: str = ""
    nth: int = 0
    log: str = os.devnull
    broken: str = ""

    def text(self) -> str:
        """The task as the word of a command."""
        return json.dumps(asdict(self))


def end_of(body: int, delivery: int) -> str:
    """How a delivery ends: the same for the same message and delivery number."""
    return ENDS[zlib.crc32(b"%d %d" % (body, delivery)) % len(ENDS)]


def begin(note: Note, d: rmq.Delivery | rmq.AsyncDelivery) -> str:
    """Note a delivery, and return its value, which no other delivery has."""
    value = f"{d.body}:{os.urandom(4).hex()}"
    note("deliver", d.body, value)
    return value


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    if BROKEN.get(task.broken):
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    if task.command:
        die_before(task.command, task.nth)
    log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*event: Any) -> None:
        os.write(log, json.dumps(event).encode() + b"\n")

    with rmq.Client(task.url, retry_for=30) as client:
        topic = client.topic(task.name)
        if task.kind == SENDER:
            _send(client, topic, note)
        if task.kind == "consumer":
            _pull(topic, note)
        handle = _async_handler(note) if task.kind == "async-worker" else _handler(note)
        topic.handler(concurrency=4)(handle)
        return rmq.Worker(client, heartbeat="thread", grace=1).run()


def _handler(note: Note) -> Callable[..., str]:
    def handle(body: int, d: rmq.Delivery) -> str:
        value = begin(note, d)
        _fail(d)
        d.progress(0.5, "half")
        return value

    return handle


def _async_handler(note: Note) -> Callable[..., Any]:
    async def handle(body: int, d: rmq.AsyncDelivery) -> str:
        value = begin(note, d)
        _fail(d)
        await d.progress(0.5, "half")
        await asyncio.sleep(0)
        return value

    return handle


def _fail(d: rmq.Delivery | rmq.AsyncDelivery) -> None:
    """End a delivery of a worker now if it does not succeed."""
    how = end_of(d.body, d.fence)
    if how == "nack":
        raise ValueError(d.body)
    if how == "reject":
        raise rmq.Reject("no")
    if how == "release":
        raise rmq.Snooze(0)


Late = deque[tuple[float, rmq.Delivery, str]]


def _pull(topic: rmq.Topic, note: Note) -> NoReturn:
    late: Late = deque()
    with topic.consumer() as consumer:
        while True:
            for d in consumer.receive(5, wait=0.2):
                with suppress(rmq.LeaseLost, rmq.Cancelled):
                    _end(d, note, late)
            while late and late[0][0] < time.monotonic():
                _, d, value = late.popleft()
                with suppress(rmq.LeaseLost, rmq.Cancelled, rmq.AlreadySettled):
                    if d.body % 2:
                        d.progress(0.9, "late")
                    _ack(d, value, note)


def _end(d: rmq.Delivery, note: Note, late: Late) -> None:
    """Handle a delivery by hand."""
    value = begin(note, d)
    how = end_of(d.body, d.fence)
    if how == "nack":
        d.nack(error="no")
    elif how == "reject":
        d.reject("no")
    elif how == "release":
        d.release()
    elif how == "late":
        late.append((time.monotonic() + LATE_S, d, value))
    elif how != "lose":  # else its lease ends
        if how == "progress":
            d.progress(0.5, "half")
        _ack(d, value, note)


def _ack(d: rmq.Delivery, value: str, note: Note) -> None:
    began = time.monotonic()
    d.ack(result=value)
    note("acked", d.body, value, began, time.monotonic())


def _send(client: rmq.Client, topic: rmq.Topic, note: Note) -> None:
    rng, waited = random.Random(), deque[tuple[int, rmq.MessageId]](maxlen=20)
    for first in itertools.count(os.getpid() * 1_000_000, SENDS):
        sent = [(n, topic.new_id()) for n in range(first, first + SENDS)]
        for n, id in sent:
            note("sending", n, str(id))
        topic.send_many([rmq.Outgoing(n, id=id, keep_result=KEEP_S) for n, id in sent])
        for n, id in sent:
            note("sent", n, str(id))
        waited += sent
        topic.cancel(rng.choice(waited)[1], running=rng.random() < 0.7)
        n, id = rng.choice(waited)
        with suppress(rmq.NotFinished):
            outcome = topic.result(id).wait(timeout=0.3)
            note("told", n, outcome.outcome, outcome.value)
        client.admin.redrive(topic.name)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1]))
