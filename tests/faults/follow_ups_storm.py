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

Each topic must have accepted each message of the chain once, at the end. With `dead_to`, messages
die in each way: they are rejected, fail, lose their leases and expire, without any retry. Each dead
letter must then have one copy, which names it. The rules of `storm` hold:
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import redis

import rmq
from tests.conftest import any_binary
from tests.faults import groups_storm
from tests.faults.batching import LOST_AFTER_MS
from tests.faults.follower import DYING, KINDS, TOPICS, Task, is_done, names, topics
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.sentinels import PATIENCE_S, SERVICE, Sentinels
from tests.server.running import CONSTANTS
from tests.servers import Server

PLACES = ("one", "sentinel", "cluster")
STEPS = ("prepare", "ack_then", "pending_send", "pending_settle", "ack")
DYING_STEPS = {
    "reject": ("prepare", "reject", "pending_send", "pending_settle"),
    "dead_to": (
        "prepare", "reject", "nack", "rollback_expired_leases", "pending_send", "pending_settle",
    ),
}  # fmt: skip
EXPIRES_S, EXPIRING = 0.3, 7  # with `dead_to`, one of so many messages of the first topic expires
PROCESSES, AT_ONCE, PAUSE_S, SLOW_S, END_S = 3, 20, 0.7, 0.5, 300.0
ASK_S = 15.0  # between two requests for a failover
# Constants of `rmq server`, in place of longer ones.
SERVER = {
    "rmq.features.batches.members:LOST_AFTER_MS": LOST_AFTER_MS,
    "rmq.features.batches.service:Batches.every_s": 1.0,
    "rmq.features.follow_ups.service:FollowUps.every_s": 0.5,
    "rmq.features.events.service:Events.every_s": 0.5,
    "rmq.http_framework.survey:EVERY_MIN_S": 0.5,
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
        asked_at = 0.0

        def is_promoted() -> bool:
            nonlocal asked_at
            if self._sentinels.master is not master:
                return True
            if time.monotonic() > asked_at + ASK_S:  # on a busy machine, a failover may be given up
                asked_at = time.monotonic()
                with (
                    suppress(redis.ResponseError),
                    self._sentinels.sentinels[0].raw() as raw,
                ):
                    raw.execute_command("SENTINEL FAILOVER", SERVICE)
            return False

        wait_for(is_promoted, "another master", PATIENCE_S)
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


class Hurts:
    """Faults that come one after another, and a server of RMQ that lives until it is killed.

    Args:
        place: Redis.
        client: for the calls.
        names: of the topics that are paused and resized; the storm sends to the first one.
        errors: makes the path of a file for the errors of a process.
        rng: decides.
        faults: of `redis`, `server`, `pause` and `resize`.
        pause_s: the longest pause.
    """

    def __init__(
        self, place: Place, client: rmq.Client, names: list[str], errors: Callable[[], Path],
        rng: random.Random, faults: list[str], pause_s: float = PAUSE_S,
    ) -> None:  # fmt: skip
        self.fired: Counter[str] = Counter()
        self._place, self._client, self._names, self._rng = place, client, names, rng
        self._errors, self._pause_s = errors, pause_s
        self._faults = rng.sample(faults, len(faults))
        self._at = 0.0
        self._server: Forked | None = None
        self._resume: list[tuple[float, Callable[[], object]]] = []

    def start(self) -> None:
        """Start the server, unless there are no faults.

        It has no broken variants, so it would repair their faults.
        """
        if "server" in self._faults:
            self._start_server()

    def __bool__(self) -> bool:
        """Whether faults are still to come, or to end."""
        return bool(self._faults or self._resume)

    def look(self) -> None:
        """Do the next fault, and end the pauses that are over."""
        for at, resume in list(self._resume):
            if time.monotonic() > at:
                resume()
                self._resume.remove((at, resume))
        if not self._faults or time.monotonic() < self._at:
            return
        fault = self._faults.pop()
        word = getattr(self, f"_do_{fault}")() or fault
        self.fired[word] += 1
        self._at = time.monotonic() + self._rng.uniform(0.2, 1.5)

    def end(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def _start_server(self) -> None:
        words = ("server", "--url", self._place.url, "--listen", "127.0.0.1:0")
        with self._errors().open("wb") as errors:
            self._server = Forked(
                "tests.server.command", *words, stdout=subprocess.DEVNULL, stderr=errors,
                env={**os.environ, CONSTANTS: json.dumps(SERVER)},
            )  # fmt: skip

    def _do_redis(self) -> str:
        return self._place.fail(self._rng)

    def _do_server(self) -> None:
        self.end()
        self._start_server()

    def _do_pause(self) -> str:
        name, verb = self._rng.choice(self._names), self._rng.choice(("send", "receive"))
        if name == self._names[0]:
            verb = "receive"
        self._client.admin.topic_pause(name, verb=verb)  # type: ignore[arg-type]
        at = time.monotonic() + self._rng.uniform(0, self._pause_s)
        self._resume.append((at, lambda: self._client.admin.topic_resume(name, verb=verb)))
        return f"pause {verb}"

    def _do_resize(self) -> str:
        name = self._rng.choice(self._names)
        slots = self._client.admin.settings(name).slots
        wider = self._rng.random() < 0.6 or slots == 1
        try:
            self._client.admin.topic_resize(name, slots * 2 if wider else 1, wait=False)
        except rmq.InvalidValue:  # the first resize of this topic is not over
            if self._faults:
                self._faults.insert(0, "resize")  # the last one
            return "resize again"
        return "resize"


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
            steps = DYING_STEPS.get(how, STEPS)
            deaths = [(step, nth) for step in steps for nth in (0, rng.randint(1, 6))]
        self._deaths = rng.sample(deaths, len(deaths))
        faults = ["redis", "server", "pause", "resize"] * 2 if others else []
        self.sent = 0
        self._send_at = 0.0
        self._log = folder / "log"
        self._log.touch()
        self._processes = 0
        self._dying: list[Forked] = []
        self._living: list[Forked] = []
        self.client = rmq.Client(place.url, retry_for=30)
        self.chain = topics(self.client, stem, how)
        self._hurts = Hurts(place, self.client, names(stem), self._errors, rng, faults)
        self.fired = self._hurts.fired

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        for topic in self.chain:
            topic.open()
        watch = Watch(self._stats, end_s=END_S)
        try:
            self._hurts.start()
            while True:
                self._look_at_processes()
                is_over = not self._deaths and not self._dying and not self._hurts
                if not is_over:
                    self._send()
                elif is_done(self.client, self.stem):
                    break
                self._hurts.look()
                watch.look(self.sent, self._log.stat().st_size, self.fired.total())
                time.sleep(LOOK_S)
            return self._judge()
        finally:
            for process in (*self._dying, *self._living):
                process.kill()
                process.wait()
            self._hurts.end()
            self.client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _send(self) -> None:
        if self.sent > AT_ONCE * 100:  # they come faster than the faults
            if time.monotonic() < self._send_at:
                return
            self._send_at = time.monotonic() + SLOW_S
        numbers = range(self.sent, self.sent + AT_ONCE)
        expire = {n for n in numbers if self._how == "dead_to" and n % EXPIRING == 0}
        results = self.chain[0].send_many(
            [rmq.Outgoing(n, expires=EXPIRES_S if n in expire else None) for n in numbers]
        )
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

    # --- what is seen ----------------------------------------------------------------------------

    def _stats(self) -> list[dict[str, int]]:
        return [self.client.admin.stats(topic.name) for topic in self.chain]

    def _judge(self) -> Found:
        ids: dict[tuple[int, int], set[str]] = defaultdict(set)
        copied: dict[tuple[int, int], list[tuple[str, str]]] = defaultdict(list)
        for line in self._log.read_text().splitlines():
            place, number, id, letter = line.split()
            ids[int(place), int(number)].add(id)
            if self._how == "dead_to" and int(place) == TOPICS - 1:
                copied[TOPICS - 1, int(number)] = [(id, letter)]
        if self._how == "dead_to":  # not each message that dies is handled
            for n in range(TOPICS - 1):
                for each in self._dead(n):
                    ids[n, each.body].add(str(each.id))
                    letter = each.headers.get("rmq-dead-id", "-")
                    copied[n, each.body].append((str(each.id), letter))
        doubled = [f"topic {n}, message {m}: {found}" for (n, m), found in ids.items() if
                   len(found) > 1]  # fmt: skip
        doubled += [f"topic {n}, message {m}: its dead letter is another: {found}"
                    for (n, m), found in copied.items()
                    if n and found[0][1] not in dict(copied[n - 1, m])]  # fmt: skip
        lost = [f"topic {n}, message {m}" for n in range(TOPICS) for m in range(self.sent)
                if (n, m) not in ids]  # fmt: skip
        return Found(self.sent, doubled, lost, self._stats(), self.fired, self._how in DYING)

    def _dead(self, n: int) -> Iterator[rmq.Message]:
        """All dead letters of a topic."""
        page = self.client.admin.peek_page(self.chain[n].name, "dead", limit=1000)
        yield from page.messages
        while page.cursor is not None:
            page = self.client.admin.peek_page(
                self.chain[n].name, "dead", cursor=page.cursor, limit=1000
            )
            yield from page.messages


def played(kind: str, folder: Path, stem: str, rng: random.Random, how: str = "then") -> Played:
    """Play a storm, and insist that each follow-up was sent once."""
    with opened(kind) as place:
        found = Storm(place, folder, stem, rng, how).run()
    told = f"{kind}, {how}: {found.sent} messages in {TOPICS} topics; {dict(found.fired)}"
    insist(found.is_well, (told, found.counts, found.doubled[:5], found.lost[:5]))
    return Played(told, Counter())
