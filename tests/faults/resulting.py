"""A process that handles messages which keep their results, and kills itself between two commands.

`python -m tests.faults.resulting <task>`: the task is JSON, a `Task`. The log has a line for each
delivery before it is handled, and for each ack that has returned.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.faults.follower import die_before
from tests.property.mutants import Change, loader

LEASE_S = 1
KINDS = ("consumer", "worker")
# Broken variants, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "acks-store-no-result": [
        ("ack_then", "note_outcomes(valid_ids, now, nil, results_given)", "now = now")
    ],
    "redrives-keep-the-result": [
        ("redrive", "redis.call('HEXISTS', slot, 'outcomes') == 1", "false")
    ],
}
ENDS = ("ack", "ack", "ack", "progress", "nack", "nack", "reject", "release", "lose")


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        name: the topic.
        kind: of KINDS.
        command: the script before which it dies; empty: it lives.
        nth: the call of this script before which it dies, from 0.
        log: file of the deliveries and acks.
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


def value_of(body: int, delivery: int) -> str:
    """The value of a delivery."""
    return f"{body}:{delivery}"


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    if BROKEN.get(task.broken):
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    if task.command:
        die_before(task.command, task.nth)
    log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(word: str, d: rmq.Delivery) -> None:
        os.write(log, f"{word} {d.body} {d.fence}\n".encode())

    with rmq.Client(task.url, retry_for=30) as client:
        topic = client.topic(task.name)
        if task.kind == "consumer":
            with topic.consumer() as consumer:
                while True:
                    for d in consumer.receive(5, wait=0.2):
                        with suppress(rmq.LeaseLost, rmq.Cancelled):
                            end(d, note)

        @topic.handler(concurrency=4)
        def handle(body: int, d: rmq.Delivery) -> str:
            note("deliver", d)
            how = end_of(body, d.fence)
            if how == "nack":
                raise ValueError(body)
            if how == "reject":
                raise rmq.Reject("no")
            if how == "release":
                raise rmq.Snooze(0)
            d.progress(0.5, "half")
            return value_of(body, d.fence)

        return rmq.Worker(client, heartbeat="thread", grace=1).run()


def end(d: rmq.Delivery, note: object) -> None:
    """Handle a delivery by hand."""
    assert callable(note)
    note("deliver", d)
    how = end_of(d.body, d.fence)
    if how == "nack":
        d.nack(error="no")
    elif how == "reject":
        d.reject("no")
    elif how == "release":
        d.release()
    elif how == "lose":
        time.sleep(0.01)  # its lease ends
    else:
        if how == "progress":
            d.progress(0.5, "half")
        d.ack(result=value_of(d.body, d.fence))
        note("acked", d)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1]))
