"""A storm of events: signallers, consumers, servers and Redis die between any two steps.

Messages of three topics wait for events: for a key of their own, for a key that ten messages share,
for both, with long time limits and short ones. Signallers signal the keys before, while and after
the messages begin to wait, and signal some keys twice. Workers, consumers and signallers kill
themselves before each of their scripts. A server of RMQ is killed, topics are paused and resized,
and messages are cancelled. Redis fails as in `follow_ups_storm`: no answered write is lost.

Consumers look for work of others more often than those of users: each half second. The times in
the scripts stay as they are. So a message whose registration was lost would wait for 5 minutes,
and the storm would stand still.

At the end each message has succeeded once, or was cancelled, and:

- between two deliveries with the same attempt, the first one has waited for a key, and the second
  one has the end of exactly this wait, and no other new event
- a delivery with a later attempt has the events of the one before. Only if that one waited, it may
  have the end of this wait
- all messages got the same event of a key, with the body of the signal that was stored
- a wait that timed out has lasted as long as its time limit
- no wait, no registration and no undelivered event is left in Redis
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import rmq
from rmq.kernel.core.keys import EVENT_SLOTS, EventKeys, SlotKeys, events_stem
from tests.faults.events_program import GROUPS, KINDS, SIGNALLER, Task, keys_of, names, topics
from tests.faults.follow_ups_storm import Hurts, Place, opened
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked

PROCESS_STEPS = (
    "prepare", "event_read", "release", "event_checks", "event_register", "event_deliver", "ack",
)  # fmt: skip
SERVICE_STEPS = ("event_checks", "event_register", "event_deliver", "event_waiters")
SIGNAL_STEPS = ("event_signal", "event_deliver", "event_waiters")
FAULTS = ("redis", "server", "pause", "resize") * 2
PROCESSES, AT_ONCE, LEAST, MOST, BACKLOG_MOST, AHEAD = 3, 10, 120, 300, 70, 20
DEATHS, PATIENCE_S, JUDGE_S, END_S, EARLY_S = 16, 6.0, 2.0, 300.0, 0.005
CANCELS, SLOTS_MAX = 8, 32


class Delivery(NamedTuple):
    """A delivery whose handler has begun, as the log tells it.

    Attributes:
        fence: The delivery number.
        attempt: The attempt.
        events: Events that it had: key -> (body, whether it timed out, time in epoch ms).
        wait: The key, the time limit and the time of the wait that it has raised, or None.
    """

    fence: int
    attempt: int
    events: dict[str, tuple[Any, bool, int]]
    wait: tuple[str, float, float] | None


class Found(NamedTuple):
    """What a storm has found.

    Attributes:
        sent: number of messages.
        counts: how many waits ended with an event or a time limit, and what else happened.
        wrong: what contradicts the promise.
        fired: the faults.
    """

    sent: int
    counts: Counter[str]
    wrong: list[str]
    fired: Counter[str]


class Storm:
    """A run.

    Args:
        place: Redis.
        folder: for what processes write.
        stem: with which the names of the topics and keys begin.
        rng: decides.
        broken: a broken variant, as in `Task`.
        others: whether Redis fails, a server runs and is killed, and topics are paused and resized.
        deaths: kinds of processes, and the scripts and calls before which they die; None: drawn.
        end_s: how long it may take.
    """

    def __init__(
        self, place: Place, folder: Path, stem: str, rng: random.Random, broken: str = "",
        others: bool = True, deaths: list[tuple[str, str, int]] | None = None,
        end_s: float = END_S,
    ) -> None:  # fmt: skip
        self._place, self._folder, self._stem, self._rng = place, folder, stem, rng
        self._broken, self._end_s = broken, end_s
        self._log = folder / "log"
        self._log.touch()
        self._processes = self._sent = self._cancels = 0
        steps = [(kind, step) for step in PROCESS_STEPS for kind in KINDS[:3]]
        steps += [("service", step) for step in SERVICE_STEPS]
        drawn = [(kind, step, rng.choice((0, 0, rng.randint(1, 4)))) for kind, step in steps]
        self._deaths = rng.sample(drawn, DEATHS) if deaths is None else list(deaths)
        self._dying: list[Forked] = []
        self._began: dict[Forked, float] = {}
        self._living: list[Forked] = []
        self._signallers: list[Forked] = []
        self._next_signalled = 0  # number of the first message without a signaller
        self._windows: list[int] = []  # numbers of first messages of signallers that are to start
        self._ids: dict[int, tuple[rmq.Topic, rmq.MessageId]] = {}
        self._cancelled: dict[int, int] = {}  # number of the message -> lines of the log
        self._client = rmq.Client(place.url, retry_for=30)
        self._topics = topics(self._client, stem)
        # A resize waits for older messages of ordered groups, so this topic keeps its slots.
        self._hurts = Hurts(
            place, self._client, names(stem)[:2], self._errors, rng, list(FAULTS) if others else []
        )
        self._fired = self._hurts.fired

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        for topic in self._topics:
            topic.open()
        watch = Watch(self._state, end_s=self._end_s)
        try:
            self._hurts.start()
            is_signalled, look_at = False, 0.0
            while True:
                if time.monotonic() > look_at:
                    look_at = time.monotonic() + JUDGE_S
                    found = self._judge_deliveries(self._lines())
                    if found.wrong:  # such messages may never end
                        return found
                self._look_at_processes()
                self._look_at_signallers()
                is_over = not (self._deaths or self._dying or self._hurts)
                is_over = is_over and self._sent >= LEAST
                if not is_over and self._sent < MOST and self._backlog() < BACKLOG_MOST:
                    self._send()
                if is_over and not self._windows and not self._signallers:
                    if not is_signalled:
                        self._signal_others()
                        is_signalled = True
                    if self._is_done():
                        break
                self._hurts.look()
                if not is_signalled:
                    self._cancel_one()
                watch.look(self._sent, self._log.stat().st_size, self._fired.total())
                time.sleep(LOOK_S)
            return self._judge()
        finally:
            for process in (*self._signallers, *self._dying, *self._living):
                process.kill()
                process.wait()
            self._hurts.end()
            self._client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _errors(self) -> Path:
        self._processes += 1
        return self._folder / f"err-{self._processes}"

    def _start(self, kind: str, command: str = "", nth: int = 0, first: int = 0) -> Forked:
        task = Task(
            self._place.url, self._stem, kind, first, AT_ONCE, command, nth, str(self._log),
            self._broken,
        )  # fmt: skip
        with self._errors().open("wb") as errors:
            words = (task.text(), errors.name)
            return Forked("tests.faults.events_program", *words, stderr=errors)

    def _send(self) -> None:
        for n in range(self._sent, self._sent + AT_ONCE):
            topic = self._topics[n % 3]
            group = f"g{n % GROUPS}" if topic is self._topics[2] else None
            with suppress(rmq.TopicPaused):
                self._ids[n] = topic, topic.send(n, group=group).id
                self._sent += 1
                continue
            return

    def _look_at_processes(self) -> None:
        self._fired["death"] += bury(self._living, self._dying)
        self._drop()
        while self._deaths and len(self._dying) < PROCESSES:
            self._dying.append(self._start(*self._deaths.pop()))
            self._began[self._dying[-1]] = time.monotonic()
        wanted = ("service", "worker") if self._deaths or self._dying else ("service", *KINDS[:3])
        while len(self._living) < len(wanted):
            self._living.append(self._start(wanted[len(self._living)]))

    def _look_at_signallers(self) -> None:
        for process in [each for each in self._signallers if each.poll() is not None]:
            self._signallers.remove(process)
            if process.returncode:
                bury([], [process])
                self._fired["signaller dies"] += 1
                if self._rng.random() < 0.5:  # another one repeats its signals
                    self._windows.append(json.loads(process.args[1])["first"])
        # Signals of messages that are not sent yet come before the registration.
        while self._next_signalled < self._sent + AHEAD:
            self._windows.append(self._next_signalled)
            self._next_signalled += AT_ONCE
        while len(self._signallers) < 2 and self._windows:
            dies = self._rng.random() < 0.6
            command = self._rng.choice(SIGNAL_STEPS) if dies else ""
            nth = self._rng.randrange(5)
            self._signallers.append(self._start(SIGNALLER, command, nth, self._windows.pop(0)))

    def _drop(self) -> None:
        """Kill processes whose moment has not come."""
        for process in list(self._dying):
            if time.monotonic() > self._began[process] + PATIENCE_S:
                process.kill()
                process.wait()
                self._dying.remove(process)
                self._fired["dropped"] += 1

    def _cancel_one(self) -> None:
        """Cancel a message that may wait for an event, now and then."""
        if self._cancels >= CANCELS or not self._ids or self._rng.random() < 0.9:
            return
        n = self._rng.randrange(max(0, self._sent - 30), self._sent)
        topic, id = self._ids[n]
        if topic.cancel(id) == "cancelled":
            self._cancels += 1
            self._fired["cancel"] += 1
            self._cancelled[n] = len(self._lines())

    def _signal_others(self) -> None:
        """Signal the keys that nobody has signalled. A second signal would repair an error."""
        for key in sorted({key for n in range(self._sent) for key in keys_of(self._stem, n)}):
            if not self._ask("EXISTS", EventKeys(self._client._prefix, key.encode()).event):
                self._client.signal(key, "last")
                self._fired["last signal"] += 1

    # --- what is seen ----------------------------------------------------------------------------

    def _ask(self, *words: Any) -> Any:
        return self._client._transport.raw_command("test", *words)

    def _stats(self) -> list[dict[str, int]]:
        return [self._client.admin.stats(topic.name) for topic in self._topics]

    def _backlog(self) -> int:
        return sum(stats["records"] for stats in self._stats())

    def _state(self) -> Any:
        left = [
            (n, topic.get(id)) for n, (topic, id) in self._ids.items() if topic.get(id) is not None
        ]
        args = [process.args for process in (*self._dying, *self._signallers)]
        return left[:5], len(left), self._fired, args

    def _is_done(self) -> bool:
        if any(stats["records"] or stats["pending"] for stats in self._stats()):
            return False
        stems = (events_stem(self._client._prefix, index) for index in range(EVENT_SLOTS))
        return not any(self._ask("EXISTS", stem + b"undelivered") for stem in stems)

    def _lines(self) -> list[list[Any]]:
        text = self._log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def _judge(self) -> Found:
        lines, stats = self._lines(), self._stats()
        found = self._judge_deliveries(lines)
        settled, cancelled = (
            sum(each[name] for each in stats) for name in ("settled", "cancelled")
        )
        if (settled, cancelled) != (self._sent - self._cancels, self._cancels):
            found.wrong.append(f"settled {settled}, cancelled {cancelled} of {self._sent}")
        done = {n for word, n, *_ in lines if word == "done"}
        found.wrong.extend(
            f"never done: message {n}"
            for n in range(self._sent)
            if n not in done and n not in self._cancelled
        )
        found.wrong.extend(self._left_keys())
        return found

    def _judge_deliveries(self, lines: list[list[Any]]) -> Found:
        """Judge what the processes have logged so far."""
        found = Found(self._sent, Counter(), [], self._fired)
        found.wrong.extend(judge(lines, found.counts))
        found.wrong.extend(
            f"message {n} begins after its cancel"
            for n, at in self._cancelled.items()
            if any(line[:2] == ["begin", n] for line in lines[at:])
        )
        return found

    def _left_keys(self) -> Iterator[str]:
        """Find waits and registrations that are left in Redis."""
        for topic in self._topics:
            for keys in (SlotKeys("rmq", topic.name, n) for n in range(SLOTS_MAX)):
                fields = self._ask("HMGET", keys.slot, "waited", "suspended", "large", "steps")
                left = [*self._ask("HKEYS", keys.bodies), *(each for each in fields if each)]
                if any(each != b"0" for each in left):
                    yield f"left in {keys.slot!r}: {left[:5]}"
        for key in {key for n in range(self._sent) for key in keys_of(self._stem, n)}:
            if self._ask("EXISTS", EventKeys(self._client._prefix, key.encode()).waiters):
                yield f"a waiter is left: {key}"


def judge(lines: list[list[Any]], counts: Counter[str] | None = None) -> list[str]:
    """Return what contradicts the promise in the events of a log, and count its parts."""
    counts = Counter[str]() if counts is None else counts
    wrong: list[str] = []
    events: dict[str, set[tuple[Any, int]]] = defaultdict(set)
    for n, deliveries in sorted(_deliveries(lines).items()):
        wrong += _judge_message(n, deliveries, counts)
        for each in deliveries:
            for key, (body, timed_out, at_ms) in each.events.items():
                if not timed_out:
                    events[key].add((body, at_ms))
    return wrong + list(_judge_signals(lines, events, counts))


def _judge_message(n: int, deliveries: list[Delivery], counts: Counter[str]) -> Iterator[str]:
    if deliveries[0].events:
        yield f"events without a wait: message {n}: {deliveries[0]}"
    for before, after in pairwise(deliveries):
        told = f"message {n}: {before}, then {after}"
        new = {key for key, event in after.events.items() if before.events.get(key) != event}
        lost = set(before.events) - set(after.events)
        awaited = {before.wait[0]} if before.wait else set()
        is_same = after.attempt == before.attempt
        if after.fence == before.fence or (is_same and not awaited):
            yield f"doubled: {told}"
        elif lost or new - awaited:
            yield f"another event: {told}"
        elif is_same and not new:
            yield f"no event: {told}"
        elif new and before.wait:
            key, limit_s, since = before.wait
            _, timed_out, at_ms = after.events[key]
            counts["timed out" if timed_out else "event"] += 1
            if timed_out and at_ms / 1000 < since + limit_s - EARLY_S:
                yield f"timed out early: {told}"
        else:
            counts["retry"] += 1


def _judge_signals(
    lines: list[list[Any]], events: dict[str, set[tuple[Any, int]]], counts: Counter[str]
) -> Iterator[str]:
    stored: dict[str, list[Any]] = defaultdict(list)
    for word, *rest in lines:
        if word == "signal":
            key, body, answer = rest[4:7]
            counts[answer] += 1
            if answer == "stored":
                stored[key].append(body)
    for key, bodies in stored.items():
        if len(bodies) > 1:
            yield f"stored twice: {key}: {bodies}"
    for key, found in events.items():
        got = {body for body, _ in found}
        if len(found) > 1 or (stored[key] and got != set(stored[key])):
            yield f"other bodies: {key}: {found}, stored {stored[key]}"


def _deliveries(lines: list[list[Any]]) -> dict[int, list[Delivery]]:
    """Return the deliveries of each message in their order."""
    waits = {(line[1], line[2]): (line[5], line[6], line[4]) for line in lines if line[0] == "wait"}
    found: dict[int, list[Delivery]] = defaultdict(list)
    for word, n, fence, attempt, _, *rest in lines:
        if word == "begin":
            events = {key: tuple(event) for key, event in rest[0].items()}
            found[n].append(Delivery(fence, attempt, events, waits.get((n, fence))))
    for deliveries in found.values():
        deliveries.sort(key=lambda each: each.fence)
    return found


def played(kind: str, folder: Path, stem: str, rng: random.Random, **options: Any) -> Played:
    """Play a storm, and insist that each message has continued once for each wait."""
    with opened(kind) as place:
        found = Storm(place, folder, stem, rng, **options).run()
    told = f"{kind}: {found.sent} messages, {dict(found.counts)}; {dict(found.fired)}"
    insist(not found.wrong, (told, found.wrong[:5]))
    return Played(told, Counter({"death": found.fired["dropped"]}))
