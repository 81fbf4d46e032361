"""A topic, workers in processes of their own, and what is done to them: the stage of a test."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import rmq
from tests import heartbeats
from tests.faults.process import PATIENCE_S, Process
from tests.faults.worker_account import Account, Event, account, events
from tests.faults.worker_child import Book
from tests.patience import wait_for
from tests.servers import Server

LEASE_S = 1.0  # of those who are to lose it: who is to keep it has two at least
WAITING = ("priority", "retries", "due", "later", "in_flight")
KINDS = ("sync", "async", "ordered")


class Child(Process):
    """A worker process, with its heartbeat."""

    def __init__(self, scene: Scene, task: dict[str, Any]) -> None:
        self.scene = scene
        errors = scene.folder / f"err-{len(scene.children)}"
        super().__init__("tests.faults.worker_child", task, errors, [])
        self._heartbeats: set[psutil.Process] = set()

    def heartbeat(self) -> psutil.Process:
        """Its heartbeat's process, when there is one."""

        def look() -> psutil.Process | None:
            with suppress(psutil.NoSuchProcess):
                for one in psutil.Process(self.pid).children():
                    if "rmq.worker.heartbeat.renewer" in " ".join(one.cmdline()):
                        return one
            return next(filter(alive, heartbeats.forks_of(self.pid)), None)

        found: psutil.Process = wait_for(look, f"a heartbeat of {self.pid}: {self.stderr_text()}")
        self._heartbeats.add(found)
        return found

    def kill(self) -> None:
        """kill -9; its heartbeat has to go too."""
        with suppress(AssertionError):
            self.heartbeat()
        self.scene.note("kill", self.pid)
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not any(map(alive, self._heartbeats)), "the heartbeat is not gone")

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self.heartbeat()
        self.scene.note("stop", self.pid)
        os.kill(self.pid, signal.SIGSTOP)
        wait_for(lambda: psutil.Process(self.pid).status() == "stopped", "it is stopped")

    def go_on(self) -> None:
        """SIGCONT."""
        self.scene.note("cont", self.pid)
        os.kill(self.pid, signal.SIGCONT)

    def term(self) -> None:
        """SIGTERM."""
        self.heartbeat()
        self.scene.note("term", self.pid)
        self.process.terminate()

    def ended(self, within: float = PATIENCE_S) -> int:
        """Its exit code; its heartbeat has to go with it."""
        code = self.process.wait(within)
        self.scene.note("gone", self.pid)
        wait_for(lambda: not any(map(alive, self._heartbeats)), "the heartbeat is not gone")
        return code


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Scene:
    """A topic with its history."""

    def __init__(
        self, server: Server, topic: str, folder: Path, kind: str, *, url: str = "",
        slots: int = 4, lease: float = LEASE_S, retry: str = "immediate", **more: Any,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.log = folder / "history"
        self.url = url or server.url
        self.children: list[Child] = []
        self.sent: list[int] = []
        self.ids: dict[int, rmq.MessageId] = {}
        self.fired = 0
        self._book = Book(str(self.log))
        self.client = rmq.Client(server.url, retry_for=15)
        self.topic = self.client.topic(topic, slots=slots, lease=lease, retry=retry, **more)
        self.topic.open()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.close()
        self.client.close()

    # --- what is done ----------------------------------------------------------------------------

    def note(self, what: str, pid: int = 0, **more: Any) -> None:
        """Write down what is about to be done to a worker."""
        self.fired += what in ("kill", "stop", "term", "heartbeat", "redis")
        self._book.write(what, pid, **more)

    def redis_fault(self, since_ns: int) -> None:
        """Write down that Redis was hurt from then until now."""
        self.fired += 1
        line = {"t": since_ns, "wall": 0, "pid": 0, "e": "redis", "back": time.monotonic_ns()}
        with open(self.log, "ab", buffering=0) as log:
            log.write(json.dumps(line).encode() + b"\n")

    def send(
        self, count: int = 1, do: Iterable[Any] = ("quick",), again: Iterable[Any] = ("quick",),
        pad: int = 0, **options: Any,
    ) -> list[int]:  # fmt: skip
        """Send messages that say what is to be done with them; their numbers."""
        numbers = list(range(len(self.sent), len(self.sent) + count))
        for n in numbers:
            body = {"n": n, "do": list(do), "again": list(again), "pad": "x" * pad}
            self.ids[n] = self.topic.send(body, **options).id
            self.sent.append(n)
        return numbers

    def worker(self, mutant: str = "", again: bool = False, **options: Any) -> Child:
        """Start a worker: options of the handler, and worker=, client= for those."""
        worker = {"grace": 10, **options.pop("worker", {})}
        client = {"retry_for": 5, "timeout": 5, **options.pop("client", {})}
        task = {
            "url": self.url, "topic": self.topic.name, "kind": self.kind, "log": str(self.log),
            "mutant": mutant, "again": again, "handler": options, "worker": worker,
            "client": client,
        }  # fmt: skip
        child = Child(self, task)
        self.children.append(child)
        return child

    # --- what is seen ----------------------------------------------------------------------------

    def events(self, what: str, **about: Any) -> list[Event]:
        """The events of a kind, with these fields."""
        return [
            event for event in events(self.log)
            if event["e"] == what and all(event.get(k) == v for k, v in about.items())
        ]  # fmt: skip

    def seen(self, what: str, count: int = 1, within: float = PATIENCE_S, **about: Any) -> Any:
        """Wait for so many events."""

        def look() -> list[Event]:
            found = self.events(what, **about)
            return found if len(found) >= count else []

        return wait_for(look, lambda: f"{count} x {what} {about}: {self._status()}", within)

    def _status(self) -> str:
        errors = "\n".join(child.stderr_text()[-2000:] for child in self.children)
        return f"{[(e['e'], e.get('n'), e['pid']) for e in events(self.log)][-40:]}\n{errors}"

    def held(self) -> int:
        """Return how many messages wait or are in flight."""
        stats = self.client.admin.stats(self.topic.name)
        return sum(stats[name] for name in WAITING)

    def how_it_stands(self) -> str:
        """Tell what waits and what has happened."""
        return f"{self.kind}: {self.client.admin.stats(self.topic.name)}, {self._status()}"

    def drained(self, within: float = PATIENCE_S) -> None:
        """Wait until nothing is left to do."""
        wait_for(lambda: not self.held(), self.how_it_stands, within)

    def dead(self) -> list[int]:
        """The numbers of the dead letters."""
        found = self.client.admin.peek(self.topic.name, 1000, "dead")
        return sorted(one.body["n"] for one in found)

    def account(self) -> Account:
        """The account so far."""
        return account(events(self.log), self.sent, self.dead(), fired=self.fired)

    def judge(self, what: str, more: str = "") -> Account:
        """Print the account, and insist that it is valid."""
        found = self.account()
        print(f"FIG {what}, {self.kind}: {found}{more and '; '}{more}")
        assert found.state == "valid", (found, found.overlaps, self._status())
        return found


def recovery(event: Event, since: Event) -> float:
    """Seconds from one event to another."""
    return float(event["t"] - since["t"]) / 1e9


@contextmanager
def stages(
    server: Server, topic: str, folder: Path, kinds: Iterable[str] = KINDS, **options: Any
) -> Iterator[list[Scene]]:
    """A scene for each kind, side by side: for what takes its time."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Scene(server, f"{topic}-{kind}", folder / kind, kind, **options))
            for kind in kinds
        ]
