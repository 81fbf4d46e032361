"""A worker process of an ordered handler: `python -m tests.faults.ordered_worker <url> ...`.

Every process appends to one file, one write each: `begin key n pid`, `done key n pid`.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import rmq


@dataclass
class Account:
    """The outcome of a run, from what the workers wrote."""

    violations: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    handled: int = 0
    again: int = 0  # begun once more
    excused: int = 0  # of these: the process that had begun it was killed before it settled

    def __str__(self) -> str:
        return (
            f"{self.handled} handled, {self.again} begun again ({self.excused} after a kill), "
            f"{len(self.violations)} order violations, {len(self.lost)} lost"
        )


def account(lines: list[str], sent: dict[str, int], killed: Collection[int]) -> Account:
    """Judge the order of each key.

    Acks follow the runs, so a worker that is killed may leave several messages that it has handled
    and not settled. They come again, from the first of them on and in order.
    """
    found, place, last = Account(), defaultdict[str, int](int), dict[tuple[str, int], int]()
    done: set[tuple[str, int]] = set()
    for line in lines:
        word, key, n, pid = line.split()
        number = int(n)
        if word == "begin":
            if (key, number) in last:
                found.again += 1
                found.excused += last[key, number] in killed
            last[key, number] = int(pid)
            if number > place[key]:
                found.violations.append(f"{line}, it was the turn of {place[key]}")
            place[key] = number
        else:
            found.handled += 1
            done.add((key, number))
            place[key] = number + 1
    wanted = {(key, n) for key, count in sent.items() for n in range(count)}
    found.lost = sorted(map(str, wanted - done))
    return found


def main(url: str, name: str, log: str, lease: str) -> int:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(word: str, body: list[Any]) -> None:
        os.write(out, f"{word} {body[0]} {body[1]} {os.getpid()}\n".encode())

    client = rmq.Client(url, retry_for=30)

    def handle(body: list[Any]) -> None:
        tell("begin", body)
        time.sleep(0.005)  # most kills hit a run
        tell("done", body)

    client.topic(name).handler(ordered=True, concurrency=4, lease=float(lease))(handle)
    return rmq.Worker(client).run()
