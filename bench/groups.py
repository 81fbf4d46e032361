"""Groups: their shares, and the waits of other groups while one group has a backlog.

    python -m bench.groups shares
    python -m bench.groups backlog --waiting 1000000

`shares`: consumers take messages, one after the other, of groups that always have some. Each
consumer holds a message for a time. The scripts are real and the time is simulated, so it passes as
fast as Redis answers.

`backlog`: 1000 groups together send 100 messages a second, and the time from each send to its
delivery is measured, in turn without and with a group that has a million waiting messages. As a
control, a topic without groups has the same backlog. If 5 of a group may be in flight, the backlog
occupies all four consumers, and the wait includes the rest of a handler's 5 ms.

Several slots, whose consumers visit one slot after the other, are not measured.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import rmq
from tests.conftest import any_binary
from tests.servers import Server

CONSUMERS, FEW = 16, 4  # with 16 consumers, 10 groups in order would leave some to the tenant
GROUPS, WEIGHT = 100, 4
TENANT, TENANTS = 50, 10  # groups of the large tenant; other tenants, with one group each
FIRST, TAKEN = 400, 4000  # deliveries that are not counted, and that are counted
WITHIN = 0.1  # allowed deviation from the expected share
OTHERS, RATE = 1000, 100  # other groups in a backlog; their messages per second in total
THREADS, WORK_S = 4, 0.005
RUN_S, ROUNDS = 10.0, 3
NO_LONGER = 3.0  # target: longest wait, in multiples of the wait without the backlog
BIG = "big"


class Share(NamedTuple):
    """The expected and the measured share of a group, relative to another group."""

    name: str
    asked: float
    found: float
    others: tuple[float, float]  # least and most of another group, relative to their mean

    @property
    def is_well(self) -> bool:
        """Return whether the measured share is close to the expected share."""
        return abs(self.found / self.asked - 1) <= WITHIN


def taken(
    topic: rmq.Topic, outgoing: Callable[[str], rmq.Outgoing], groups: Sequence[str],
    service_s: Callable[[str], float], consumers: int,
) -> Counter[str]:  # fmt: skip
    """Return how many messages of each group are taken, in simulated time."""
    waiting: Counter[str] = Counter()

    def fill(names: Iterable[str], count: int) -> None:
        topic.send_many([outgoing(name) for name in names for _ in range(count)])
        waiting.update(dict.fromkeys(names, count))

    fill(groups, 10)
    counts: Counter[str] = Counter()
    at_work: list[tuple[float, int, rmq.Delivery]] = []
    now, number = 0.0, itertools.count()
    with topic.consumer(lease=600) as consumer:
        while counts.total() < FIRST + TAKEN:
            free = consumers - len(at_work)
            for delivery in consumer.receive(free) if free else ():
                group = delivery.body
                heapq.heappush(at_work, (now + service_s(group), next(number), delivery))
                counts[group] += 1
                waiting[group] -= 1
                if counts.total() == FIRST:
                    before = counts.copy()
            fill([name for name in groups if waiting[name] < 3], 10)
            now, _, delivery = heapq.heappop(at_work)
            delivery.ack()
    return counts - before


def shares(client: rmq.Client) -> Iterator[Share]:
    """Measure all shares."""
    names = [f"g{n}" for n in range(GROUPS)]
    rng = random.Random(1)
    services: dict[str, Callable[[str], float]] = {
        "one service time": lambda group: 1.0,
        "random service times": lambda group: rng.expovariate(1.0),
        "the other groups take three times as long": lambda group: 1.0 if group == "g0" else 3.0,
    }
    kinds = {"in order": rmq.Groups(), "5 at a time": rmq.Groups(order=False, concurrency=5)}
    number = itertools.count()

    def one(
        name: str, setting: rmq.Groups, asked: float, groups: Sequence[str], mine: Sequence[str],
        service_s: Callable[[str], float], consumers: int = CONSUMERS, **options: object,
    ) -> Share:  # fmt: skip
        topic = client.topic(f"shares-{next(number)}", groups=setting)
        tenant = set(mine)

        def outgoing(group: str) -> rmq.Outgoing:
            more = options if group in tenant else {}
            return rmq.Outgoing(group, group=group, **more)  # type: ignore[arg-type]

        found = taken(topic, outgoing, groups, service_s, consumers)
        others = [found[group] for group in groups if group not in tenant]
        mean = sum(others) / len(others)
        ratio = sum(found[group] for group in mine) / mean
        return Share(name, asked, ratio, (min(others) / mean, max(others) / mean))

    for kind, setting in kinds.items():
        for told, service_s in services.items():
            yield one(
                f"weight 4, {kind}, {told}", setting, WEIGHT, names, names[:1], service_s,
                weight=WEIGHT,
            )  # fmt: skip
        yield one(f"no weight, {kind}", setting, 1, names, names[:1], services["one service time"])
    named = rmq.Groups(share={"g0": WEIGHT})
    yield one("weight 4 by the setting", named, WEIGHT, names, names[:1], lambda group: 1.0)
    many = [f"tenant/{n}" for n in range(TENANT)]
    groups = many + names[:TENANTS]
    for told, setting, consumers in (
        ("in order", kinds["in order"], FEW), ("5 at a time", kinds["5 at a time"], CONSUMERS),
    ):  # fmt: skip
        yield one(
            f"50 of 60 groups with one share key, {told}, {consumers} consumers", setting, 1,
            groups, many, lambda group: 1.0, consumers, share_key="tenant",
        )  # fmt: skip
    yield one("50 of 60 groups, no share key", rmq.Groups(), TENANT, groups, many, lambda g: 1.0)


class Wait(NamedTuple):
    """Waits of the other groups' messages, ms, and numbers of sent and delivered messages."""

    p50: float
    p99: float
    sent: int
    delivered: int


