"""A storm of groups: everything dies while thousands of groups are handled, and is resized.

    python -m tests.faults.groups_storm --groups 10000 --each 100 --workers 16 --kills 8 --seed 1

Producers send the messages of each group in order, to a topic in order and to one of which three of
a group may be in flight. Some messages are poison: they fail until they are dead. Meanwhile workers
and plain consumers are killed and stopped beyond their leases, Redis is killed and started again
(with `--cluster` also replaced by its replica, without losing a write), and both topics are resized
4 -> 16 -> 8 by processes that are killed, too. `groups_account` judges what they wrote.
In every other group each message has a lower priority than the one before it, so the order is the
same and the group holds messages of many priorities.

The rules of `storm` hold: a part of the messages is kept back until all faults have come.
`--broken` plays a control (`groups_mutants`), which has to be found: the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

import rmq
from tests.clusters import CALM_TIMEOUT_MS, Cluster, is_master, until
from tests.conftest import any_binary
from tests.faults.groups_account import (
    Account,
    Faults,
    deliveries,
    judge_most,
    judge_order,
    judge_poison,
)
from tests.faults.groups_mutants import BROKEN, apply
from tests.faults.groups_worker import POISON
from tests.faults.storm import LOOK_S, Played, Watch, insist
from tests.faults.test_resize import resize
from tests.forkserver import Forked
from tests.servers import Server

BATCH = 250  # messages of a send
KEPT_BACK = 0.1
AHEAD = 0.4  # of the messages are sent at first; then as many as are handled
LOOSE = 10  # each of so many groups is of the topic without order
AT_ONCE = 3  # of such a group
POISONED = 50  # one of so many groups has a poison message
RETRIES = 3
STUCK_S = 3.0  # for which nothing moves, and nothing could
EARLY_S = 2.0  # for which slots are kept open, in a control
END_S = 60.0
SLOWEST_S = 0.05  # of a message, all faults included


class Store:
    """Redis, and what is done to it."""

    def __init__(
        self, url: str, nodes: Callable[[], list[Server]], cluster: Cluster | None
    ) -> None:
        self.url, self.nodes, self._cluster = url, nodes, cluster

    def kill(self, rng: random.Random) -> int:
        """Kill one that is a master, and start it again; it has kept what it answered.

        Returns when it answered again, ns.
        """
        node = rng.choice(self.nodes())
        node.kill()
        time.sleep(rng.uniform(0, 0.5))
        node.start()
        back = time.monotonic_ns()
        if self._cluster:
            # It has the timeout of its options again: a majority of such would replace a master.
            with node.raw() as raw:
                raw.config_set("cluster-node-timeout", CALM_TIMEOUT_MS)
            self._cluster.wait_ok()
        return back

    def fail_over(self, rng: random.Random) -> int:
        """Let a replica take over; return when it had, ns; 0: there is none."""
        if not self._cluster:
            return 0
        ports = {node.port for node in self._cluster.masters()}
        replica = rng.choice([one for one in self._cluster.running() if one.port not in ports])
        replica.call("CLUSTER FAILOVER")
        until(lambda: is_master(replica))
        back = time.monotonic_ns()
        self._cluster.wait_ok()
        return back


@contextmanager
def opened(cluster: bool) -> Iterator[Store]:
    """Redis, which keeps what it has answered."""
    if cluster:
        aof = ("--appendonly", "yes", "--appendfsync", "always")
        nodes = Cluster(any_binary(), *aof, is_calm=True)
        try:
            yield Store(nodes.url, lambda: list(nodes.masters()), nodes)
        finally:
            nodes.stop()
    else:
        server = Server(any_binary(), "--auto-aof-rewrite-percentage", "0", aof=True)
        try:
            yield Store(server.url, lambda: [server], None)
        finally:
            server.stop()


class Producer(threading.Thread):
    """Sends the messages of its groups in order; `may`: how many in all, so far."""

    def __init__(
        self, url: str, name: str, groups: list[str], each: int, rng: random.Random,
        poison: set[tuple[str, int]],
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self.may = self.sent = 0
        self.total = len(groups) * each
        self.error: BaseException | None = None
        self._url, self._name, self._groups, self._each = url, name, groups, each
        self._rng, self._poison = rng, poison

    def _all(self) -> Iterator[rmq.Outgoing]:
        sent = dict.fromkeys(self._groups, 0)
        while sent:
            groups = list(sent)
            self._rng.shuffle(groups)
            for group in groups:
                low = sent[group]
                high = min(self._each, low + self._rng.randint(1, 10))
                for n in range(low, high):
                    kind = POISON if (group, n) in self._poison else ""
                    priority = 100 + self._each - n if int(group[1:]) % 2 else None
                    yield rmq.Outgoing([group, n, kind], group=group, priority=priority)
                sent[group] = high
                if high == self._each:
                    del sent[group]

    def run(self) -> None:
        try:
            with rmq.Client(self._url, retry_for=30) as client:
                topic, messages = client.topic(self._name), self._all()
                while self.sent < self.total:
                    count = min(BATCH, self.may - self.sent)
                    batch = list(itertools.islice(messages, count))
                    if batch:
                        results = topic.send_many(batch)
                        insist({one.status for one in results} == {"stored"}, results)
                        self.sent += len(batch)
                    else:
                        time.sleep(LOOK_S)
        except BaseException as error:
            self.error = error


class Storm:
    """A run.

    Args:
        store: Redis.
        folder: for what processes write.
        asked: the options of the command.
    """

    def __init__(self, store: Store, folder: Path, asked: argparse.Namespace) -> None:
        self.store, self.folder, self.asked = store, folder, asked
        self.rng = random.Random(asked.seed)
        self.fired: Counter[str] = Counter()
        self.faults = Faults()
        self.client = rmq.Client(store.url, retry_for=30)
        names = [f"g{n}" for n in range(asked.groups)]
        self.groups = {
            f"storm-{asked.seed}": [one for n, one in enumerate(names) if n % LOOSE],
            f"storm-{asked.seed}-loose": [one for n, one in enumerate(names) if n % LOOSE == 0],
        }
        self.poison = {
            (name, self.rng.randrange(asked.each))
            for name in self.rng.sample(names, max(1, asked.groups // POISONED))
        }
        self._alive: dict[int, Forked] = {}
        self._stopped: dict[int, int] = {}
        self._number = 0
        self._errors: list[BaseException] = []
        third = max(1, asked.kills // 3)  # of the rounds
        self._resizes = [(third, 16), (2 * third, 8)] if asked.resize else []
        if asked.broken == "opens-early":
            self._resizes = [(1, 16)]  # it has no end, so there is no other one
        self._resizer: threading.Thread | None = None
        self._stuck_since = 0.0

    def run(self) -> Account:
        """Play it to its end, and judge it."""
        asked = self.asked
        for name in self.groups:
            self.client.topic(
                name, slots=4, max_retries=RETRIES, retry=rmq.Exponential(base=0.05, cap=0.2),
                groups=rmq.Groups(order=False, concurrency=AT_ONCE) if name.endswith("-loose")
                else rmq.Groups(),
            ).open()  # fmt: skip
        producers = [
            Producer(self.store.url, name, mine, asked.each, random.Random(n), self.poison)
            for name, groups in self.groups.items()
            for n in range(2)
            if (mine := groups[n::2])
        ]
        total = sum(one.total for one in producers)
        rounds = [0.85 * (n + 1) / (asked.kills + 1) for n in range(asked.kills)]
        watch = Watch(
            lambda: [self.client.admin.stats(name) for name in self.groups],
            end_s=END_S + total * SLOWEST_S,
        )
        for _ in range(asked.workers):
            self._start("worker")
        for _ in range(asked.consumers):
            self._start("consumer")
        try:
            for one in producers:
                one.may = int(one.total * AHEAD)
                one.start()
            left = 0
            while True:
                insist(not self._errors, self._errors)
                insist(not any(one.error for one in producers), [one.error for one in producers])
                for number, process in self._alive.items():
                    insist(process.poll() is None, (number, self._stderr(number)))
                stats, sent = self._stats(), sum(one.sent for one in producers)
                if stats:
                    left = stats["records"] - stats["dead"]
                    if self._is_stuck(stats):
                        break
                is_idle = left == 0 and all(one.sent == one.may for one in producers)
                if is_idle and sent == total and not self._stopped and not self._is_resizing():
                    break
                if rounds and ((sent - left) / total >= rounds[0] or is_idle):
                    rounds.pop(0)
                    self._hurt(asked.kills - len(rounds))
                is_over = not rounds and not self._is_resizing() and not self._stopped
                share = 1 if is_over else min(1 - KEPT_BACK, AHEAD + (sent - left) / total)
                for one in producers:
                    one.may = max(one.may, int(one.total * share))
                self._wake()
                watch.look(sent, left, self.fired.total(), len(rounds), len(self._stopped))
                time.sleep(LOOK_S)
            stuck = self._entries()
            for process in self._alive.values():
                process.terminate()
            for process in self._alive.values():
                process.wait(
                    END_S
                )  # the code says whether one has deliveries that it must not settle
        finally:
            for number in self._stopped:
                os.kill(self._alive[number].pid, signal.SIGCONT)
            for process in self._alive.values():
                process.kill()
                process.wait()
            for one in producers:
                one.may = 0
        return self._judge(stuck, left > 0)

    # --- what is done ----------------------------------------------------------------------------

    def _start(self, kind: str) -> None:
        self._number += 1
        topics = list(self.groups)
        task = {
            "url": self.store.url, "kind": kind, "topics": topics, "lease": self.asked.lease,
            "log": str(self.folder / f"log-{self._number}"), "broken": self.asked.broken,
            "heartbeat": "process" if self.asked.kills else "thread",
            "work_s": self.asked.work,
        }  # fmt: skip
        with open(self.folder / f"err-{self._number}", "wb") as errors:
            self._alive[self._number] = Forked(
                "tests.faults.groups_worker", json.dumps(task), stderr=errors
            )
        self.faults.kinds[self._number] = kind

    def _hurt(self, at: int) -> None:
        """Do all faults once; a resize at a third and at two thirds of the rounds."""
        number = self.rng.choice([one for one in self._alive if one not in self._stopped])
        self._kill(number)
        self._start(self.faults.kinds[number])
        number = self.rng.choice([one for one in self._alive if one not in self._stopped])
        os.kill(self._alive[number].pid, signal.SIGSTOP)
        self._stopped[number] = time.monotonic_ns()
        self.fired["stop"] += 1
        if self._resizes and at >= self._resizes[0][0]:
            self._resize(self._resizes.pop(0)[1])
        began, back = time.monotonic_ns(), 0 if at % 2 else self.store.fail_over(self.rng)
        self.fired["fail over" if back else "kill redis"] += 1
        self.faults.outages.append((began, back or self.store.kill(self.rng)))

    def _kill(self, number: int) -> None:
        process = self._alive.pop(number)
        process.kill()
        process.wait()
        self.faults.deaths[number] = time.monotonic_ns()
        self.fired[f"kill {self.faults.kinds[number]}"] += 1

    def _wake(self) -> None:
        """Let those go on who have stood still for longer than their leases."""
        for number, since in list(self._stopped.items()):
            if time.monotonic_ns() > since + (self.asked.lease + 2) * 1_000_000_000:
                self.faults.stops[number].append((since, time.monotonic_ns()))
                os.kill(self._alive[number].pid, signal.SIGCONT)
                del self._stopped[number]
                self.fired["go on"] += 1

    def _resize(self, slots: int) -> None:
        if self._resizer:
            self._resizer.join(END_S)

        def change() -> None:
            try:
                with rmq.Client(self.store.url, retry_for=30) as client:
                    for name in self.groups:
                        if self.asked.broken == "opens-early":
                            self._open_early(client, name, slots)
                        else:
                            resize(client, self.store.url, name, slots, 1, None, self.rng)
                        self.fired[f"resize {slots}"] += 1
            except BaseException as error:
                self._errors.append(error)

        self._resizer = threading.Thread(target=change, daemon=True)
        self._resizer.start()

    def _open_early(self, client: rmq.Client, name: str, slots: int) -> None:
        """Begin a resize, and take away what holds the new slots, whoever sets it again."""
        client.admin.topic_resize(name, slots, wait=False)
        (node,) = self.store.nodes()
        until = time.monotonic() + EARLY_S
        with node.raw() as raw:
            while time.monotonic() < until:
                with suppress(redis.RedisError):
                    for key in list(raw.scan_iter(f"rmq:{{{name}_*}}:slot")):
                        raw.hdel(key, "paused")
                time.sleep(0.01)

    def _is_resizing(self) -> bool:
        return bool(self._resizer and self._resizer.is_alive())

    # --- what is seen ----------------------------------------------------------------------------

    def _stats(self) -> Counter[str]:
        """The counts of both topics; empty while a resize has not made all slots."""
        try:
            return sum(
                (Counter(self.client.admin.stats(name)) for name in self.groups), Counter[str]()
            )
        except rmq.TopicVanished:
            return Counter()

    def _is_stuck(self, stats: Counter[str]) -> bool:
        """Whether messages are held, and there is nothing that they could be held by."""
        moving = sum(stats[name] for name in ("in_flight", "retries", "due", "later"))
        if not stats["held"] or moving or stats["priority"] != stats["held"]:
            self._stuck_since = 0.0
        elif not self._stuck_since:
            self._stuck_since = time.monotonic()
        return self._stuck_since > 0 and time.monotonic() > self._stuck_since + STUCK_S

    def _entries(self) -> list[str]:
        """The groups that slots know of."""
        found = []
        for name in self.groups:
            listed = self.client.admin.groups(name, limit=10_000)
            found += [f"{each.group}: {each}" for each in listed.groups]
        return found

    def _dead(self) -> set[tuple[str, int]]:
        found = set()
        for name in self.groups:
            cursor = None
            while True:
                page = self.client.admin.dead_letters(name, cursor=cursor, limit=1000)
                found |= {(one.body[0], one.body[1]) for one in page.messages}
                cursor = page.cursor
                if not cursor:
                    break
        return found

    def _stderr(self, number: int) -> str:
        return (self.folder / f"err-{number}").read_text()[-4000:]

    def _judge(self, entries: list[str], is_stuck: bool) -> Account:
        account, dead = Account(), dict[str, set[int]]()
        for group, n in self._dead():
            dead.setdefault(group, set()).add(n)
        books = {n: (self.folder / f"log-{n}") for n in range(1, self._number + 1)}
        lines = {n: path.open() for n, path in books.items() if path.exists()}
        found = deliveries(lines, self.faults, int(self.asked.lease * 500_000_000))
        for file in lines.values():
            file.close()
        for name, groups in self.groups.items():
            for group in groups:
                about = account, group, self.asked.each, found[group], dead.get(group, set())
                if name.endswith("-loose"):
                    judge_most(*about, AT_ONCE)
                else:
                    judge_order(*about)
        judge_poison(account, found, self.poison)
        if is_stuck:
            account.stuck, account.lost = entries or account.lost, []  # no entry may be left
        else:
            account.left = entries
        return account


def played(store: Store, folder: Path, asked: argparse.Namespace) -> tuple[Account, str]:
    """Play a storm; its account, and its figures to print."""
    began = time.monotonic()
    storm = Storm(store, folder, asked)
    try:
        account = storm.run()
    finally:
        storm.client.close()
    seconds = time.monotonic() - began
    total = asked.groups * asked.each
    told = (
        f"{asked.groups} groups x {asked.each}: {account}; {dict(storm.fired)}; {seconds:.0f} s, "
        f"{total / seconds:.0f} messages a second"
    )
    return account, told if account.is_well else f"{told}\n{storm.faults}"


def small(seed: int, **more: object) -> argparse.Namespace:
    """The options of a storm that takes seconds."""
    words = "--groups 60 --each 20 --workers 3 --consumers 1 --kills 2 --lease 2"
    return argparse.Namespace(**vars(parser().parse_args(words.split())) | {"seed": seed} | more)


def insisted(store: Store, folder: Path, seed: int) -> Played:
    """Play a small storm, and insist that all is well."""
    account, told = played(store, folder, small(seed))
    insist(account.is_well and account.most == AT_ONCE, (told, account))
    return Played(told, Counter())


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(prog="python -m tests.faults.groups_storm", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--groups", type=int, default=200)
    made.add_argument("--each", type=int, default=20, help="messages of each group")
    made.add_argument("--workers", type=int, default=4)
    made.add_argument("--consumers", type=int, default=2, help="plain ones beside them")
    made.add_argument("--kills", type=int, default=4, help="rounds of faults")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--lease", type=float, default=4.0, help="seconds")
    made.add_argument("--work", type=float, default=0.002, help="seconds of a message")
    made.add_argument("--cluster", action="store_true", help="of three masters and replicas")
    made.add_argument("--no-resize", dest="resize", action="store_false")
    made.add_argument("--broken", default="", choices=["", "opens-early", *BROKEN])
    return made


def main(words: list[str] | None = None) -> int:
    """Play one, print what was found."""
    asked = parser().parse_args(words)
    apply(asked.broken)
    with opened(asked.cluster) as store, tempfile.TemporaryDirectory() as folder:
        account, told = played(store, Path(folder), asked)
    print(told)
    for what in ("lost", "disorder", "overlaps", "stuck", "left"):
        for line in getattr(account, what)[:5]:
            print(f"  {what}: {line}")
    return 0 if account.is_well else 1


if __name__ == "__main__":
    sys.exit(main())
