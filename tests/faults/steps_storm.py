"""A storm of steps: handlers with steps and cursors, while all that they need fails.

Consumers, and workers with handlers in threads and async handlers, kill themselves before and after
each script of a step, and before its function; some stop themselves there for longer than their
lease. They are also killed at any moment. Redis fails as in `follow_ups_storm`, without losing an
answered write. The topic is paused and resized. Deliveries also fail, are given back, or become
dead letters, which are redriven.

At the end, each message must be settled once, and:

- every attempt that gets the value of a step gets the same, and a function has returned it
- a step whose value is stored does not run again in a later attempt, and no page before the cursor
- a step or page is repeated only if the delivery that ran it was interrupted (its process was
  killed, or its lease was lost) before the value was stored: each interruption repeats at most what
  ran at that moment
- with a database, `rmq.ledger.once` has written one row for each step
- no entry is left in Redis, and no slot counts one
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import sqlalchemy as sa

import rmq
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.flow.steps import Command, pipeline
from rmq.kernel.transport.lua.script_loader import plain
from rmq.ledger import metadata
from tests.databases import Database
from tests.faults.follow_ups_storm import Place, opened
from tests.faults.stepper import KINDS, LEASE_S, MOMENTS, PAGES, STEPS, Task, effects
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked

SCRIPTS = ("prepare", "ack")
STOPS = ("function", "store", "cursor")
PROCESSES, AT_ONCE, BACKLOG_MOST, LEAST, END_S = 3, 10, 60, 60, 200.0
STOPPED_S = LEASE_S + 1.0
PAUSE_S = 0.7
Death = tuple[str, int, bool]  # moment, pass, whether the process stops itself


class Event(NamedTuple):
    """A line of the log."""

    word: str
    n: int
    fence: int
    pid: int
    name: str
    value: str


class Found(NamedTuple):
    """What a storm has found.

    Attributes:
        sent: number of messages.
        wrong: what contradicts the promise.
        interrupted: deliveries that were interrupted while a step or a page ran.
        repeats: how often a step or a page ran again.
        stats: counts of the topic at the end.
        fired: the faults.
    """

    sent: int
    wrong: list[str]
    interrupted: int
    repeats: int
    stats: dict[str, int]
    fired: Counter[str]


class Storm:
    """A run.

    Args:
        place: Redis.
        folder: for what processes write.
        name: name of the topic.
        rng: decides.
        broken: a broken variant, as in `Task`.
        database: where steps write rows, with the ledger.
        deaths: where processes end or stop themselves; None: everywhere, early and late.
        others: whether Redis fails, and the topic is paused and resized.
    """

    def __init__(
        self, place: Place, folder: Path, name: str, rng: random.Random, broken: str = "",
        database: Database | None = None, deaths: list[Death] | None = None, others: bool = True,
    ) -> None:  # fmt: skip
        self.place, self.folder, self.rng, self._broken = place, folder, rng, broken
        self._database = database
        if deaths is None:
            moments = (*MOMENTS, *SCRIPTS)
            deaths = [(moment, n, False) for moment in moments for n in (0, rng.randint(1, 9))]
            deaths += [(moment, rng.randint(0, 9), True) for moment in STOPS]
        self._deaths = rng.sample(deaths, len(deaths))
        faults = ["worker"] * 3 + (["redis", "resize", "pause"] * 2 if others else [])
        self._faults = rng.sample(faults, len(faults))
        self._fault_at = self._redrive_at = self._resume_at = 0.0
        self.fired: Counter[str] = Counter()
        self.sent = self._processes = 0
        self._log = folder / "log"
        self._log.touch()
        self._slots = 2
        self._resizing = threading.Thread()
        self._dying: list[Forked] = []
        self._stopping: list[tuple[Forked, float]] = []  # with the time at which it continues
        self._living: list[Forked] = []
        self._killed: set[int] = set()  # pids
        self.client = rmq.Client(place.url, retry_for=30)
        self.topic = self.client.topic(
            name, slots=self._slots, lease=LEASE_S, retry="immediate", max_retries=16,
            dedup_window=0,
        )  # fmt: skip

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        self.topic.open()
        if self._database is not None:
            engine = self._database.engine()
            metadata.create_all(engine)
            effects.metadata.create_all(engine)
        watch = Watch(
            lambda: (self._stats(), self.fired, self._deaths, self._faults,
                     [process.args for process in (*self._dying, *dict(self._stopping))]),
            end_s=END_S,
        )  # fmt: skip
        try:
            while True:
                self._look_at_processes()
                stats = self._stats()
                is_over = not (self._deaths or self._dying or self._stopping or self._faults)
                is_over = is_over and not (self._resizing.is_alive() or self._resume_at)
                is_over = is_over and self.sent >= LEAST
                if not is_over and self.sent - stats["settled"] < BACKLOG_MOST:
                    self._send()
                elif is_over and not stats["records"]:
                    break
                self._redrive(stats)
                self._hurt()
                watch.look(self.sent, self._log.stat().st_size, self.fired.total())
                time.sleep(LOOK_S)
            for process in self._living:
                self._kill(process)
            return self._judge()
        finally:
            for process in (*self._dying, *self._living, *dict(self._stopping)):
                process.kill()
                process.wait()
            self.client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _send(self) -> None:
        self.topic.send_many([rmq.Outgoing(n) for n in range(self.sent, self.sent + AT_ONCE)])
        self.sent += AT_ONCE

    def _redrive(self, stats: dict[str, int]) -> None:
        if stats["dead"] and time.monotonic() > self._redrive_at:
            with suppress(rmq.Unavailable, rmq.OutcomeUnknown):
                self.client.admin.redrive(self.topic.name)
            self._redrive_at = time.monotonic() + 0.5

    def _start(self, moment: str = "", nth: int = 0, stops: bool = False) -> Forked:
        self._processes += 1
        kinds = KINDS if self._database is None else ("thread", "consumer")
        task = Task(
            self.place.url, self.topic.name, self.rng.choice(kinds), moment, nth, stops,
            str(self._log), self._database.url() if self._database else "", self._broken,
        )  # fmt: skip
        errors = self.folder / f"err-{self._processes}"
        with errors.open("wb") as file:
            words = (task.text(), str(errors))
            return Forked("tests.faults.stepper", *words, stderr=file)

    def _look_at_processes(self) -> None:
        dying = list(self._dying)
        self.fired["death"] += bury((*self._living, *dict(self._stopping)), self._dying)
        self._killed |= {process.pid for process in dying if process not in self._dying}
        for process, until in list(self._stopping):
            self._look_at_stopping(process, until)
        while self._deaths and len(self._dying) + len(self._stopping) < PROCESSES - 1:
            moment, nth, stops = self._deaths.pop()
            process = self._start(moment, nth, stops)
            if stops:
                self._stopping.append((process, 0.0))
            else:
                self._dying.append(process)
        busy = bool(self._dying or self._stopping)
        while len(self._living) < (1 if busy else PROCESSES):
            self._living.append(self._start())

    def _look_at_stopping(self, process: Forked, until: float) -> None:
        """Let a process that has stopped itself continue when its leases are over."""
        now = time.monotonic()
        if not until and psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            return
        self._stopping.remove((process, until))
        if not until or now < until:
            self._stopping.append((process, until or now + STOPPED_S))
            return
        os.kill(process.pid, signal.SIGCONT)
        self.fired["stop"] += 1
        self._living.append(process)

    def _kill(self, process: Forked) -> None:
        process.kill()
        process.wait()
        self._killed.add(process.pid)

    def _hurt(self) -> None:
        if self._resume_at and time.monotonic() > self._resume_at:
            self.client.admin.topic_resume(self.topic.name, verb="receive")
            self._resume_at = 0.0
        if not self._faults or time.monotonic() < self._fault_at or self.sent < AT_ONCE * 3:
            return
        fault = self._faults.pop()
        self.fired[getattr(self, f"_hurt_{fault}")() or fault] += 1
        self._fault_at = time.monotonic() + self.rng.uniform(0.2, 1.5)

    def _hurt_worker(self) -> None:
        self._kill(self._living.pop(self.rng.randrange(len(self._living))))

    def _hurt_redis(self) -> str:
        return self.place.fail(self.rng)

    def _hurt_pause(self) -> None:
        self.client.admin.topic_pause(self.topic.name, verb="receive")
        self._resume_at = time.monotonic() + self.rng.uniform(0, PAUSE_S)

    def _hurt_resize(self) -> str:
        if self._resizing.is_alive():
            return "resize again"
        self._slots = 6 - self._slots
        self._resizing = threading.Thread(target=self._resize, args=(self._slots,))
        self._resizing.start()
        return "resize"

    def _resize(self, slots: int) -> None:
        with rmq.Client(self.place.url, retry_for=30) as client:
            client.admin.topic_resize(self.topic.name, slots)

    # --- what is seen ----------------------------------------------------------------------------

    def _stats(self) -> dict[str, int]:
        return self.client.admin.stats(self.topic.name)

    def _events(self) -> list[Event]:
        lines = (line.split() for line in self._log.read_text().splitlines())
        return [
            Event(word, int(n), int(fence), int(pid), name, value)
            for word, n, fence, pid, name, value in lines
        ]

    def _judge(self) -> Found:
        stats, events = self._stats(), self._events()
        wrong = [] if (stats["settled"], stats["dead"]) == (self.sent, 0) else ["not settled once"]
        lost = {(event.n, event.fence) for event in events if event.word == "lost"}
        parts: dict[tuple[int, str], list[Event]] = defaultdict(list)
        for event in events:
            if event.word in ("run", "value"):
                parts[event.n, event.name].append(event)
        names = [f"step-{n}" for n in range(STEPS)] + [f"page-{n}" for n in range(PAGES)]
        repeats, interrupted = 0, set[tuple[int, int]]()
        for n in range(self.sent):
            for name in names:
                mine = parts[n, name]
                runs = sorted(
                    (event for event in mine if event.word == "run"), key=lambda run: run.fence
                )  # a process that was stopped may run a step that a later delivery has done
                values = {event.value for event in mine if event.word == "value"}
                is_whole = len(values) <= 1 and values <= {run.value for run in runs}
                if not is_whole or not runs:
                    wrong.append(f"wrong value: message {n}, {name}: {values}, {len(runs)} runs")
                ended = {event.fence for event in mine if event.word == "value"}
                for run in runs[:-1]:
                    repeats += 1
                    interrupted.add((run.n, run.fence))
                    is_cut = run.pid in self._killed or (run.n, run.fence) in lost
                    if not is_cut or run.fence in ended:
                        wrong.append(f"repeated: message {n}, {name}, delivery {run.fence}")
                wrong += self._late_runs(mine)
        wrong += [f"odd: {event.name}" for event in events if event.word == "odd"]
        wrong += self._left_entries()
        if self._database is not None:
            wrong += self._wrong_rows()
        return Found(self.sent, wrong, len(interrupted), repeats, stats, self.fired)

    def _late_runs(self, events: list[Event]) -> list[str]:
        """Find runs of a part whose value an earlier delivery had."""
        first, late = None, []
        for event in events:
            if event.word == "value" and first is None:
                first = event.fence
            if event.word == "run" and first is not None and event.fence > first:
                late.append(f"run again although it was done: message {event.n}, {event.name}")
        return late

    def _left_entries(self) -> list[str]:
        slots = [SlotKeys("rmq", self.topic.name, n) for n in range(4)]

        def read() -> Any:
            bodies = [Command(plain("HKEYS"), (keys.bodies,), (), list) for keys in slots]
            counts = [
                Command(plain("HMGET"), (keys.slot,), ("steps", "large"), list) for keys in slots
            ]
            return (yield from pipeline([*bodies, *counts]))

        found = self.client._transport.run(read())
        left = [f"an entry is left: {name!r}" for names in found[:4] for name in names]
        return left + [f"a count is left: {counts}" for counts in found[4:] if any(counts)]

    def _wrong_rows(self) -> list[str]:
        assert self._database is not None
        columns = effects.c.n, effects.c.name
        with self._database.engine().connect() as connection:
            rows = Counter(tuple(row) for row in connection.execute(sa.select(*columns)))
        wanted = Counter((n, f"step {number}") for n in range(self.sent) for number in range(STEPS))
        return [f"{times} rows too many: {row}" for row, times in (rows - wanted).items()] + [
            f"no row: {row}" for row in wanted - rows
        ]


def played(
    kind: str, folder: Path, name: str, rng: random.Random, database: Database | None = None
) -> Played:
    """Play a storm, and insist that no step whose value was stored has run again."""
    with opened(kind) as place:
        found = Storm(place, folder, name, rng, database=database).run()
    told = (
        f"{kind}{', ledger' if database else ''}: {found.sent} messages, {found.repeats} repeats "
        f"by {found.interrupted} interrupted deliveries; {dict(found.fired)}"
    )
    insist(not found.wrong, (told, found.stats, found.wrong[:8]))
    return Played(told, Counter())
