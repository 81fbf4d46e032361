"""A soak: producers and consumers as processes, an embedded Redis, and faults by a plan.

It only writes a history; `bench.soak.checker` judges the history.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import rmq
from bench.soak import faults
from bench.soak.child import Task
from bench.soak.history import Recorder
from bench.soak.server import Server, wait_for

TOPIC = "soak"
MAX_RETRIES = 5
MAX_DELIVERIES = MAX_RETRIES + 1
STOP_S = 30.0  # time for a process to settle its messages
HELD = ("priority", "retries", "later", "in_flight")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """The options of a soak.

    Attributes:
        faults: Keys of `faults.FAULTS`.
        seconds: Time in which faults happen, s; the drain follows.
        seed: Seed of the plan and of the messages.
        history: File to append to.
        producers: Number of sending processes.
        consumers: Number of receiving processes.
        rate: Sends per second of all producers together.
        lease: Lease, s.
        slots: Slots of the topic.
        every: Mean time between two faults, s.
        work: Duration of a handler, s.
        control: Name of a process's deliberate mistake, or "no-aof", or "".
    """

    faults: tuple[str, ...]
    seconds: float
    seed: int
    history: str
    producers: int = 2
    consumers: int = 3
    rate: float = 200.0
    lease: float = 2.0
    slots: int = 1
    every: float = 4.0
    work: float = 0.001
    control: str = ""


class SoakError(rmq.RMQError):
    """A part of the soak itself failed: a process ended without being killed."""


class Child:
    """A process of a soak; its stderr goes to a file."""

    def __init__(self, task: Task, directory: Path) -> None:
        self.task = task
        self._errors = directory / f"{task.name}.stderr"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.soak.child", json.dumps(asdict(task))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C reaches only the parent, which ends the child
            )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until it is ready to start its work.

        Raises:
            SoakError: It has ended.
        """
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self._process.wait()
            self.check()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def check(self) -> None:
        """Raise a SoakError if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise SoakError(f"{self.task.name} ended with {code}: {self._error_text()}")

    def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL if it takes too long.

        Raises:
            SoakError: It ended with an error.
        """
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        code = self._process.poll()
        self.kill()
        # A process that was just restarted after a kill may die of the SIGTERM.
        if code not in (0, -signal.SIGTERM):
            raise SoakError(
                f"{self.task.name} did not end well after a SIGTERM ({code}): {self._error_text()}"
            )

    def _error_text(self) -> str:
        return self._errors.read_text(errors="replace").strip()[-500:] or "it said nothing"


