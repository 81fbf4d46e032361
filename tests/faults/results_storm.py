"""A storm of results: messages end in every way, while all that they need dies or changes.

Consumers and workers ack, fail, reject, release and lose messages that keep their results, and kill
themselves before each of their scripts. Senders of such messages wait for their results, and kill
themselves as well. Meanwhile messages are cancelled, redriven, purged, and expire. Redis fails as
in `follow_ups_storm`, without losing an answered write; a server of RMQ is killed; the topic is
paused and resized.

A result must never contradict the queue. At any moment, read in one script for each slot:

- a message that waits or is in flight has no result, except its progress
- a dead letter, and no other message, has the outcome `dead`
- a message that is gone has a result; its result never changes, and it does not come back
- each result has an end of keeping, and no progress has one
- the history has each message that was acked, once, and no other message

At the end, the counts of the topic equal the counts of the outcomes. The value of a message that
succeeded is the value of an attempt that was made, and of the attempt whose ack returned. A wait
has returned no other outcome. A reader that follows the history meanwhile gets each of its messages
once.

`Losing` is Redis whose failovers lose answered writes. Results and acks are then lost together: the
promises hold, except that acks of such a moment are lost, as the acks of plain messages.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import rmq
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.flow.steps import Command, pipeline
from rmq.kernel.transport.lua.script_loader import Script
from tests.conftest import any_binary
from tests.faults import follow_ups_storm, lost_acks
from tests.faults.follow_ups_storm import Hurts, Place
from tests.faults.history_check import FIELDS, Reader, SlotHistory
from tests.faults.resulting import EXPIRES_S, KEEP_S, KINDS, LEASE_S, SENDER, Task
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked

PLACES = (*follow_ups_storm.PLACES, "losing-sentinel", "losing-cluster")
STEPS = (
    "prepare", "ack_then", "nack", "reject", "release", "progress", "rollback_expired_leases",
)  # fmt: skip
SENDER_STEPS = ("send", "cancel", "result", "redrive")
BY_HAND = ("progress", "release", "rollback_expired_leases")  # scripts that consumers call early
FAULTS = ("redis", "server", "pause", "resize") * 2
PROCESSES, AT_ONCE, LEAST, MOST, BACKLOG_MOST, END_S = 3, 10, 150, 600, 100, 300.0
PURGE_EACH = 75  # one purge for so many messages
EXPIRING = 5  # one of so many messages expires
LOOK = Script("look", """
local read = redis.call('HGETALL', KEYS[1])
local reply = { read, redis.call('ZRANGE', KEYS[2], 0, -1) }
for i = 3, 5 do
  reply[i] = redis.call('ZRANGE', KEYS[i], 0, -1)
