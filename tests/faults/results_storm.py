"""A storm of results: messages end in every way, while what handles them and Redis are killed.

Consumers and workers ack, fail, reject, release and lose messages that keep their results, and kill
themselves before each of their scripts. Meanwhile messages are cancelled, redriven and purged, and
Redis is killed and started again; it has kept all that it answered.

A result must never contradict the queue. At any moment, read in one transaction:

- a message that waits or is in flight has no result, except its progress;
- a dead letter, and no other message, has the outcome `dead`;
- a message that is gone has a result, and its result never changes;
- each result has an end of keeping, and no progress has one.

At the end, the counts of the topic equal the counts of the outcomes. The value of a message that
succeeded is the value of an attempt that was made, and of the attempt whose ack returned.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import rmq
from rmq.kernel.core.ids import member_of
from tests.faults import groups_storm
from tests.faults.resulting import KINDS, LEASE_S, Task, value_of
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked

STEPS = ("prepare", "ack_then", "nack", "reject", "release", "progress")
PROCESSES, AT_ONCE, LEAST, MOST, END_S = 3, 10, 150, 600, 300.0
KEEP_S = 3600


class Found(NamedTuple):
    """What a storm has found.

    Attributes:
        outcomes: how often messages ended in each way.
        contradictions: what was wrong, in words.
        reads: how often the whole slot was compared.
        fired: the faults.
    """

    outcomes: Counter[str]
    contradictions: list[str]
    reads: int
    fired: Counter[str]


class Storm:
    """A run.

    Args:
        store: Redis.
        folder: for what processes write.
        name: of the topic.
        rng: decides.
        broken: a broken variant, as in `Task`.
        deaths: scripts and calls before which processes die; None: all of STEPS, twice.
        kills: how often Redis is killed.
    """

    def __init__(
        self, store: groups_storm.Store, folder: Path, name: str, rng: random.Random,
        broken: str = "", deaths: list[tuple[str, int]] | None = None, kills: int = 2,
    ) -> None:  # fmt: skip
        self._store, self._name, self._rng, self._broken = store, name, rng, broken
        if deaths is None:
            deaths = [(step, nth) for step in STEPS for nth in (0, rng.randint(1, 6))]
        self._deaths = rng.sample(deaths, len(deaths))
        self._kills, self._kill_at = kills, 0.0
        self._log, self._errors = folder / "log", folder / "err"
        self._log.touch()
        self._dying: list[Forked] = []
        self._living: list[Forked] = []
        self._fired: Counter[str] = Counter()
        self._bodies: dict[bytes, int] = {}  # by the name of the message in its slot
        self._ended: dict[bytes, bytes] = {}  # results of messages that are gone
        self._wrong: list[str] = []
        self._reads = 0
        self._client = rmq.Client(store.url, retry_for=30)
        self._topic = self._client.topic(
            name, slots=1, retry="immediate", lease=LEASE_S, max_retries=3, dedup_window=0,
            results=rmq.Results(keep=KEEP_S),
        )  # fmt: skip

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        self._topic.open()
        watch = Watch(lambda: (self._stats(), self._stderr()), end_s=END_S)
        try:
            while not self._wrong:
                self._look_at_processes()
                is_over = not (self._deaths or self._dying or self._kills)
                is_over = is_over and len(self._bodies) >= LEAST
                if not is_over and len(self._bodies) < MOST:
                    self._send()
                    self._act()
                self._compare()
                if is_over and self._is_done():
                    break
                self._kill_redis()
                watch.look(len(self._bodies), self._log.stat().st_size, self._fired.total())
                time.sleep(LOOK_S)
            return self._judge()
        finally:
            for process in (*self._dying, *self._living):
                process.kill()
                process.wait()
            self._client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _send(self) -> None:
        numbers = range(len(self._bodies), len(self._bodies) + AT_ONCE)
        out = [rmq.Outgoing(n, priority=20 if n % 3 else None) for n in numbers]
        for n, result in zip(numbers, self._topic.send_many(out), strict=True):
            self._bodies[member_of(result.id)] = n

    def _act(self) -> None:
        """Cancel a message, or redrive the dead letters, now and then."""
        act = self._rng.choice(("cancel", "cancel running", "redrive", "redrive", ""))
        if act == "redrive":
            self._client.admin.redrive(self._name)
        elif act:
            member = self._rng.choice(list(self._bodies)[-AT_ONCE:])
            id = self._topic._context.slots[0].id_of(member)
            self._topic.cancel(id, running=act == "cancel running")
        if act:
            self._fired[act] += 1

    def _look_at_processes(self) -> None:
        self._fired["death"] += bury(self._living, self._dying)
        while self._deaths and len(self._dying) < PROCESSES:
            self._dying.append(self._start(*self._deaths.pop()))
        while len(self._living) < 1 or (
            not self._deaths and len(self._dying) + len(self._living) < PROCESSES
        ):
            self._living.append(self._start())

    def _start(self, command: str = "", nth: int = 0) -> Forked:
        kind = "consumer" if command in ("progress", "release") else self._rng.choice(KINDS)
        task = Task(self._store.url, self._name, kind, command, nth, str(self._log), self._broken)
        with self._errors.open("ab") as errors:
            words = (task.text(), str(self._errors))
            return Forked("tests.faults.resulting", *words, stderr=errors)

    def _kill_redis(self) -> None:
        if self._kills and time.monotonic() > self._kill_at and len(self._bodies) > 50:
            self._kills -= 1
            self._store.kill(self._rng)
            self._fired["kill redis"] += 1
            self._kill_at = time.monotonic() + self._rng.uniform(0.5, 2)

    # --- what is seen ----------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare the results with the queue, at one moment."""
        keys = self._topic._context.slots[0]
        with self._store.nodes()[0].raw() as raw, raw.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.results).zrange(keys.keeping, 0, -1)
            for key in (keys.store, keys.prepare, keys.dead):
                pipe.zrange(key, 0, -1)
            results, keeping, *queues = pipe.execute()
        self._reads += 1
        waiting, running, dead = map(set, queues)
        for member, body in self._bodies.items():
            found = results.get(member, b"")
            letter, is_gone = found[:1].decode(), member not in waiting | running | dead
            place = "gone" if is_gone else "dead" if member in dead else "alive"
            right = {"gone": "shcepo", "dead": "d", "alive": "r"}[place]
            if letter not in right or (not letter and place != "alive"):
                self._wrong.append(f"message {body} is {place}, and its result is {letter!r}")
            if (member in set(keeping)) is not (letter not in ("", "r")):
                self._wrong.append(f"message {body}: result {letter!r}, end of keeping is wrong")
            if is_gone and self._ended.setdefault(member, found) != found:
                self._wrong.append(f"message {body}: its result has changed")

    def _is_done(self) -> bool:
        stats = self._stats()
        return not any(stats[name] for name in ("priority", "in_flight", "retries"))

    def _stats(self) -> dict[str, int]:
        return self._client.admin.stats(self._name)

    def _stderr(self) -> str:
        return self._errors.read_text()[-4000:] if self._errors.exists() else ""

    def _judge(self) -> Found:
        outcomes: Counter[str] = Counter()
        made, acked = set[str](), dict[int, str]()
        for line in self._log.read_text().splitlines():
            word, body, attempt = line.split()
            value = value_of(int(body), int(attempt))
            if word == "deliver":
                made.add(value)
            else:
                acked[int(body)] = value
        ids = [self._topic._context.slots[0].id_of(member) for member in self._bodies]
        for body, state in zip(self._bodies.values(), self._topic.results(ids), strict=True):
            outcome = state.outcome
            outcomes[outcome.outcome if outcome else "none"] += 1
            if body in acked and (outcome is None or outcome.value != acked[body]):
                self._wrong.append(f"message {body} was acked as {acked[body]}: {outcome}")
            if outcome and outcome.outcome == "succeeded" and outcome.value not in made:
                self._wrong.append(f"message {body} has the value {outcome.value}")
        if not self._wrong:
            stats = self._stats()
            counted = (stats["settled"], stats["dead"], stats["cancelled"])
            told = tuple(outcomes[name] for name in ("succeeded", "dead", "cancelled"))
            if counted != told or outcomes.total() != len(self._bodies):
                self._wrong.append(f"stats {counted}, outcomes {told}, {dict(outcomes)}")
        return Found(outcomes, self._wrong, self._reads, self._fired)


@contextmanager
def opened() -> Iterator[groups_storm.Store]:
    """A Redis that keeps what it has answered."""
    with groups_storm.opened(False) as store:
        yield store


def played(folder: Path, name: str, rng: random.Random, **options: Any) -> Played:
    """Play a storm, and insist that no result contradicted the queue."""
    with opened() as store:
        found = Storm(store, folder, name, rng, **options).run()
    told = f"{found.outcomes.total()} messages, {found.reads} comparisons; {dict(found.fired)}"
    insist(not found.contradictions, (told, found.contradictions[:5]))
    return Played(f"{told}; {dict(found.outcomes)}", Counter())
