"""A producer or a consumer of a soak, as a process: `python -m bench.soak.child TASK`.

It records its calls and their answers. After a SIGTERM it settles its batch and ends; it dies with
its parent. With the name of a control it does one thing wrong:

    settle-first  the consumer acks before it handles
    unfenced-ack  the consumer takes a refused ack for an accepted ack
    new-id        the producer repeats a send under another id
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import rmq
from bench.soak.history import Recorder

PRIORITIES = (20, 500, 90_000)
BATCH = 10
WAIT_S = 0.5  # longest receive, and so the longest delay after a SIGTERM
AGAIN_S = 0.05  # pause before an unanswered call is repeated
LAST_TRIES_S = 20.0  # time for repetitions after a SIGTERM
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """The work of a process; it is passed to the process as JSON.

    Attributes:
        role: "producer" or "consumer".
        url: URL of the proxy.
        history: Path of the history file.
        topic: Name of the topic.
        name: Name of this process in the history.
        seed: Seed of the messages.
        rate: Sends per second.
        lease: Lease, s.
        work: Duration of a handler, s.
        control: Name of its deliberate mistake, or "".
        parent: Process id of the parent that it dies with.
    """

    role: str
    url: str
    history: str
    topic: str
    name: str
    seed: int
    rate: float
    lease: float
    work: float
    control: str
    parent: int


class _Child:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.recorder = Recorder(task.history)
        self.stopping = threading.Event()
        self.stop_at = float("inf")
        retry_for = 0.0 if task.control == "new-id" else 5.0
        self.client = rmq.Client(task.url, timeout=1.0, retry_for=retry_for)
        self.topic = self.client.topic(task.topic)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stop_at = time.monotonic() + LAST_TRIES_S
        self.stopping.set()

    def _may_try(self) -> bool:
        return time.monotonic() < self.stop_at

    def _pause(self) -> None:
        time.sleep(AGAIN_S)


class Producer(_Child):
    """Sends messages, and repeats each send with the same id until it is answered."""

    def run(self) -> None:
        """Send until a SIGTERM comes."""
        rng = random.Random(f"{self.task.seed} {self.task.name}")
        number, next_at = 0, time.monotonic()
        while not self.stopping.is_set():
            self._send(number, rng)
            number += 1
            next_at = max(next_at + 1 / self.task.rate, time.monotonic() - 1)
            self.stopping.wait(max(0.0, next_at - time.monotonic()))

    def _send(self, number: int, rng: random.Random) -> None:
        body: dict[str, Any] = {"producer": self.task.name, "number": number, "pad": rng.random()}
        kind = rng.random()
        if kind < 0.005:
            body["fails"] = 1000  # failing deliveries: more than the topic allows
        elif kind < 0.03:
            body["fails"] = 1
        options: dict[str, Any] = {"priority": rng.choice(PRIORITIES)}
        due = 0
        if rng.random() < 0.15:
            due = int(time.time() * 1000) + rng.randrange(100, 2000)
            options = {"at": datetime.fromtimestamp(due / 1000, UTC)}
        facts = {
            "digest": digest(body), "producer": self.task.name, "number": number, "due": due,
            "priority": options.get("priority", 0),
        }  # fmt: skip
        id: rmq.MessageId | None = None
        while self._may_try():
            try:
                id = id or self.topic.new_id()
            except rmq.RMQError:
                self._pause()
                continue
            self.recorder.record("invoke", "send", id=str(id), **facts)
            try:
                result = self.topic.send(body, id=id, **options)
            except rmq.RMQError as error:
                self.recorder.record("unknown", "send", id=str(id), reason=type(error).__name__)
                if self.task.control == "new-id":
                    id = None
                self._pause()
                continue
            self.recorder.record("ok", "send", id=str(id), slot=result.slot, level=result.durable)
            return


class Consumer(_Child):
    """Receives, handles and settles messages."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.consumer = self.topic.consumer(lease=task.lease)
        self._since = 0  # start of the first unanswered call, monotonic ns

    def run(self) -> None:
        """Work until a SIGTERM comes."""
        while not self.stopping.is_set():
            for step in self._steps(self._receive()):
                step()
        with suppress(rmq.RMQError):  # messages it may have taken return when their lease expires
            self.consumer.close()

    def _receive(self) -> list[rmq.Delivery]:
        self._since = self._since or time.monotonic_ns()
        try:
            deliveries = self.consumer.receive(BATCH, wait=WAIT_S)
        except rmq.RMQError:
            self._pause()
            return []
        for delivery in deliveries:
            self._record_delivery(delivery)
        self._since = 0
        return deliveries

    def _steps(self, deliveries: list[rmq.Delivery]) -> list[Any]:
        handling = [lambda d=delivery: self._handle(d) for delivery in deliveries]
        settling = [lambda d=delivery: self._settle(d) for delivery in deliveries]
        if self.task.control == "settle-first":
            return [*settling, *handling]
        return [step for pair in zip(handling, settling, strict=True) for step in pair]

    def _record_delivery(self, delivery: rmq.Delivery) -> None:
        body = delivery.body
        self.recorder.record(
            "ok", "deliver", id=str(delivery.id), receipt=str(delivery.receipt),
            digest=digest(body), attempt=delivery.attempt, slot=delivery.slot, since=self._since,
            until=int(delivery.deadline.timestamp() * 1000), producer=body["producer"],
            number=body["number"],
        )  # fmt: skip

    @staticmethod
    def _fails(delivery: rmq.Delivery) -> bool:
        return delivery.attempt <= int(delivery.body.get("fails", 0))

    def _handle(self, delivery: rmq.Delivery) -> None:
        time.sleep(self.task.work)
        if not self._fails(delivery):
            self.recorder.record("ok", "handle", id=str(delivery.id))

    def _settle(self, delivery: rmq.Delivery) -> None:
        op = "nack" if self._fails(delivery) else "ack"
        facts = {"id": str(delivery.id), "receipt": str(delivery.receipt)}
        while self._may_try():
            self.recorder.record("invoke", op, **facts)
            try:
                delivery.ack() if op == "ack" else delivery.nack(error="it is to fail")
            except rmq.LeaseLost:
                answer = "ok" if self.task.control == "unfenced-ack" else "fail"
                self.recorder.record(answer, op, **facts)
                return
            except (rmq.AlreadySettled, rmq.TopicVanished) as error:
                self.recorder.record("unknown", op, reason=type(error).__name__, **facts)
                return
            except rmq.RMQError as error:
                self.recorder.record("unknown", op, reason=type(error).__name__, **facts)
                self._pause()
                continue
            self.recorder.record("ok", op, **facts)
            return


def digest(body: Any) -> str:
    """Return a digest of a body."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def die_with(parent: int) -> None:
    """End this process when its parent is gone, even if it is stopped (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run the task in the first argument."""
    task = Task(**json.loads(sys.argv[1]))
    die_with(task.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = Producer(task) if task.role == "producer" else Consumer(task)
    os.write(1, b"ready\n")
    child.run()


if __name__ == "__main__":
    main()
