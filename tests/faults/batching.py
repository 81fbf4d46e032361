"""A process that fills a batch, handles its members, or does the work of a server for batches.

`python -m tests.faults.batching <task>`: the task is JSON, a `Task`. It kills itself before one of
its scripts. The log has a line for each delivery of a member.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass

import rmq
from rmq.features.batches import members
from rmq.features.batches.service import Batches
from rmq.kernel.batches import ends, scripts
from rmq.kernel.batches.ref import parse_ref
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.follow_ups import sweep
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.lua import script_loader
from tests.faults.follower import die_before
from tests.property.mutants import Change, loader

LEASE_S, LOST_AFTER_MS, SWEEP_S = 2, 8000, 0.5
PAGES, PAGE, LOOSE, DEPTH = 3, 12, 2, 2
KINDS = ("worker", "consumer", "service")
# Broken variants, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "counter-instead-of-set": [
        (
            "batch_end",
            "value and not seen[id] and string.find(value, '^[.!]')",
            "value and not seen[id]",
        )
    ],
    "open-members-ignored": [
        ("batch_end", "state ~= 'c' or tonumber(open) > 0", "state ~= 'c'"),
        ("batch_close", "state ~= 'c' or tonumber(open) > 0", "state ~= 'c'"),
    ],
    "callback-without-the-state": [
        ("batch_end", "'#state', 'd', '#ended', now", "'#ended', now"),
        ("batch_close", "'#state', 'd', '#ended', now", "'#ended', now"),
    ],
    "callback-at-each-report": [
        ("batch_end", "#changed == 0 and #removed == 0", "false"),
        ("batch_end", "state ~= 'c' or tonumber(open) > 0", "tonumber(open) > 0"),
    ],
    "forgotten-first": [],
}
ENDS = ("add", "add", "ack", "ack", "ack", "ack", "nack", "nack", "reject", "lose")


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        stem: with which the names of the topics and batches begin.
        kind: of KINDS, or `producer`.
        batch: number of the batch that a producer fills.
        command: the script before which it dies; empty: it lives.
        nth: the call of this script before which it dies, from 0.
        log: file of the deliveries.
        broken: a name of BROKEN, or empty.
    """

    url: str
    stem: str
    kind: str
    batch: int = 0
    command: str = ""
    nth: int = 0
    log: str = os.devnull
    broken: str = ""

    def text(self) -> str:
        """The task as the word of a command."""
        return json.dumps(asdict(self))


def topics(client: rmq.Client, stem: str) -> tuple[list[rmq.Topic], rmq.Topic]:
    """Declare two topics for members, and the topic for callbacks."""
    rows = [
        client.topic(
            f"{stem}-{n}", slots=1 + 2 * n, retry="immediate", lease=LEASE_S, max_retries=2,
            results=rmq.Results(keep=3600),
        )
        for n in range(2)
    ]  # fmt: skip
    return rows, client.topic(f"{stem}-done", slots=2, lease=LEASE_S, dedup_window=0)


def opened(client: rmq.Client, stem: str, number: int) -> rmq.Batch:
    """The batch with a number. Every second one waits for its dead letters."""
    _, done = topics(client, stem)
    return client.batch(
        f"{stem}-b{number}", then=(done, rmq.Outgoing(number)),
        dead="wait" if number % 2 else "count",
    )  # fmt: skip


def keyed(number: int) -> list[list[rmq.Outgoing]]:
    """The members of a batch that have a dedup key, in pages."""
    return [
        [
            rmq.Outgoing([number, n, 0], dedup_key=f"{number} {n} 0")
            for n in range(page * PAGE, page * PAGE + PAGE)
        ]
        for page in range(PAGES)
    ]


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    members.LOST_AFTER_MS, sweep.SWEEP_S, sweep.FIRST_SWEEP_S = LOST_AFTER_MS, SWEEP_S, 0.1
    if BROKEN.get(task.broken):
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    if task.broken == "forgotten-first":
        _forget_first()
    if task.command:
        die_before(task.command, task.nth)
    with rmq.Client(task.url, retry_for=30) as client:
        return {"producer": _fill, "service": _serve, "worker": _work, "consumer": _pull}[
            task.kind
        ](client, task)


