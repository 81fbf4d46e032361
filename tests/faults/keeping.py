"""A process that acks messages of a topic with a history in each way, and kills itself.

`python -m tests.faults.keeping <task>`: the task is JSON, a `Task` of `resulting`. A body is the
number of the message and text. The log has a line of JSON for each delivery: `deliver`, the number,
and an empty value.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.faults import history_check
from tests.faults.follower import die_before
from tests.faults.resulting import Task, end_of
from tests.property.mutants import loader

KINDS = ("single", "batch", "then", "once", "query", "worker")
RUN, QUERY_LEASE_S = "0" * 31 + "1", 2
Note = Callable[[int], None]


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    if task.broken:
        script_loader.load = loader(history_check.BROKEN[task.broken])  # type: ignore[assignment]
    if task.command:
        die_before(task.command, task.nth)
    log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(n: int) -> None:
        os.write(log, json.dumps(("deliver", n, "")).encode() + b"\n")

    with rmq.Client(task.url, retry_for=30) as client:
        topic = client.topic(task.name)
        if task.kind == "query":
            _query(topic, note)
        if task.kind != "worker":
            _pull(topic, client.topic(f"{task.name}-next"), task.kind, note)

        @topic.handler(concurrency=4)
        def handle(body: tuple[int, str], d: rmq.Delivery) -> None:
            note(body[0])
            if end_of(body[0], d.fence) in ("nack", "reject"):
                raise ValueError(body[0])

        return rmq.Worker(client, heartbeat="thread", grace=1).run()


def _pull(topic: rmq.Topic, following: rmq.Topic, kind: str, note: Note) -> NoReturn:
    mode = "at_most_once" if kind == "once" else "at_least_once"
    with topic.consumer(mode=mode) as consumer:  # type: ignore[arg-type]
        while True:
            to_ack = []
            for d in consumer.receive(5, wait=0.2):
                note(d.body[0])
                how = "ack" if kind == "once" else end_of(d.body[0], d.fence)
                with suppress(rmq.LeaseLost):
                    if how == "nack":
                        d.nack(error="no")
                    elif how == "reject":
                        d.reject("no")
                    elif how == "release":
                        d.release()
                    elif how == "lose":
                        pass
                    elif kind == "batch":
                        to_ack.append(d)
                    else:
                        if kind == "then":
                            d.then(following.name, d.body[0])
                        d.ack()
            consumer.ack(to_ack)


def _query(topic: rmq.Topic, note: Note) -> NoReturn:
    """Take batches and settle them, as a query that continues where it was killed."""
    query = topic.query(RUN, f"{os.getpid()}:1", lease=QUERY_LEASE_S, owner_lease=1)
    while True:
        try:
            settled = {slot: held.settled for slot, held in enumerate(query.renew({}))}
            while True:
                end = query.take(settled, 8)
                for slot, upto in end.items():
                    for block in query.read(slot, settled.get(slot, 0), upto):
                        for _ in range(len(block)):
                            note(0)
                query.settle(end)
                if end == settled:
                    query.wait(0.2)
                settled = end
        except rmq.QueryOwned:  # by a process that was killed
            time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
