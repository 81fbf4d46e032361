"""A storm of follow-ups: chains over five topics, and all that RMQ stands on dies or changes.

Consumers and workers handle messages of a chain of topics: each ack stores the message of the next
topic. They kill themselves before each of their scripts, early and late. Meanwhile a server of RMQ
is killed, topics are paused and resumed, the source and the target of follow-ups are resized, and
Redis fails:

    one       a server, which is killed and started again; it has kept all that it answered
    sentinel  the sentinels promote a replica that has all answered writes, and the master dies
    cluster   a replica takes over from its master without losing a write, or a master is killed

No failure of Redis loses an answered write, because the promise is "as long as Redis keeps its
data": after a failover that lost an ack, its message is handled again and has other follow-ups.

Each topic must have accepted each message of the chain once, at the end. The rules of `storm` hold:
messages are sent until all faults have come.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import rmq
from tests.conftest import any_binary
from tests.faults import groups_storm
from tests.faults.follower import DYING, KINDS, TOPICS, Task, is_done, topics
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.sentinels import SERVICE, Sentinels
from tests.server.running import CONSTANTS
from tests.servers import Server

PLACES = ("one", "sentinel", "cluster")
STEPS = ("prepare", "ack_then", "pending_send", "pending_settle", "ack")
DYING_STEPS = ("prepare", "reject", "pending_send", "pending_settle")
PROCESSES, AT_ONCE, PAUSE_S, END_S = 3, 20, 0.7, 300.0
# Constants of `rmq server`, in place of longer ones.
SERVER = {
    "rmq.features.follow_ups.service:FollowUps.every_s": 0.5,
    "rmq.http_framework.survey:EVERY_LEAST_S": 0.5,
}


class Place(Protocol):
    """Redis, and how it fails; no failure loses what was answered."""

    url: str

    def fail(self, rng: random.Random) -> str:
        """Fail once; return a word for it."""


class Store:
    """A server or a Cluster."""

    def __init__(self, store: groups_storm.Store) -> None:
        self._store, self.url = store, store.url

    def fail(self, rng: random.Random) -> str:
        """As `Place.fail`."""
        if rng.random() < 0.5 and self._store.fail_over(rng):
            return "fail over"
        self._store.kill(rng)
        return "kill redis"


class Service:
    """A master with two replicas and sentinels."""

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels, self.url = sentinels, sentinels.url()

    def fail(self, rng: random.Random) -> str:
        """As `Place.fail`: writes stop, the replicas catch up, one is promoted, the master dies."""
        self._sentinels.settle()
        master = self._sentinels.master
        with master.raw() as raw:
            raw.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
            sent = raw.execute_command("ROLE")[1]
        for server in self._sentinels.servers:
            if server is not master:
                wait_for(lambda one=server: _received(one) >= sent, "a replica catches up")
        with self._sentinels.sentinels[0].raw() as raw:
            self._sentinels.fail_over(lambda _: raw.execute_command("SENTINEL FAILOVER", SERVICE))
        master.kill()
        self._sentinels.settle()
        return "fail over"


def _received(replica: Server) -> int:
    with replica.raw() as raw:
        role = raw.execute_command("ROLE")
        return int(role[4]) if role[0] == b"slave" else 0


@contextmanager
def opened(kind: str) -> Iterator[Place]:
    """Redis, of a kind of PLACES."""
    if kind == "sentinel":
        # On a busy machine, they must not take a living master for dead: that would lose writes.
        calm = f"sentinel down-after-milliseconds {SERVICE} 60000"
        sentinels = Sentinels(any_binary(), lines=[calm])
        try:
            yield Service(sentinels)
        finally:
            sentinels.stop()
    else:
        with groups_storm.opened(kind == "cluster") as store:
            yield Store(store)


class Found(NamedTuple):
    """What a storm has found.

    Attributes:
        sent: messages of the first topic.
        doubled: messages that a topic got more than once.
        lost: messages that a topic did not get.
        stats: counts of each topic at the end.
        fired: the faults.
        dies: whether the messages of each topic but the last become dead letters.
    """

    sent: int
    doubled: list[str]
    lost: list[str]
    stats: list[dict[str, int]]
    fired: Counter[str]
    dies: bool = False

    @property
    def counts(self) -> list[tuple[int, int, int]]:
        """How many messages each topic has accepted and settled, and how many are dead."""
        return [(one["accepted"], one["settled"], one["dead"]) for one in self.stats]

    @property
    def is_well(self) -> bool:
        """Whether each topic has accepted and ended each message once."""
        sent, before = self.sent, len(self.stats) - 1  # the last topic
        wanted = [(sent, 0, sent) if self.dies else (sent, sent, 0)] * before + [(sent, sent, 0)]
        return not self.doubled and not self.lost and self.counts == wanted


class Storm:
    """A run.

    Args:
        place: Redis.
        folder: for what processes write.
        stem: with which the names of the topics begin.
        rng: decides.
        how: how the processes send the next message, as in `Task`.
        broken: a broken variant, as in `Task`.
        deaths: scripts and calls before which processes die; None: all of STEPS, early and late.
        others: whether there are other faults.
        processes: how many live at the same time.
    """

    def __init__(
        self, place: Place, folder: Path, stem: str, rng: random.Random, how: str = "then",
        broken: str = "", deaths: list[tuple[str, int]] | None = None, others: bool = True,
        processes: int = PROCESSES,
    ) -> None:  # fmt: skip
        self.place, self.folder, self.stem, self.rng = place, folder, stem, rng
        self._how, self._broken, self._at_once = how, broken, processes
        if deaths is None:
            steps = DYING_STEPS if how in DYING else STEPS
            deaths = [(step, nth) for step in steps for nth in (0, rng.randint(1, 6))]
        self._deaths = rng.sample(deaths, len(deaths))
        faults = ["redis", "server", "pause", "resize"] * 2 if others else []
        self._faults = rng.sample(faults, len(faults))
        self._fault_at = 0.0
        self.fired: Counter[str] = Counter()
        self.sent = 0
        self._log = folder / "log"
        self._log.touch()
        self._processes = 0
        self._dying: list[Forked] = []
        self._living: list[Forked] = []
        self._server: Forked | None = None
        self._resume: list[tuple[float, Callable[[], object]]] = []
        self.client = rmq.Client(place.url, retry_for=30)
        self.chain = topics(self.client, stem, how)

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        for topic in self.chain:
            topic.open()
        watch = Watch(self._stats, end_s=END_S)
        try:
            if self._faults:
                self._start_server()  # it has no broken variants, so it would repair their faults
            while True:
                self._look_at_processes()
                is_over = not self._deaths and not self._dying and not self._is_hurting()
                if not is_over:
                    self._send()
                elif is_done(self.client, self.stem):
                    break
                self._hurt()
                watch.look(self.sent, self._log.stat().st_size, self.fired.total())
                time.sleep(LOOK_S)
            return self._judge()
        finally:
            for process in (*self._dying, *self._living, self._server):
                if process is not None:
                    process.kill()
                    process.wait()
            self.client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _send(self) -> None:
        if self.sent > AT_ONCE * 100:
            return  # they come faster than the faults
        numbers = range(self.sent, self.sent + AT_ONCE)
        results = self.chain[0].send_many([rmq.Outgoing(n) for n in numbers])
        insist({one.status for one in results} == {"stored"}, results)
        self.sent += AT_ONCE

    def _errors(self) -> Path:
        self._processes += 1
        return self.folder / f"err-{self._processes}"

    def _start(self, command: str = "", nth: int = 0) -> Forked:
        kind = self.rng.choice(KINDS) if self._how in ("then", *DYING) else "consumer"
        task = Task(
            self.place.url, self.stem, kind, self._how, command, nth, str(self._log),
            broken=self._broken,
        )  # fmt: skip
        with self._errors().open("wb") as errors:
            return Forked("tests.faults.follower", task.text(), errors.name, stderr=errors)

    def _look_at_processes(self) -> None:
        self.fired["death"] += bury(self._living, self._dying)
        while self._deaths and len(self._dying) < self._at_once:
            self._dying.append(self._start(*self._deaths.pop()))
        while not self._deaths and len(self._dying) + len(self._living) < self._at_once:
            self._living.append(self._start())

    def _start_server(self) -> None:
        words = ("server", "--url", self.place.url, "--listen", "127.0.0.1:0")
        with self._errors().open("wb") as errors:
            self._server = Forked(
                "tests.server.command", *words, stdout=subprocess.DEVNULL, stderr=errors,
                env={**os.environ, CONSTANTS: json.dumps(SERVER)},
            )  # fmt: skip

    def _is_hurting(self) -> bool:
        return bool(self._faults or self._resume)

    def _hurt(self) -> None:
        """Do the next fault, and end the pauses that are over."""
        for at, resume in list(self._resume):
            if time.monotonic() > at:
                resume()
                self._resume.remove((at, resume))
        if not self._faults or time.monotonic() < self._fault_at:
            return
        fault = self._faults.pop()
        word = getattr(self, f"_hurt_{fault}")() or fault
        self.fired[word] += 1
        self._fault_at = time.monotonic() + self.rng.uniform(0.2, 1.5)

    def _hurt_redis(self) -> str:
        return self.place.fail(self.rng)

    def _hurt_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()
        self._start_server()

    def _hurt_pause(self) -> str:
        name, verb = self.rng.choice(self.chain).name, self.rng.choice(("send", "receive"))
        if name == self.chain[0].name:
            verb = "receive"  # this storm sends to it
        self.client.admin.topic_pause(name, verb=verb)  # type: ignore[arg-type]
        at = time.monotonic() + self.rng.uniform(0, PAUSE_S)
        self._resume.append((at, lambda: self.client.admin.topic_resume(name, verb=verb)))
        return f"pause {verb}"

    def _hurt_resize(self) -> str:
        name = self.rng.choice(self.chain).name
        slots = self.client.admin.settings(name).slots
        wider = self.rng.random() < 0.6 or slots == 1
        try:
            self.client.admin.topic_resize(name, slots * 2 if wider else 1, wait=False)
        except rmq.InvalidValue:  # the first resize of this topic is not over
            return "resize again"
        return "resize"

    # --- what is seen ----------------------------------------------------------------------------

    def _stats(self) -> list[dict[str, int]]:
        return [self.client.admin.stats(topic.name) for topic in self.chain]

    def _judge(self) -> Found:
        ids: dict[tuple[int, int], set[str]] = defaultdict(set)
        for line in self._log.read_text().splitlines():
            place, number, id = line.split()
            ids[int(place), int(number)].add(id)
        doubled = [f"topic {n}, message {m}: {found}" for (n, m), found in ids.items() if
                   len(found) > 1]  # fmt: skip
        lost = [f"topic {n}, message {m}" for n in range(TOPICS) for m in range(self.sent)
                if (n, m) not in ids]  # fmt: skip
        return Found(self.sent, doubled, lost, self._stats(), self.fired, self._how in DYING)


def played(kind: str, folder: Path, stem: str, rng: random.Random, how: str = "then") -> Played:
    """Play a storm, and insist that each follow-up was sent once."""
    with opened(kind) as place:
        found = Storm(place, folder, stem, rng, how).run()
    told = f"{kind}, {how}: {found.sent} messages in {TOPICS} topics; {dict(found.fired)}"
    insist(found.is_well, (told, found.counts, found.doubled[:5], found.lost[:5]))
    return Played(told, Counter())
