"""A storm of cancels: messages are cancelled by another process while all that they need fails.

Workers with handlers in threads and async handlers kill themselves before their scripts, and are
killed at any moment. Redis fails as in `follow_ups_storm`, without losing an answered write. The
topic is resized. Meanwhile this process cancels messages: waiting ones by their ids, and running
ones by their ids or by the receipts of their deliveries.

At the end, each message must be settled or cancelled, once, and:

- a message that nobody cancelled has had its effect
- a message whose cancel has answered `cancelled` does not begin after the answer
- a delivery whose cancellation was requested by its receipt is the last one of its message
- there are as many settled messages as messages with an effect, or fewer; and as many cancelled
  messages as messages without an effect, or more
- no request is left in Redis
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import rmq
from rmq.kernel.transport.flow.steps import Command, pipeline
from rmq.kernel.transport.lua.script_loader import plain
from tests.faults.cancelled_worker import KINDS, Task
from tests.faults.follow_ups_storm import Place, opened
from tests.faults.storm import LOOK_S, Played, Watch, bury, insist
from tests.forkserver import Forked

STEPS = ("prepare", "ack", "release")
PROCESSES, AT_ONCE, BACKLOG_MOST, LEASE_S, END_S = 3, 12, 150, 2, 150.0
WORK_S = (0.0, 0.05, 0.3, 1.0)


class Cancel(NamedTuple):
    """A cancel and its answer.

    Attributes:
        status: the answer; empty if the call has failed.
        fence: of the delivery that it named, or 0.
        begun: how many lines the log had when the answer was there.
    """

    status: str
    fence: int
    begun: int


class Event(NamedTuple):
    """A line of the log."""

    word: str
    n: int
    fence: int
    receipt: str


class Found(NamedTuple):
    """What a storm has found.

    Attributes:
        sent: number of messages.
        wrong: what contradicts the promise.
        stats: counts of the topic at the end.
        statuses: answers of cancels.
        fired: the faults.
    """

    sent: int
    wrong: list[str]
    stats: dict[str, int]
    statuses: Counter[str]
    fired: Counter[str]


class Storm:
    """A run.

    Args:
        place: Redis.
        folder: for what processes write.
        name: name of the topic.
        rng: decides.
        broken: a broken variant, as in `Task`.
        others: whether Redis fails and the topic is resized.
    """

    def __init__(
        self, place: Place, folder: Path, name: str, rng: random.Random, broken: str = "",
        others: bool = True,
    ) -> None:  # fmt: skip
        self.place, self.folder, self.rng, self._broken = place, folder, rng, broken
        deaths = [(step, nth) for step in STEPS for nth in (0, rng.randint(1, 6))]
        self._deaths = rng.sample(deaths, len(deaths))
        faults = ["worker"] * 3 + (["redis", "resize"] * 2 if others else [])
        self._faults = rng.sample(faults, len(faults))
        self._fault_at = 0.0
        self.fired: Counter[str] = Counter()
        self.sent = 0
        self._ids: dict[int, rmq.MessageId] = {}
        self._log = folder / "log"
        self._log.touch()
        self._read = 0  # bytes of the log
        self._events: list[Event] = []
        self._running: dict[int, Event] = {}
        self._cancels: dict[int, list[Cancel]] = defaultdict(list)
        self._processes = 0
        self._slots = 2
        self._resizing = threading.Thread()
        self._dying: list[Forked] = []
        self._living: list[Forked] = []
        self.client = rmq.Client(place.url, retry_for=30)
        self.topic = self.client.topic(
            name,
            slots=self._slots,
            lease=LEASE_S,
            retry="immediate",
            max_retries=16,
            dedup_window=0,
        )

    def run(self) -> Found:
        """Play it to its end, and judge it."""
        self.topic.open()
        watch = Watch(
            lambda: (self._stats(), self.fired, self._deaths, self._faults,
                     [process.args for process in self._dying]),
            end_s=END_S,
        )  # fmt: skip
        try:
            while True:
                self._look_at_processes()
                self._look_at_log()
                is_over = not self._deaths and not self._dying and not self._faults
                is_over = is_over and not self._resizing.is_alive()
                if not is_over:
                    self._send()
                    self._cancel_some()
                elif not self._stats()["records"]:
                    break
                self._hurt()
                watch.look(self.sent, len(self._events), self.fired.total())
                time.sleep(LOOK_S)
            for process in self._living:
                process.kill()
                process.wait()
            self._look_at_log()
            return self._judge()
        finally:
            for process in (*self._dying, *self._living):
                process.kill()
                process.wait()
            self.client.close()

    # --- what is done ----------------------------------------------------------------------------

    def _send(self) -> None:
        if len(self._ids) - len({e.n for e in self._events if e.word != "begin"}) > BACKLOG_MOST:
            return
        numbers = range(self.sent, self.sent + AT_ONCE)
        bodies = [[n, self.rng.choice(WORK_S)] for n in numbers]
        results = self.topic.send_many([rmq.Outgoing(body) for body in bodies])
        for n, result in zip(numbers, results, strict=True):
            self._ids[n] = result.id
        self.sent += AT_ONCE

    def _cancel_some(self) -> None:
        """Cancel some running messages, by receipt or id, and a waiting one."""
        running = [event for n, event in self._running.items() if not self._cancels[n]]
        for event in self.rng.sample(running, min(4, len(running))):
            if self.rng.random() < 0.6:
                self._cancel(event.n, rmq.Receipt.parse(event.receipt), event.fence)
            else:
                self._cancel(event.n, self._ids[event.n])
        n = self.rng.randrange(self.sent)
        if not self._cancels[n]:
            self._cancel(n, self._ids[n])

    def _cancel(self, n: int, which: Any, fence: int = 0) -> None:
        try:
            status: str = self.topic.cancel(which, running=True)
        except rmq.RMQError as error:
            insist(isinstance(error, rmq.OutcomeUnknown | rmq.Unavailable), repr(error))
            status = ""
        self._look_at_log()
        self._cancels[n].append(Cancel(status, fence, len(self._events)))

    def _start(self, command: str = "", nth: int = 0) -> Forked:
        self._processes += 1
        # Only a handler that hears of its cancellation gives its delivery back.
        kind = self.rng.choice(KINDS[:2] if command == "release" else KINDS)
        task = Task(
            self.place.url, self.topic.name, kind, command, nth, str(self._log), self._broken
        )
        errors = self.folder / f"err-{self._processes}"
        with errors.open("wb") as file:
            words = (task.text(), str(errors))
            return Forked("tests.faults.cancelled_worker", *words, stderr=file)

    def _look_at_processes(self) -> None:
        self.fired["death"] += bury(self._living, self._dying)
        while self._deaths and len(self._dying) < PROCESSES - 1:
            self._dying.append(self._start(*self._deaths.pop()))
        while len(self._living) < (1 if self._dying else PROCESSES):
            self._living.append(self._start())

    def _hurt(self) -> None:
        if not self._faults or time.monotonic() < self._fault_at or not self._running:
            return
        fault = self._faults.pop()
        self.fired[getattr(self, f"_hurt_{fault}")() or fault] += 1
        self._fault_at = time.monotonic() + self.rng.uniform(0.2, 1.5)

    def _hurt_worker(self) -> None:
        """Kill a worker right after a cancel, so that it may not have heard of the request."""
        victim = self._living.pop(self.rng.randrange(len(self._living)))
        self._cancel_some()
        victim.kill()
        victim.wait()

    def _hurt_redis(self) -> str:
        return self.place.fail(self.rng)

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

    def _look_at_log(self) -> None:
        with self._log.open() as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for line in whole.splitlines():
            word, n, fence, receipt = line.split()
            event = Event(word, int(n), int(fence), receipt)
            self._events.append(event)
            if word == "begin":
                self._running[event.n] = event
            else:
                self._running.pop(event.n, None)

    def _stats(self) -> dict[str, int]:
        return self.client.admin.stats(self.topic.name)

    def _judge(self) -> Found:
        stats, wrong = self._stats(), []
        begun: dict[int, list[tuple[int, int]]] = defaultdict(list)  # place in the log, fence
        done = {event.n for event in self._events if event.word == "effect"}
        for place, event in enumerate(self._events):
            if event.word == "begin":
                begun[event.n].append((place, event.fence))
        tried = {n for n, cancels in self._cancels.items() if cancels}
        if (stats["settled"] + stats["cancelled"], stats["dead"]) != (self.sent, 0):
            wrong.append("not each message has ended once")
        if not stats["settled"] <= len(done) or not stats["cancelled"] >= self.sent - len(done):
            wrong.append(f"effects do not agree with outcomes: {len(done)} messages had one")
        if stats["cancelled"] > len(tried):
            wrong.append(f"more are cancelled than the {len(tried)} that were asked for")
        wrong += [f"lost: {n}" for n in range(self.sent) if n not in done and n not in tried]
        for n, cancels in self._cancels.items():
            for cancel in cancels:
                late = [place for place, _ in begun[n] if place >= cancel.begun]
                if cancel.status == "cancelled" and late:
                    wrong.append(f"begins after it was deleted: {n}")
                is_last = cancel.fence and cancel.status in ("requested", "already_requested")
                if is_last and any(fence > cancel.fence for _, fence in begun[n]):
                    wrong.append(f"delivered again after the request: {n}")
        wrong += [f"a request is left: {field!r}" for field in self._left_requests()]
        statuses = Counter(cancel.status for each in self._cancels.values() for cancel in each)
        return Found(self.sent, wrong, stats, statuses, self.fired)

    def _left_requests(self) -> list[bytes]:
        def read() -> Any:
            calls = [Command(plain("HKEYS"), (keys.slot,), (), list) for keys in slots]
            return (yield from pipeline(calls))

        slots = self.topic._context.slots
        fields = [field for each in self.client._transport.run(read()) for field in each]
        return [field for field in fields if field[:1] == b"~" or field == b"cancelling"]


def played(kind: str, folder: Path, name: str, rng: random.Random) -> Played:
    """Play a storm, and insist that each message has ended once, and as it was cancelled."""
    with opened(kind) as place:
        found = Storm(place, folder, name, rng).run()
    told = f"{kind}: {found.sent} messages, {dict(found.statuses)}; {dict(found.fired)}"
    insist(not found.wrong, (told, found.stats, found.wrong[:8]))
    return Played(told, Counter())
