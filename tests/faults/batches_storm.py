"""A storm of batches: producers, consumers, servers and Redis die between any two steps.

Producers fill batches over two topics, and members add members. Producers die before and after they
make messages members, before they send them, and before they close the batch; then they are started
again, also two at a time. Consumers and workers ack, reject and lose members, and some members
expire. Purgers delete members, and die before they report it. What does the work of a server sweeps
ends and looks for lost members; it dies between two steps, and `rmq server` is killed at any
moment. Every second batch waits for its dead letters, which are redriven. A batch is cancelled. The
topics of members and of callbacks are resized and paused. Redis fails as in `follow_ups_storm`.

When a callback comes, no member of its batch may be open. At the end, each batch has had one
callback; its counts equal the members in its hash; each member has ended as its result says, and no
end is left in a slot. Members without a result were lost: nobody has ever received them. All others
were stored, once.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import rmq
from rmq.features.batches import flows
from rmq.kernel.batches.scripts import OUTCOMES
from rmq.kernel.core import record
from rmq.kernel.core.keys import SlotKeys, batches_key
from tests.faults.batching import KINDS, Task, create, keyed, opened, topics
from tests.faults.follow_ups_storm import Hurts, Place, opened as place_opened
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked

PRODUCER_STEPS = (
    "batch_open", "batch_add", "batch_add", "send", "send", "batch_close", "pending",
    "pending_settle",
)  # fmt: skip
STEPS = {
    "worker": ("prepare", "ack_then", "ack", "nack", "reject", "batch_add", "send", "batch_end",
               "member_ends", "pending_send"),
    "consumer": ("prepare", "ack_then", "ack", "reject", "batch_add", "send", "batch_end",
                 "member_ends", "pending_settle"),
    "service": ("member_ends", "batch_end", "pending_send", "locate"),
    "purger": ("purge", "trash"),
}  # fmt: skip
FAULTS = ("redis", "redis", "server", "server", "pause", "pause", "pause", "resize", "resize")
WAITING = ("priority", "due", "retries", "later", "in_flight", "pending")  # counts of a topic
BATCHES, PROCESSES, DEATHS, PURGERS = 8, 3, 8, 2
PAUSE_S, PATIENCE_S, END_S = 2.0, 25.0, 300.0


class Found(NamedTuple):
    """What a storm has found.

    Attributes:
        members: how the members of all batches have ended, by letter.
        wrong: what was wrong, in words.
        fired: the faults.
    """

    members: Counter[str]
    wrong: list[str]
    fired: Counter[str]


class Storm:
    """A run.

    Args:
        place: Redis.
        folder: for what processes write.
        stem: with which the names of the topics and batches begin.
        rng: decides.
        broken: a broken variant, as in `Task`.
        faults: other faults, as for `Hurts`.
        cancels: how many batches are cancelled.
        deaths: kinds of processes, and the scripts and calls before which they die; None: DEATHS
            of KINDS, and PURGERS.
        end_s: how long it may take.
    """

    def __init__(
        self, place: Place, folder: Path, stem: str, rng: random.Random, broken: str = "",
        faults: Sequence[str] = FAULTS, cancels: int = 1,
        deaths: list[tuple[str, str, int]] | None = None, end_s: float = END_S,
    ) -> None:  # fmt: skip
        self._place, self._folder, self._stem, self._rng = place, folder, stem, rng
        self._broken, self._end_s = broken, end_s
        self._log = folder / "log"
        self._log.touch()
        self._processes = 0
        # Each batch is filled by one producer or two, which die at these steps, one after another.
        self._plans: dict[int, list[tuple[str, int]]] = {
            n: [(rng.choice(PRODUCER_STEPS), rng.randrange(4)) for _ in range(rng.randrange(4))]
            for n in range(BATCHES)
        }
        self._waiting = list(range(BATCHES))
        self._waiting += rng.sample(self._waiting, BATCHES // 3)
        rng.shuffle(self._waiting)
        self._producers: dict[Forked, int] = {}
        self._cancels = rng.sample(range(BATCHES), cancels)
        kinds = [rng.choice(KINDS) for _ in range(DEATHS)] + ["purger"] * PURGERS
        rng.shuffle(kinds)
        drawn = [(kind, rng.choice(STEPS[kind]), rng.randrange(5)) for kind in kinds]
        self._deaths = drawn if deaths is None else list(deaths)
        self._dying: list[Forked] = []
        self._living: list[Forked] = []
        self._callbacks: dict[int, list[Any]] = defaultdict(list)
        self._wrong: list[str] = []
        self._client = rmq.Client(place.url, retry_for=30)
        create(self._client, stem)
        self._rows, self._done = topics(self._client, stem)
        names = [topic.name for topic in (*self._rows, self._done, self._done)]
        self._hurts = Hurts(place, self._client, names, self._errors, rng, list(faults), PAUSE_S)
        self._fired = self._hurts.fired

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        for topic in (*self._rows, self._done):
            topic.open()
        watch, until = Watch(self._state, end_s=self._end_s), time.monotonic() + PATIENCE_S
        consumer = self._done.consumer()
        try:
            self._hurts.start()
            for kind in KINDS:
                self._living.append(self._start(Task(self._place.url, self._stem, kind)))
            quiet = 0.0
            while not self._wrong:
                if time.monotonic() > until:
                    self._drop()
                self._look_at_producers()
                self._look_at_processes()
                self._hurts.look()
                self._act()
                self._receive(consumer)
                is_over = not (self._waiting or self._producers or self._deaths or self._dying)
                if is_over and not self._hurts and self._is_done():
                    quiet = quiet or time.monotonic() + 2  # for callbacks that come twice
                    if time.monotonic() > quiet:
                        break
                watch.look(self._log.stat().st_size, self._fired.total(), len(self._callbacks))
                time.sleep(LOOK_S)
            return self._judge()
        finally:
            for process in (*self._producers, *self._dying, *self._living):
                process.kill()
                process.wait()
            self._hurts.end()
            consumer.close()
            self._client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _errors(self) -> Path:
        self._processes += 1
        return self._folder / f"err-{self._processes}"

    def _start(self, task: Task) -> Forked:
        path = self._errors()
        task.log, task.broken = str(self._log), self._broken
        with path.open("wb") as errors:
            return Forked("tests.faults.batching", task.text(), str(path), stderr=errors)

    def _look_at_producers(self) -> None:
        for process, number in list(self._producers.items()):
            if process.poll() is None:
                continue
            del self._producers[process]
            if process.returncode:
                bury([], [process])
                self._fired["producer dies"] += 1
                self._waiting.append(number)
        while self._waiting and len(self._producers) < PROCESSES:
            number = self._waiting.pop(0)
            plan = self._plans[number]
            command, nth = plan.pop() if plan else ("", 0)
            task = Task(self._place.url, self._stem, "producer", number, command, nth)
            self._producers[self._start(task)] = number

    def _look_at_processes(self) -> None:
        self._fired["death"] += bury(self._living, self._dying)
        while self._deaths and len(self._dying) < PROCESSES:
            kind, command, nth = self._deaths.pop()
            task = Task(self._place.url, self._stem, kind, 0, command, nth)
            self._dying.append(self._start(task))

    def _drop(self) -> None:
        """End the processes whose moment has not come."""
        for process in self._dying:
            process.kill()
            process.wait()
            self._fired["dropped"] += 1
        self._dying, self._deaths = [], []

    def _act(self) -> None:
        """Redrive, and cancel a batch, now and then."""
        if self._rng.random() < 0.2:
            self._client.admin.redrive(self._rng.choice(self._rows).name)
        if self._cancels and self._rng.random() < 0.05:
            try:
                self._client.batch(f"{self._stem}-b{self._cancels[-1]}").cancel()
            except rmq.BatchNotFound:  # it comes later
                return
            self._fired["cancel"] += 1
            self._cancels.pop()

    # --- what is seen ----------------------------------------------------------------------------

    def _receive(self, consumer: Any) -> None:
        for d in consumer.receive(10, wait=0):
            if d.attempt == 1:
                self._look_at_members(d.body)
                self._callbacks[d.body].append((d.id, d.batch_counts))
            with suppress(rmq.LeaseLost):  # it comes again
                d.ack()

    def _alive(self) -> dict[str, dict[str, bool]]:
        """Return the messages in all queues by batch and first id, and whether they are dead."""
        found: dict[str, dict[str, bool]] = defaultdict(dict)
        for keys in self._slots():
            records = self._pairs(keys.records)
            dead, trash = (self._ask("ZRANGE", key, 0, -1) for key in (keys.dead, keys.trash))
            for member, data in records:
                if member not in trash:
                    _, _, name, id = record.batch_of(data).split(" ")
                    found[name][id] = member in dead
        return found

    def _slots(self) -> Iterator[SlotKeys]:
        """Return all slots that the topics of members have had."""
        for topic in self._rows:
            for index in range(self._client.admin.settings(topic.name).all_slots):
                yield SlotKeys(self._client._prefix, topic.name, index)

    def _ask(self, *words: Any) -> Any:
        return self._client._transport.raw_command("test", *words)

    def _pairs(self, key: bytes) -> list[tuple[bytes, bytes]]:
        reply = self._ask("HGETALL", key)
        if isinstance(reply, dict):
            return list(reply.items())
        return list(zip(reply[::2], reply[1::2], strict=True))

    def _hash(self, number: int) -> dict[str, str]:
        definition = opened(self._client, self._stem, number)._definition
        self._client._transport.run(flows.open_batch(definition))
        key = definition.keys().batch(definition.name)
        return {
            field.decode(): value.decode("latin-1", "replace") for field, value in self._pairs(key)
        }

    def _look_at_members(self, number: int) -> None:
        """Insist that no member is open. A dead letter that was counted may live again."""
        fields, name = self._hash(number), f"{self._stem}-b{number}"
        if fields["#state"] != "d":
            self._wrong.append(f"batch {number}: callback, and its state is {fields['#state']}")
        for id, is_dead in self._alive().get(name, {}).items():
            letter = fields.get(id, "none")[:1]
            is_right = letter == "d" and fields["#dead"] == "count"
            if not is_right:
                self._wrong.append(
                    f"batch {number}: callback, and {id} ({letter}) is in a queue, dead: {is_dead}"
                )

    def _is_done(self) -> bool:
        """Whether no member waits or runs, and each batch is done."""
        if any(self._waiting_counts()):
            return False
        return all(
            (self._client.batch(f"{self._stem}-b{n}").read()).state == "done"
            for n in range(BATCHES)
        )

    def _waiting_counts(self) -> Iterator[int]:
        for topic in (*self._rows, self._done):
            stats = self._client.admin.stats(topic.name)
            yield sum(stats[name] for name in WAITING)

    def _state(self) -> Any:
        return (
            [self._client.admin.stats(each.name) for each in (*self._rows, self._done)],
            [each[:12] for each in self._client.admin.batches()],
            self._waiting, len(self._dying), self._fired,
        )  # fmt: skip

    def _judge(self) -> Found:
        delivered: dict[int, set[str]] = defaultdict(set)
        for line in self._log.read_text().splitlines():
            batch, id = line.split()
            delivered[int(batch)].add(id)
        total: Counter[str] = Counter()
        if not self._wrong:
            for number in range(BATCHES):
                total += self._judge_batch(number, delivered[number])
            self._judge_topics(total)
        return Found(total, self._wrong, self._fired)

    def _judge_batch(self, number: int, delivered: set[str]) -> Counter[str]:
        fields = self._hash(number)
        letters = {id: text[:1] for id, text in fields.items() if not id.startswith("#")}
        counts = Counter(letters.values())
        callbacks = self._callbacks[number]

        def wrong(what: object) -> None:
            self._wrong.append(f"batch {number}: {what}")

        if len(callbacks) != 1:
            wrong(f"{len(callbacks)} callbacks: {callbacks}")
        for _, given in callbacks:
            told = {letter: getattr(given, name) for letter, name in OUTCOMES.items()}
            if Counter(told) != counts or given.is_cancelled != ("#cancelled" in fields):
                wrong(f"the callback says {given}, the members are {counts}")
        if (fields["#state"], fields["#open"], fields["#all"]) != ("d", "0", str(len(letters))):
            wrong({name: value for name, value in fields.items() if name in
                   ("#state", "#open", "#all")})  # fmt: skip
        if delivered - set(letters):
            wrong(f"no members, but delivered: {list(delivered - set(letters))[:3]}")
        for page_number, page in enumerate(keyed(number)):
            topic = self._rows[page_number % 2]
            sent = {str(flows._id_for(topic._context, out)) for out in page}
            if sent - set(letters) and "#cancelled" not in fields:
                wrong(f"sent, and no members: {len(sent - set(letters))}")
        names = fields["#topics"].split()
        for at, name in enumerate(names, 1):
            topic = next(each for each in self._rows if each.name == name)
            ids = [id for id, text in fields.items() if id in letters and int(text[1:]) == at]
            for id, state in zip(ids, topic.results(ids), strict=True):
                ended = state.outcome.outcome if state.outcome else "lost"
                letter, is_count = letters[id], fields["#dead"] == "count"
                # A dead letter that is purged has ended before, unless its batch waits for it.
                is_right = OUTCOMES[letter] == ended or (letter, ended) == ("p", "dead")
                if not is_right and not (letter == "d" and is_count):
                    wrong(f"{id} is {letter!r}, and its result is {ended}")
                if letter == "l" and id in delivered:
                    wrong(f"{id} is lost, and was delivered")
        return counts

    def _judge_topics(self, total: Counter[str]) -> None:
        """Insist that members that were not lost were stored once, and that no end is left.

        All batches must be listed.
        """
        stored = sum(self._client.admin.stats(topic.name)["accepted"] for topic in self._rows)
        if stored != total.total() - total["l"]:
            self._wrong.append(f"{stored} members were stored, and the batches say {total}")
        for keys in self._slots():
            left = self._ask("ZRANGEBYSCORE", keys.keeping, "+inf", "+inf")
            if left:
                self._wrong.append(f"ends are left in {keys.slot!r}: {left[:3]}")
        listed = [name for name, _ in self._pairs(batches_key(self._client._prefix))]
        names = {f"{self._stem}-b{n}".encode() for n in range(BATCHES)}
        if names - set(listed):
            self._wrong.append(f"not listed: {names - set(listed)}")


def played(kind: str, folder: Path, stem: str, rng: random.Random, **options: Any) -> Played:
    """Play a storm, and insist that each callback was sent once, and not early."""
    with place_opened(kind) as place:
        found = Storm(place, folder, stem, rng, **options).run()
    told = f"{kind}: {dict(found.members)}; {dict(found.fired)}"
    insist(not found.wrong, (told, found.wrong[:5]))
    return Played(told, Counter({"death": found.fired["dropped"]}))