@contextmanager
def at_work(client: rmq.Client, name: str) -> Iterator[list[float]]:
    """Run threads that handle messages; yield the waits of messages with a time, s."""
    waits: list[float] = []
    ended = threading.Event()

    def work() -> None:
        with client.topic(name).consumer(lease=60) as consumer:
            while not ended.is_set():
                for delivery in consumer.receive(wait=0.5):
                    if delivery.body:
                        waits.append(time.monotonic() - delivery.body)
                    time.sleep(WORK_S)
                    delivery.ack()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    yield waits
    ended.set()
    for thread in threads:
        thread.join()


def waited(client: rmq.Client, name: str, grouped: bool) -> Wait:
    """Send 100 messages a second for RUN_S, and return their waits."""
    topic, rng = client.topic(name), random.Random(1)
    with at_work(client, name) as waits:
        time.sleep(0.5)
        begun, sent = time.monotonic(), 0
        while time.monotonic() < begun + RUN_S:
            group = f"g{rng.randrange(OTHERS)}" if grouped else None
            topic.send(time.monotonic(), group=group)
            sent += 1
            time.sleep(max(0.0, begun + sent / RATE - time.monotonic()))
        time.sleep(1)
    ordered = sorted(waits) or [float("nan")]
    count = len(ordered)
    return Wait(ordered[count // 2] * 1000, ordered[count * 99 // 100] * 1000, sent, len(waits))


def backlog(client: rmq.Client, waiting: int, kind: str, setting: rmq.Groups | None) -> list[Wait]:
    """Return the waits without and with a backlog, in turn in two topics."""
    names = f"alone-{kind}", f"beside-{kind}"
    for name in names:
        client.topic(name, groups=setting).open()
    topic = client.topic(names[1])
    group = BIG if setting else None
    for at in range(0, waiting, 1000):
        topic.send_many([rmq.Outgoing(0, group=group) for _ in range(min(1000, waiting - at))])
    rounds = ROUNDS if setting else 1
    found = [[waited(client, name, bool(setting)) for name in names] for _ in range(rounds)]
    return [min((each[at] for each in found), key=lambda wait: wait.p99) for at in (0, 1)]


def main(words: list[str] | None = None) -> int:
    """Measure and print the results; return 1 if a target is missed."""
    made = argparse.ArgumentParser(prog="python -m bench.groups", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("part", choices=["shares", "backlog"])
    made.add_argument("--waiting", type=int, default=100_000)
    made.add_argument("--json", action="store_true")
    asked = made.parse_args(words)
    server = Server(any_binary())
    is_well = True
    try:
        with rmq.Client(server.url) as client:
            if asked.part == "shares":
                for share in shares(client):
                    is_well &= share.is_well
                    low, high = share.others
                    if asked.json:
                        print(json.dumps(share._asdict()))
                    else:
                        told = f"asked {share.asked:g}, found {share.found:.2f}"
                        print(f"{share.name}: {told} (others {low:.2f} .. {high:.2f})", flush=True)
            else:
                for kind, setting in (
                    ("in order", rmq.Groups()),
                    ("5 at a time", rmq.Groups(order=False, concurrency=5)),
                    ("without groups", None),
                ):
                    alone, beside = backlog(client, asked.waiting, kind.replace(" ", "-"), setting)
                    is_held = beside.delivered < beside.sent / 2
                    ratio = beside.p99 / alone.p99
                    if setting is None:
                        is_well &= is_held
                    elif setting.order:
                        is_well &= ratio <= NO_LONGER
                    print(
                        f"{kind}, {asked.waiting} waiting: p99 {alone.p99:.1f} ms without, ", end=""
                    )
                    if is_held:
                        print(f"with it {beside.delivered} of {beside.sent} came in {RUN_S:g} s")
                    else:
                        print(f"{beside.p99:.1f} ms with it: {ratio:.2f}; {alone}, {beside}")
    finally:
        server.stop()
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
