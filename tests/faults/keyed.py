"""A process that handles messages of many keys: `python -m tests.faults.keyed <url> ...`.

It writes what `order_account` reads; it settles one message after the other, so a kill leaves one
that it has handled and not settled.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import rmq
from tests.forkserver import Forked

LIFE = 400  # messages that a process handles before it leaves, in the middle of a batch
BATCH = 8
LEASE_S = 6.0  # nobody loses one, but by a kill: who has lost it goes on with its batch


def start(url: str, topic: str, log: Path, ordered: bool, victim: bool) -> Forked:
    """A process that consumes; a victim stops in the middle of a batch, to be killed there."""
    words = [url, topic, str(log), str(int(ordered)), str(int(victim))]
    with open(log.with_suffix(".err"), "ab") as errors:
        return Forked("tests.faults.keyed", *words, stderr=errors)


def main(url: str, name: str, log: str, ordered: str, victim: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(os.getpid())

    def tell(*words: object) -> None:
        os.write(out, f"{' '.join(map(str, words))} {os.getpid()}\n".encode())

    handled = 0
    topic = rmq.Client(url).topic(name)
    with topic.consumer(lease=LEASE_S, ordered=ordered == "1") as consumer:
        while handled < LIFE:
            got = consumer.receive(BATCH, wait=30)
            for place, d in enumerate(got):
                key, n = d.body
                tell("begin", key, n)
                if victim == "1" and handled >= 20 and 0 < place < len(got) - 1:
                    tell("stuck", key, n)
                    time.sleep(60)
                time.sleep(0.0005)
                fate = rng.random()
                if fate < 0.03:
                    consumer.release(got[place + 1 :])
                    d.nack()
                    break
                if fate < 0.05:
                    consumer.release(got[place + 1 :])
                    d.release(delay=0.01)
                    break
                tell("done", key, n)
                d.ack()
                handled += 1
                if handled == LIFE:
                    break
