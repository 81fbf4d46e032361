"""Judges the lines of processes that handle messages of many keys in order.

Every process appends to one file, one write each, so its lines are the order of what happened:
`begin key n pid`, `done key n pid`. Nothing here knows RMQ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Account:
    """The outcome of a run."""

    violations: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    handled: int = 0
    again: int = 0  # begun once more: after a nack, a snooze or a kill
    excused: int = 0  # of these: the process that had begun it was killed before it settled

    def __str__(self) -> str:
        return (
            f"{self.handled} handled, {self.again} begun again ({self.excused} after a kill), "
            f"{len(self.violations)} order violations, {len(self.lost)} lost"
        )


def account(
    lines: list[str], sent: dict[str, int], killed: Collection[int] = (), back: int | None = None
) -> Account:
    """Judge whether message n+1 of a key was begun only after n was handled, and whether all were.

    A killed process leaves what it has handled and not settled: that comes again, from the first
    of them on and in order. `back`: how many these can be, None if that is not known.
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
            if number > place[key] or (back is not None and number < place[key] - back):
                found.violations.append(f"{line}, it was the turn of {place[key]}")
            place[key] = number
        elif word == "done":
            found.handled += 1
            done.add((key, number))
            place[key] = max(place[key], number + 1)
    wanted = {(key, n) for key, count in sent.items() for n in range(count)}
    found.lost = sorted(map(str, wanted - done))
    return found