end
reply[6] = redis.call('XRANGE', KEYS[6], '-', '+')
reply[7] = redis.call('HMGET', KEYS[7], unpack(ARGV))
return reply
""")  # fmt: skip
RIGHT = {"gone": "shcepo", "dead": "d", "alive": "r"}  # letters of results
ACKED = ("s", "h")  # results of messages that were acked
ENDED = {  # counter of the topic, by outcome
    "succeeded": "settled", "dead": "dead", "cancelled": "cancelled", "expired": "expired",
    "purged": "purged",
}  # fmt: skip


class Losing:
    """A service or a Cluster whose failovers lose the writes of a moment."""

    def __init__(self, failover: lost_acks.Failover) -> None:
        self.failover, self.url = failover, failover.url

    def fail(self, rng: random.Random) -> str:
        """As `Place.fail`; the storm lets it fail."""
        raise NotImplementedError


@contextmanager
def opened(kind: str) -> Iterator[Place]:
    """Redis, of a kind of PLACES."""
    if kind in follow_ups_storm.PLACES:
        with follow_ups_storm.opened(kind) as place:
            yield place
        return
    with ExitStack() as stack:
        failover = lost_acks.Service if kind == "losing-sentinel" else lost_acks.Nodes
        yield Losing(failover(any_binary(), stack))


class Found(NamedTuple):
    """What a storm has found.

    Attributes:
        outcomes: how often messages ended in each way.
        contradictions: what was wrong, in words.
        reads: how often all slots were compared.
        told: how many waits have returned an outcome.
        fired: the faults.
    """

    outcomes: Counter[str]
    contradictions: list[str]
    reads: int
    told: int
    fired: Counter[str]


class Storm:
    """A run.

    Args:
        place: Redis.
        folder: for what processes write.
        name: of the topic.
        rng: decides.
        broken: a broken variant, as in `Task`.
        deaths: scripts and calls before which processes die; None: all of STEPS and SENDER_STEPS,
            early and late.
        faults: other faults, as for `Hurts`; None: FAULTS.
        least: number of messages.
    """

    def __init__(
        self, place: Place, folder: Path, name: str, rng: random.Random, broken: str = "",
        deaths: list[tuple[str, int]] | None = None, faults: list[str] | None = None,
        least: int = LEAST,
    ) -> None:  # fmt: skip
        self._place, self._folder, self._name, self._rng = place, folder, name, rng
        self._broken = broken
        is_losing = isinstance(place, Losing)
        self._losses = 2 if is_losing else 0
        # For each failover that loses writes: since when they are lost, and when it was.
        self._lost: list[tuple[float, float]] = []
        if deaths is None:  # a send that a failover loses is not confirmed
            steps = STEPS if is_losing else STEPS + SENDER_STEPS
            deaths = [(step, nth) for step in steps for nth in (0, rng.randint(1, 6))]
            deaths += [(step, rng.randint(6, 12)) for step in steps if step in SENDER_STEPS]
        if faults is None:
            faults = [] if is_losing else list(FAULTS)
        self._deaths = rng.sample(deaths, len(deaths))
        self._log = folder / "log"
        self._log.touch()
        self._read = self._processes = 0  # bytes of the log
        self._dying: list[Forked] = []
        self._living: list[Forked] = []
        self._sent = 0
        self._bodies: dict[rmq.MessageId, int] = {}
        self._unsure: set[rmq.MessageId] = set()  # whether they are sent
        self._ended: dict[rmq.MessageId, bytes] = {}  # results of messages that are gone
        self._made: set[str] = set()  # values of deliveries
        self._acked: dict[int, set[str]] = {}  # values of acks that no failover has lost
        self._told: list[tuple[int, str, Any]] = []
        self._wrong: list[str] = []
        self._reads = 0
        self._running: list[rmq.MessageId] = []  # in flight, at the last look
        self._least = least
        # How many messages are sent before each purge.
        self._purge_at = sorted(
            (rng.randint(AT_ONCE, least) for _ in range(least // PURGE_EACH)), reverse=True
        )
        self._client = rmq.Client(place.url, retry_for=30)
        self._kept: dict[rmq.MessageId, tuple[int, int]] = {}  # entries in the history
        self._topic = self._client.topic(
            name, slots=2, retry="immediate", lease=LEASE_S, max_retries=1, dedup_window=0,
            durability=rmq.Replicated(1, timeout=2) if is_losing else "memory", **self._options(),
        )  # fmt: skip
        self._reader = Reader(self._client.topic(name), self._wrong)
        self._hurts = Hurts(place, self._client, [name], self._errors, rng, faults)
        self._fired = self._hurts.fired

    def _options(self) -> dict[str, Any]:
        return {
            "on_expire": self._rng.choice(("dead", "drop")),
            "results": rmq.Results(keep=KEEP_S),
            "history": rmq.History("1h", "1GiB"),
        }

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        self._topic.open()
        watch = Watch(lambda: (self._client.admin.stats(self._name), self._fired), end_s=END_S)
        try:
            self._hurts.start()
            while not self._wrong:
                self._look_at_processes()
                is_over = not (self._deaths or self._dying or self._hurts or self._losses)
                is_over = is_over and self._sent >= self._least
                backlog = len(self._bodies) - len(self._ended)
                if not is_over and self._sent < MOST and backlog < BACKLOG_MOST:
                    self._send()
                if not is_over:
                    self._act()
                self._compare()
                self._reader.look()
                if is_over and self._is_done():
                    self._compare()
                    break
                if self._sent > AT_ONCE * 3:
                    self._hurts.look()
                    self._lose()
                watch.look(self._sent, self._read, self._fired.total())
                time.sleep(LOOK_S)
            return self._judge()
        finally:
            for process in (*self._dying, *self._living):
                process.kill()
                process.wait()
            self._hurts.end()
            self._client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _send(self) -> None:
        numbers = range(self._sent, self._sent + AT_ONCE)
        out = [
            rmq.Outgoing(
                n, priority=20 if n % 3 else None, expires=None if n % EXPIRING else EXPIRES_S
            )
            for n in numbers
        ]
        try:
            results = self._topic.send_many(out)
        except rmq.NotDurable as error:  # the replica comes back; nothing is lost meanwhile
            results = error.results
        for n, result in zip(numbers, results, strict=True):
            self._bodies[result.id] = n
        self._sent += AT_ONCE

    def _act(self) -> None:
        """Cancel a message, redrive the dead letters, or purge what waits, now and then."""
        acts = ["cancel", "cancel running", "cancel running", "redrive", "redrive", "", ""]
        act = self._rng.choice(acts)
        if self._running and self._rng.random() < 0.5:
            act = "cancel running"
        if self._purge_at and self._sent > self._purge_at[-1]:
            self._purge_at.pop()
            act = "purge"
        if act == "redrive":
            self._client.admin.redrive(self._name)
        elif act == "purge":
            self._send()
            self._client.admin.purge(self._name, "store")
        elif act:
            among = self._running if act == "cancel running" else []
            id = self._rng.choice(among or list(self._bodies)[-AT_ONCE:])
            self._topic.cancel(id, running=act == "cancel running")
        if act:
            self._fired[act] += 1

    def _lose(self) -> None:
        """Let a failover lose acks, but no message."""
        if not self._losses or self._rng.random() < 0.8:
            return
        assert isinstance(self._place, Losing)
        failover = self._place.failover
        self._client.admin.topic_pause(self._name, verb="receive")
        for _ in range(5):
            self._send()
        cut = failover.cut()
        self._client.admin.topic_resume(self._name, verb="receive")
        time.sleep(self._rng.uniform(0.5, 1.5))
        self._lost.append((cut, failover.promote()))
        self._client.admin.topic_resume(self._name, verb="receive")
        self._losses -= 1
        self._fired["losing fail over"] += 1

    def _look_at_processes(self) -> None:
        self._fired["death"] += bury(self._living, self._dying)
        while self._deaths and len(self._dying) < PROCESSES:
            self._dying.append(self._start(*self._deaths.pop()))
        while len(self._living) < 1 or (
            not self._deaths and len(self._dying) + len(self._living) < PROCESSES
        ):
            self._living.append(self._start())

    def _errors(self) -> Path:
        self._processes += 1
        return self._folder / f"err-{self._processes}"

    def _start(self, command: str = "", nth: int = 0) -> Forked:
        kind = self._rng.choice(KINDS) if command else KINDS[len(self._living) % len(KINDS)]
        if command in BY_HAND:
            kind = "consumer"
        elif command in SENDER_STEPS:
            kind = SENDER
        task = Task(self._place.url, self._name, kind, command, nth, str(self._log), self._broken)
        with self._errors().open("wb") as errors:
            return Forked("tests.faults.resulting", task.text(), errors.name, stderr=errors)

    # --- what is seen ----------------------------------------------------------------------------

    def _look_at_log(self) -> None:
        """Read what the processes have written since the last look."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            word, body, *rest = json.loads(line)
            if word in ("sending", "sent"):
                id = rmq.MessageId.parse(rest[0])
                if word == "sending":
                    self._bodies[id] = body
                    self._unsure.add(id)
                self._unsure -= {id} if word == "sent" else set()
            elif word == "told":
                self._told.append((body, *rest))
            else:
                value, *times = rest
                self._made.add(value)
                if word == "acked" and not self._is_lost(*times):
                    self._acked.setdefault(body, set()).add(value)

    def _is_lost(self, began: float, ended: float) -> bool:
        """Whether a failover may have lost an ack."""
        return any(began < promoted and cut < ended for cut, promoted in self._lost)

    def _compare(self) -> None:
        """Compare the results with the queue, each slot at one moment."""
        self._look_at_log()
        by_slot: dict[int, list[rmq.MessageId]] = {}
        for id in self._bodies:
            by_slot.setdefault(id.slot, []).append(id)
        slots = [SlotKeys("rmq", self._name, index) for index in by_slot]

        def read() -> Any:
            calls = [
                Command(
                    LOOK,
                    (s.results, s.keeping, s.store, s.prepare, s.dead, s.acked, s.slot),
                    FIELDS,
                    list,
                )
                for s in slots
            ]
            return (yield from pipeline(calls))

        self._running = []
        replies = self._client._transport.run(read())
        for (index, ids), reply in zip(by_slot.items(), replies, strict=True):
            results = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
            history = SlotHistory(reply[5], reply[6])
            self._wrong += history.wrong
            for member in history.places.keys() - {id.member for id in ids}:
                self._wrong.append(f"the history has {member.hex()}, which was not sent")
            for id in ids:
                self._compare_one(id, results.get(id.member, b""), history, *map(set, reply[1:5]))
            self._compare_slot(index, history)
        self._reads += 1

    def _compare_slot(self, index: int, history: SlotHistory) -> None:
        """Compare the history of a slot with its limits."""

    def _compare_one(
        self, id: rmq.MessageId, entry: bytes, history: SlotHistory, keeping: set[bytes],
        waiting: set[bytes], running: set[bytes], dead: set[bytes],
    ) -> None:  # fmt: skip
        body, member, letter = self._bodies[id], id.member, entry[:1].decode()
        is_gone = member not in waiting | running | dead
        if id in self._unsure:
            if is_gone and not entry:
                return  # it is not sent yet, or never
            self._unsure.remove(id)
        if member in running:
            self._running.append(id)
        place = "gone" if is_gone else "dead" if member in dead else "alive"
        if letter not in RIGHT[place] or (not letter and place != "alive"):
            self._wrong.append(f"message {body} is {place}, and its result is {letter!r}")
        is_acked = is_gone and letter in ACKED
        if is_acked is not (member in history.places):
            self._wrong.append(f"message {body}, acked: {is_acked}; in the history: {not is_acked}")
        if is_acked and member in history.places:
            self._kept[id] = history.places[member]
        if (member in keeping) is not (letter not in ("", "r")):
            self._wrong.append(f"message {body}: result {letter!r}, end of keeping is wrong")
        if not is_gone and id in self._ended:
            self._wrong.append(f"message {body} was gone, and is {place} again")
        if is_gone and self._ended.setdefault(id, entry) != entry:
            self._wrong.append(f"message {body}: its result has changed")

    def _is_done(self) -> bool:
        stats = self._client.admin.stats(self._name)
        return stats["records"] == stats["dead"]

    def _judge(self) -> Found:
        self._look_at_log()
        outcomes: Counter[str] = Counter()
        self._reader.read_rest(self._kept, self._kept)
        if self._wrong:
            return Found(outcomes, self._wrong, self._reads, len(self._told), self._fired)
        ids = [id for id in self._bodies if id not in self._unsure]
        last: dict[int, tuple[str, Any]] = {}
        for id, state in zip(ids, self._topic.results(ids), strict=True):
            body, outcome = self._bodies[id], state.outcome
            name, value = (outcome.outcome, outcome.value) if outcome else ("none", None)
            outcomes[name] += 1
            last[body] = name, value
            if self._acked.get(body, {value}) != {value}:
                self._wrong.append(f"message {body} was acked as {self._acked[body]}: {outcome}")
            if name == "succeeded" and value not in self._made:
                self._wrong.append(f"message {body} has the value {value}")
        for body, *found in self._told:  # only a dead letter may live again
            if found[0] != "dead" and last[body] != tuple(found):
                self._wrong.append(f"message {body}: a wait returned {found}, not {last[body]}")
        stats = self._client.admin.stats(self._name)
        counted = {name: stats[counter] for name, counter in ENDED.items()}
        if counted != {name: outcomes[name] for name in ENDED} or outcomes.total() != len(ids):
            self._wrong.append(f"stats {counted}, outcomes {dict(outcomes)}, {len(ids)} messages")
        return Found(outcomes, self._wrong, self._reads, len(self._told), self._fired)


def played(kind: str, folder: Path, name: str, rng: random.Random, **options: Any) -> Played:
    """Play a storm, and insist that no result contradicted the queue."""
    with opened(kind) as place:
        found = Storm(place, folder, name, rng, **options).run()
    told = (
        f"{kind}: {found.outcomes.total()} messages, {found.reads} comparisons, "
        f"{found.told} waits; {dict(+found.fired)}"
    )
    insist(not found.contradictions, (told, found.contradictions[:5]))
    return Played(f"{told}; {dict(found.outcomes)}", Counter())