class Scene:
    """The processes and the server of a running soak; faults act on it."""

    def __init__(self, options: Options, server: Server, directory: Path) -> None:
        self.options = options
        self.server = server
        self.recorder = Recorder(options.history)
        self._directory = directory
        self._consumers_made = 0
        self.producers: list[Child] = []
        self.consumers: list[Child] = []

    def start(self) -> None:
        """Start the producers and the consumers."""
        for number in range(self.options.producers):
            self.producers.append(self._child("producer", f"producer-{number}"))
        for _ in range(self.options.consumers):
            self.consumers.append(self._consumer())
        for child in (*self.producers, *self.consumers):
            child.wait_until_ready()

    def _consumer(self) -> Child:
        self._consumers_made += 1
        return self._child("consumer", f"consumer-{self._consumers_made}")

    def _child(self, role: str, name: str) -> Child:
        options = self.options
        task = Task(
            role, self.server.url, options.history, TOPIC, name, options.seed,
            options.rate / options.producers, options.lease, options.work, options.control,
            os.getpid(),
        )  # fmt: skip
        return Child(task, self._directory)

    def consumer_at(self, share: float) -> Child:
        """Return the consumer at this share, 0 to 1, of their list."""
        return self.consumers[min(int(share * len(self.consumers)), len(self.consumers) - 1)]

    def replace(self, child: Child) -> None:
        """Start a consumer in place of one that was killed."""
        self.consumers[self.consumers.index(child)] = self._consumer()

    def wait(self, seconds: float) -> None:
        """Wait while the soak runs.

        Raises:
            SoakError: A process has ended.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for child in (*self.producers, *self.consumers):
                child.check()
            time.sleep(min(left, 0.1))

    def kill(self) -> None:
        """Kill all remaining processes."""
        for child in (*self.producers, *self.consumers):
            child.kill()
        self.recorder.close()


def run(options: Options, tell: Tell) -> None:
    """Run a soak and record its history; stops all children and the server before it returns.

    Args:
        options: Options of the soak.
        tell: Function that is called with progress texts for a person.

    Raises:
        EmbeddedError: No server can be started.
        SoakError: A process of the soak failed.
    """
    with _scene(options) as scene:
        scene.recorder.record(
            "ok", "start",
            settings={
                "seed": options.seed, "faults": list(options.faults), "seconds": options.seconds,
                "slots": options.slots, "lease_s": options.lease, "rate": options.rate,
                "max_deliveries": MAX_DELIVERIES, "control": options.control,
            },
        )  # fmt: skip
        with rmq.Client(scene.server.url, timeout=5, retry_for=20) as client:
            client.topic(
                TOPIC, slots=options.slots, lease=options.lease, max_retries=MAX_RETRIES,
                retry="immediate", dedup_window=86_400,
            ).open()  # fmt: skip
            scene.start()
            _play(scene, tell)
            _drain(scene, client, tell)


@contextmanager
def _scene(options: Options) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="rmq-soak-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        server = Server(str(directory / "redis"), aof=options.control != "no-aof")
        try:
            scene = Scene(options, server, directory)
            try:
                yield scene
            finally:
                scene.kill()
        finally:
            server.close()


def _play(scene: Scene, tell: Tell) -> None:
    options = scene.options
    begun = time.monotonic()
    for step in faults.plan(options.seed, options.faults, options.seconds, options.every):
        scene.wait(begun + step.at - time.monotonic())
        if time.monotonic() - begun > options.seconds:
            break  # faults took longer than planned
        tell(step.name)
        faults.inject(step, scene)
    tell("load")
    scene.wait(begun + options.seconds - time.monotonic())


def _drain(scene: Scene, client: rmq.Client, tell: Tell) -> None:
    """End the producers, wait until no message is left, and record the dead letters."""
    tell("drain")
    for child in scene.producers:
        child.stop()
    scene.producers.clear()
    scene.recorder.record("invoke", "drain")
    patience = STOP_S + scene.options.lease * MAX_DELIVERIES
    held: dict[str, int] = {}

    def is_empty() -> bool:
        for child in scene.consumers:
            child.check()
        with suppress(rmq.TopicNotFound, rmq.TopicVanished):  # the control no-aof loses the topic
            stats = client.admin.stats(TOPIC)
            held.update({name: stats[name] for name in HELD})
            return not any(held.values())
        return True

    try:
        wait_for(is_empty, "messages are left", patience, pause=0.1)
    except rmq.Unavailable:
        left = ", ".join(f"{count} {name}" for name, count in held.items() if count)
        scene.recorder.record("fail", "drain", reason=left)
        return
    for child in scene.consumers:
        child.stop()
    scene.consumers.clear()
    with suppress(rmq.TopicNotFound, rmq.TopicVanished):
        _record_dead(scene, client)
    scene.recorder.record("ok", "drain")


def _record_dead(scene: Scene, client: rmq.Client) -> None:
    for letter in client.admin.peek(TOPIC, client.admin.stats(TOPIC)["dead"] or 1, "dead"):
        failure = letter.failure
        scene.recorder.record(
            "ok", "dead", id=str(letter.id), slot=letter.slot,
            reason=failure.reason if failure else "", attempt=failure.deliveries if failure else 0,
        )  # fmt: skip


def end_on_sigterm() -> None:
    """Treat a SIGTERM like Ctrl-C, so that it leaves no process behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
