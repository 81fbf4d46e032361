"""A process that handles messages of a chain of topics, and kills itself between two commands.

`python -m tests.faults.follower <url> <stem> <how> <command> <nth>`: before the nth command of that
name, counted from 0; -1: it lives until the chain is empty. How the next message is sent: `then`,
or in two steps, `send_first` or `ack_first`.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import Any

import rmq
from rmq.kernel.follow_ups import scripts
from rmq.kernel.transport.flow.steps import pipeline
from rmq.kernel.transport.single.blocking import Transport

TOPICS, MESSAGES, LEASE_S = 5, 120, 1  # enough for every death, in batches of 7
_run = Transport.run


def name_of(step: Any) -> str:
    """The name of the script of a step; '' if it is no script."""
    script = getattr(getattr(step, "commands", [step])[0], "script", None)
    return "" if script is None else str(script.name)


def topics(client: rmq.Client, stem: str) -> list[rmq.Topic]:
    """The topics of the chain; the last has several slots."""
    return [
        client.topic(f"{stem}-{n}", slots=1 + n % 3, retry="immediate", lease=LEASE_S)
        for n in range(TOPICS)
    ]


def main(url: str, stem: str, how: str, command: str, nth: str) -> None:
    seen = itertools.count()

    def dying(flow: Any) -> Any:
        value = None
        while True:
            try:
                step = flow.send(value)
            except StopIteration as end:
                return end.value
            if name_of(step) == command and next(seen) == int(nth):
                os.kill(os.getpid(), signal.SIGKILL)
            value = yield step

    Transport.run = lambda self, flow: _run(self, dying(flow))  # type: ignore[method-assign]
    with rmq.Client(url) as client:
        chain = topics(client, stem)
        for topic in chain:
            topic.open()  # else `pending` would look into no slot
        consumers = [topic.consumer() for topic in chain]
        while not is_done(client, chain):
            for n, consumer in enumerate(consumers):
                batch = consumer.receive(7, wait=0)
                for d in batch:
                    follow(d, chain[n + 1] if n + 1 < TOPICS else None, how)
                if how == "then":
                    consumer.ack(batch)
            time.sleep(0.02)


def follow(d: rmq.Delivery, target: rmq.Topic | None, how: str) -> None:
    if how == "then":
        if target is not None:
            d.then(target, d.body)
        return
    if how == "ack_first":
        d.ack()
    if target is not None:
        target.send(d.body)
    if how == "send_first":
        d.ack()


def is_done(client: rmq.Client, chain: list[rmq.Topic]) -> bool:
    for topic in chain:
        stats = client.admin.stats(topic.name)
        if stats["priority"] or stats["in_flight"] or stats["retries"]:
            return False
    return not pending(client, chain)


def pending(client: rmq.Client, chain: list[rmq.Topic]) -> int:
    """How many follow-ups are not in their target yet."""
    calls = [scripts.pending(keys) for topic in chain for keys in topic._context.slots]
    return sum(reply.entries for reply in client._transport.run(pipeline(calls)))
