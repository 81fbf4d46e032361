"""Judges what processes wrote about messages of groups (`groups_worker`). Nothing here knows RMQ.

A delivery lasts from its begin to its end, or to the death of its process. It may have *lapsed*:
its process stood still, or Redis was away, for half a lease or longer between its take and its end.
Then somebody else may have had its message meanwhile. Of a group in order:

- each message was handled to its end, or is dead; else it is lost
- message n+1 begins after n was handled for the first time, or has failed for the last time
- n does not begin after n+1 has begun, but by a delivery that has lapsed
- two deliveries do not overlap, but where the former one has lapsed

Of a group without order no more than so many overlap, those that have lapsed not counted.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

SLACK_NS = 100_000_000  # between the look of a worker at its lease and the line that it writes


class Delivery(NamedTuple):
    """A delivery: of which message, when, and what became of it."""

    number: int
    begin: int
    end: int
    how: str  # d handled, f failed, k its process died
    lapsed: bool
    process: int = 0

    def __str__(self) -> str:
        """Return it as text for a person, times in seconds."""
        times = f"{self.begin / 1e9:.3f} to {self.end / 1e9:.3f}"
        return f"{self.number}{self.how} by {self.process} from {times}{' lapsed' * self.lapsed}"


@dataclass
class Account:
    """The outcome of a run."""

    handled: int = 0
    again: int = 0  # handled to the end once more
    lapses: int = 0
    after_lapse: int = 0  # overlaps, and late begins, of deliveries that had lapsed
    dead: int = 0
    most: int = 0  # of a group without order at a time
    meanwhile: int = 0  # of other groups, while a poison message was tried: the median
    lost: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether nothing was found."""
        return not (self.lost or self.disorder or self.overlaps or self.stuck or self.left)

    def __str__(self) -> str:
        return (
            f"{self.handled} handled, {self.again} again, {self.dead} dead, {len(self.lost)} lost, "
            f"{len(self.disorder)} order violations, {len(self.overlaps)} overlaps, "
            f"{len(self.stuck)} stuck, {len(self.left)} groups left; {self.lapses} lapses "
            f"({self.after_lapse} times beside another), at most {self.most} of a group without "
            f"order, {self.meanwhile} of others while a poison message was tried (median)"
        )


class Faults:
    """When a process stood still and died, and when Redis was away, ns."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}  # of processes
        self.stops: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by process
        self.deaths: dict[int, int] = {}
        self.outages: list[tuple[int, int]] = []

    def __str__(self) -> str:
        """Return them as text for a person, times in seconds."""
        outages = ", ".join(f"{a / 1e9:.3f} to {b / 1e9:.3f}" for a, b in self.outages)
        stops = ", ".join(
            f"{process} from {a / 1e9:.3f} to {b / 1e9:.3f}"
            for process, each in self.stops.items()
            for a, b in each
        )
        deaths = ", ".join(f"{process} at {at / 1e9:.3f}" for process, at in self.deaths.items())
        return f"Redis away: {outages}; stopped: {stops}; died: {deaths}; {self.kinds}"

    def has_lapsed(self, process: int, begin: int, end: int, half_ns: int) -> bool:
        """Return whether a delivery of a process may have lost its lease."""
        breaks = [*self.stops.get(process, ()), *self.outages]
        return any(b - a >= half_ns and a < end and begin < b for a, b in breaks)


def deliveries(
    books: Mapping[int, Iterable[str]], faults: Faults, half_ns: int
) -> dict[str, list[Delivery]]:
    """Return the deliveries of each group by their begins; `books`: the lines of each process."""
    found: dict[str, list[Delivery]] = defaultdict(list)
    for process, lines in books.items():
        open_: dict[tuple[str, int], tuple[int, int]] = {}
        for line in lines:
            if line.count(" ") < 3 or not line.endswith("\n"):
                continue  # its process died while it wrote
            word, ns, group, number, *more = line.split()
            key = group, int(number)
            if word == "b":
                open_[key] = int(ns), int(more[0]) or int(ns) - SLACK_NS
            elif key in open_:
                begin, taken = open_.pop(key)
                lapsed = faults.has_lapsed(process, taken, int(ns), half_ns)
                found[group].append(Delivery(key[1], begin, int(ns), word, lapsed, process))
        death = faults.deaths.get(process, 1 << 62)
        for (group, n), (begin, taken) in open_.items():
            lapsed = faults.has_lapsed(process, taken, death, half_ns)
            found[group].append(Delivery(n, begin, death, "k", lapsed, process))
    for each in found.values():
        each.sort(key=attrgetter("begin"))
    return found


def judge_order(
    account: Account, group: str, sent: int, found: list[Delivery], dead: Collection[int]
) -> None:
    """Judge a group in order."""
    first: dict[int, int] = {}
    settled: dict[int, int] = {}
    for one in found:
        first.setdefault(one.number, one.begin)
        if one.how == "d":
            settled[one.number] = min(one.end, settled.get(one.number, one.end))
    for n in set(range(sent)).intersection(dead).difference(settled):
        settled[n] = max((each.end for each in found if each.number == n), default=0)
    _count(account, group, sent, found, dead)
    for n in range(sent - 1):
        if n + 1 in first and first[n + 1] < settled.get(n, 1 << 63):
            account.disorder.append(f"{group} {n + 1} begins before {n} is settled")
    newest, running = -1, list[Delivery]()
    for one in found:
        if one.number < newest:
            told = f"{group} after {newest}: " + ", ".join(
                str(each) for each in found if each.number in (one.number, newest)
            )
            _tell(account, account.disorder, one.lapsed, told)
        running = [other for other in running if other.end > one.begin]
        for other in running:
            told = f"{group} {other.number} and {one.number}"
            _tell(account, account.overlaps, other.lapsed or one.lapsed, told)
        running.append(one)
        newest = max(newest, one.number)


def judge_most(
    account: Account, group: str, sent: int, found: list[Delivery], dead: Collection[int], most: int
) -> None:
    """Judge a group without order, of which `most` may be in flight."""
    _count(account, group, sent, found, dead)
    whole = [one for one in found if not one.lapsed]
    ends = sorted(one.end for one in whole)
    for begun, one in enumerate(whole, 1):
        at_once = begun - bisect_right(ends, one.begin)
        account.most = max(account.most, at_once)
        if at_once > most:
            account.overlaps.append(f"{group}: {at_once} at once")


def _count(
    account: Account, group: str, sent: int, found: list[Delivery], dead: Collection[int]
) -> None:
    done = [one.number for one in found if one.how == "d"]
    account.handled += len(set(done))
    account.again += len(done) - len(set(done))
    account.lapses += sum(one.lapsed for one in found)
    account.dead += len(dead)
    account.lost += [f"{group} {n}" for n in sorted(set(range(sent)).difference(done, dead))]


def _tell(account: Account, where: list[str], lapsed: bool, told: str) -> None:
    if lapsed:
        account.after_lapse += 1
    else:
        where.append(told)


def judge_poison(
    account: Account, found: Mapping[str, list[Delivery]], poison: Collection[tuple[str, int]]
) -> None:
    """Count what began in other groups while those messages were tried."""
    begins = sorted(one.begin for each in found.values() for one in each)
    counts = []
    for group, n in poison:
        mine = [one for one in found.get(group, ()) if one.number == n]
        if mine:
            low, high = mine[0].begin, mine[-1].end
            others = bisect_left(begins, high) - bisect_right(begins, low)
            counts.append(others - sum(low < one.begin < high for one in found[group]))
    account.meanwhile = int(statistics.median(counts)) if counts else 0