def _forget_first() -> None:
    """Forget the ends of members before they are reported."""

    def forgetting(context: TopicContext, keys: SlotKeys) -> Flow[set[tuple[str, int]]]:
        found = yield scripts.member_ends(keys, [], scripts.END_MOST)
        yield scripts.member_ends(keys, found, 0)
        called = set[tuple[str, int]]()
        for _, value in found:
            ref = parse_ref(value[1:].decode())
            if ref is not None:
                end = (ref.id, value[:1].decode())
                reply = yield scripts.batch_end(ref.keys(context.prefix), ref.name, [end])
                if reply[0] == "d":
                    called.add((ref.topic, ref.slot))
        return called

    ends.report = forgetting


def _fill(client: rmq.Client, task: Task) -> int:
    rows, _ = topics(client, task.stem)
    # A batch that was cancelled takes no members. The storm looks whether others lack some.
    with suppress(rmq.BatchClosed), opened(client, task.stem, task.batch) as batch:
        for n, page in enumerate(keyed(task.batch)):
            batch.send_many(rows[n % 2], page)
            with suppress(rmq.BatchClosed):  # by another program
                batch.send_many(rows[(n + 1) % 2], [rmq.Outgoing([task.batch, -1, DEPTH])] * LOOSE)
            time.sleep(0.02)
    return 0


def _serve(client: rmq.Client, task: Task) -> int:
    rows, done = topics(client, task.stem)
    service = Batches(client._transport, client._prefix)
    while True:
        for topic in (*rows, done):
            topic.open()
            with suppress(rmq.Unavailable, rmq.OutcomeUnknown):
                client._transport.run(sweep.try_sweep(topic._context, 0))
        with suppress(rmq.Unavailable, rmq.OutcomeUnknown):
            service.run_once()
        time.sleep(0.2)


class Work:
    """What handlers do with a member."""

    def __init__(self, client: rmq.Client, task: Task) -> None:
        self._client = client
        self._log = os.open(task.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.rows, _ = topics(client, task.stem)

    def end(self, d: rmq.Delivery) -> str:
        """Return how a delivery ends, which is the same for the same delivery."""
        batch, n, depth = d.body
        os.write(self._log, f"{batch} {d.id}\n".encode())
        how = ENDS[zlib.crc32(f"{batch} {n} {depth} {d.fence}".encode()) % len(ENDS)]
        if how != "add" or depth >= DEPTH or n < 0:
            return "ack" if how == "add" else how
        outs = [
            rmq.Outgoing([batch, n, depth + 1], dedup_key=f"{batch} {n} {depth + 1} {each}")
            for each in range(2)
        ]
        # A delivery whose lease has ended is no open member any more.
        with suppress(rmq.BatchClosed):
            self._client.batch(d).send_many(self.rows[depth % 2], outs)
        return "ack"


def _work(client: rmq.Client, task: Task) -> int:
    work = Work(client, task)

    def handle(body: list[int], d: rmq.Delivery) -> None:
        how = work.end(d)
        if how in ("nack", "lose"):
            raise ValueError(body)
        if how == "reject":
            raise rmq.Reject("no")

    for topic in work.rows:
        topic.handler(concurrency=4)(handle)
    return rmq.Worker(client, heartbeat="thread", grace=1).run()


def _pull(client: rmq.Client, task: Task) -> int:
    work = Work(client, task)
    consumers = [topic.consumer() for topic in work.rows]
    while True:
        for consumer in consumers:
            for d in consumer.receive(7, wait=0):
                with suppress(rmq.LeaseLost, rmq.Cancelled):
                    how = work.end(d)
                    if how == "ack":
                        d.ack()
                    elif how == "nack":
                        d.nack(error="no")
                    elif how == "reject":
                        d.reject("no")
        time.sleep(0.02)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1]))
