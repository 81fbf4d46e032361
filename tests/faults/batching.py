"""A process that fills a batch, handles or purges members, or does a server's work for batches.

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
from typing import Any

import rmq
from rmq.features.batches import members
from rmq.features.batches.service import Batches
from rmq.kernel.batches import ends, registry, scripts
from rmq.kernel.batches.ref import BatchRef, parse_ref
from rmq.kernel.core.keys import SlotKeys, topic_key
from rmq.kernel.follow_ups import flows as follow_up_flows, sweep
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.steps import Flow, RawCommand
from rmq.kernel.transport.lua import script_loader
from tests.faults.follower import die_before
from tests.property.mutants import Change, loader

LEASE_S, LOST_AFTER_MS, SWEEP_S = 2, 20_000, 0.5
# The program of a batch sends 100 members with a dedup key and 6 without one.
PAGES, PAGE, LOOSE, DEPTH = 4, 25, 2, 2
EXPIRES_S, EXPIRING = 0.5, 6  # one of so many members expires
KINDS = ("worker", "consumer", "service")
# Broken variants, which a storm must find.
BROKEN: dict[str, list[Change]] = {
    "counter-instead-of-set": [
        (
            "batch_end",
            "value and not seen[id] and string.find(value, open_state)",
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
    "expiry-without-an-end": [("prepare", "note_outcomes(ids, now, 'e')", "")],
    "purge-without-an-end": [("purge", "note_outcomes(ids, now, 'p')", "")],
    "forgotten-first": [],
    "slot-of-a-batch-computed": [],
    "callback-of-a-paused-topic-dropped": [],
}
ENDS = ("add", "add", "ack", "ack", "ack", "ack", "nack", "nack", "reject", "lose")


@dataclass
class Task:
    """The work of a process.

    Attributes:
        url: Redis.
        stem: with which the names of the topics and batches begin.
        kind: of KINDS, `producer` or `purger`.
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


def create(client: rmq.Client, stem: str) -> None:
    """Create two topics for members, and the topic for callbacks. They are resized later."""
    for n in range(2):
        client.topic(
            f"{stem}-{n}", slots=1 + 2 * n, retry="immediate", lease=LEASE_S, max_retries=2,
            on_expire="dead" if n else "drop",
        ).open()  # fmt: skip
    client.topic(f"{stem}-done", slots=2, lease=LEASE_S, dedup_window=0).open()


def topics(client: rmq.Client, stem: str) -> tuple[list[rmq.Topic], rmq.Topic]:
    """Declare the topics for members, and the topic for callbacks."""
    rows = [client.topic(f"{stem}-{n}", results=rmq.Results(keep=3600)) for n in range(2)]
    return rows, client.topic(f"{stem}-done")


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
            rmq.Outgoing(
                [number, n, 0], dedup_key=f"{number} {n} 0",
                expires=None if n % EXPIRING else EXPIRES_S,
            )
            for n in range(page * PAGE, page * PAGE + PAGE)
        ]
        for page in range(PAGES)
    ]  # fmt: skip


def main(text: str, _: str = "") -> int:
    task = Task(**json.loads(text))
    members.LOST_AFTER_MS = LOST_AFTER_MS
    sweep.SWEEP_S, sweep.FIRST_SWEEP_S = SWEEP_S, 0.1
    if BROKEN.get(task.broken):
        script_loader.load = loader(BROKEN[task.broken])  # type: ignore[assignment]
    if task.broken == "forgotten-first":
        _forget_first()
    if task.broken == "slot-of-a-batch-computed":
        _compute_slots()
    if task.broken == "callback-of-a-paused-topic-dropped":
        _drop_paused()
    if task.command:
        die_before(task.command, task.nth)
    with rmq.Client(task.url, retry_for=30) as client:
        return {
            "producer": _fill, "service": _serve, "worker": _work, "consumer": _pull,
            "purger": _purge,
        }[task.kind](client, task)  # fmt: skip


def _forget_first() -> None:
    """Forget the ends of members before they are reported."""

    def forgetting(context: TopicContext, keys: SlotKeys) -> Flow[set[tuple[str, int]]]:
        found = yield scripts.member_ends(keys, [], scripts.END_MAX)
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


def _compute_slots() -> None:
    """Look for a batch in the slot that its name has now, not in the slot in which it is."""
    find = registry.find

    def computed(prefix: str, name: str) -> Flow[BatchRef | None]:
        ref = yield from find(prefix, name)
        if ref is None:
            return None
        slots = yield RawCommand("topic", "HGET", topic_key(prefix, ref.topic), "slots")
        return ref._replace(slot=slot_of(name, int(slots)))

    registry.find = computed


def _drop_paused() -> None:
    """Remove entries for a target that accepts no messages."""
    attempt = follow_up_flows._attempt

    def dropping(*given: Any) -> Flow[Any]:
        found = yield from attempt(*given)
        return found._replace(stored=len(given[-1]), waits=False) if found.waits else found

    follow_up_flows._attempt = dropping  # type: ignore[assignment]


def _fill(client: rmq.Client, task: Task) -> int:
    rows, _ = topics(client, task.stem)
    # A batch that was cancelled takes no members. The storm looks whether others lack some.
    with suppress(rmq.BatchClosed), opened(client, task.stem, task.batch) as batch:
        for n, page in enumerate(keyed(task.batch)):
            while not _is_sent(batch, rows[n % 2], page):
                time.sleep(0.1)
            with suppress(rmq.BatchClosed):  # by another program
                _is_sent(batch, rows[(n + 1) % 2], [rmq.Outgoing([task.batch, -1, DEPTH])] * LOOSE)
            time.sleep(0.02)
    return 0


def _is_sent(batch: rmq.Batch, topic: rmq.Topic, page: list[rmq.Outgoing]) -> bool:
    """Send members, unless their topic is paused. Then they are members, but not sent."""
    try:
        batch.send_many(topic, page)
    except rmq.TopicPaused:
        return False
    return True


def _purge(client: rmq.Client, task: Task) -> int:
    """Delete all waiting members of a topic, and then all dead ones, for good or not."""
    rows, _ = topics(client, task.stem)
    while True:
        client.admin.purge(rows[task.nth % 2].name, "waiting")
        time.sleep(1)
        client.admin.purge(rows[1 - task.nth % 2].name, "dead", keep=0 if task.nth % 3 else None)


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
                with suppress(rmq.LeaseLost, rmq.Cancelled, rmq.TopicPaused):
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
