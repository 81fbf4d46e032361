"""A process that handles messages of many keys: `python -m tests.faults.keyed <url> ...`.

Every process appends to one file, one write each, so its lines are the order of what happened:
`begin key n`, `done key n`. The checker reads them, and knows nothing of RMQ.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import rmq
from tests.forkserver import Forked

LIFE = 400  # messages that a process handles before it leaves, in the middle of a batch
BATCH = 8
LEASE_S = 6.0  # nobody loses one, but by a kill: who has lost it goes on with its batch


@dataclass
class Verdict:
    """The outcome of a run."""

    violations: list[str] = field(default_factory=list)
    handled: int = 0
    again: int = 0  # begun once more: after a nack, a snooze or a kill
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.handled} handled, {self.again} begun again, "
            f"{len(self.violations)} order violations, {len(self.lost)} lost"
        )


def judge(lines: list[str], sent: dict[str, int]) -> Verdict:
    """Whether message n+1 of a key was begun only after n was handled, and whether all were.

    To begin again with the last one is allowed: its handler may have been killed before its ack.
    """
    done: dict[str, int] = defaultdict(int)
    begun: Counter[tuple[str, int]] = Counter()
    verdict = Verdict()
    for line in lines:
        word, key, number = line.split()[:3]
        n = int(number)
        if word == "begin":
            verdict.again += begun[key, n] > 0
            begun[key, n] += 1
            if n > done[key] or n < done[key] - 1:
                verdict.violations.append(f"{line}, {done[key]} were done")
        elif word == "done":
            verdict.handled += 1
            done[key] = max(done[key], n + 1)
    finished = {tuple(line.split()[1:3]) for line in lines if line.startswith("done")}
    wanted = {(key, str(n)) for key, count in sent.items() for n in range(count)}
    verdict.lost = sorted(map(str, wanted - finished))
    return verdict


def start(url: str, topic: str, log: Path, ordered: bool, victim: bool) -> Forked:
    """A process that consumes; a victim stops in the middle of a batch, to be killed there."""
    words = [url, topic, str(log), str(int(ordered)), str(int(victim))]
    with open(log.with_suffix(".err"), "ab") as errors:
        return Forked("tests.faults.keyed", *words, stderr=errors)


def main(url: str, name: str, log: str, ordered: str, victim: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(os.getpid())

    def tell(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    handled = 0
    topic = rmq.Client(url).topic(name)
    with topic.consumer(lease=LEASE_S, ordered=ordered == "1") as consumer:
        while handled < LIFE:
            got = consumer.receive(BATCH, wait=30)
            for place, d in enumerate(got):
                key, n = d.body
                tell("begin", key, n)
                if victim == "1" and handled >= 20 and 0 < place < len(got) - 1:
                    tell("stuck", os.getpid(), 0)
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
