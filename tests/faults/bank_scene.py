"""A bank with its queues, its tellers in processes of their own, and its books."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

import rmq
from tests.databases import Database
from tests.faults import bank
from tests.faults.bank import Transfer
from tests.faults.bank_books import Books, audit
from tests.faults.process import Process
from tests.faults.storm import Hurry, seeded as seeded
from tests.faults.worker_account import events
from tests.faults.worker_scene import PATIENCE_S, WAITING
from tests.patience import wait_for
from tests.servers import Server

LEASE_S = 2.0  # those who live keep it, also on a machine that is busy
SLOW_POLL_S = 0.3  # what is asked is not cheap
RETRY = rmq.Exponential(base=0.2, cap=2.0, jitter=0.5)  # 17 attempts outlast a server's restart

Plan = Sequence[dict[str, Any]]


def fault(step: str, what: str = "kill", after: int = 1, **more: Any) -> dict[str, Any]:
    """A fault that a teller does to itself."""
    return {"step": step, "what": what, "after": after, **more}


class Teller(Process):
    """A teller's process."""

    def __init__(self, scene: Bank, plan: Plan, task: dict[str, Any]) -> None:
        errors = scene.folder / f"err-{len(scene.tellers)}"
        told = [f"{one['what']} {one['step']}" for one in plan]
        super().__init__("tests.faults.bank_child", task, errors, told)

    def is_stopped(self) -> bool:
        """Whether it stands still."""
        with suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        return False

    def stops(self) -> None:
        """Wait until it has stopped itself."""
        wait_for(self.is_stopped, lambda: f"{self.plan}: {self.stderr_text()}", PATIENCE_S)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


class Bank:
    """A bank, with a topic for each way to keep a transfer once (see `bank_child`)."""

    def __init__(
        self, server: Server, database: Database, name: str, folder: Path, ways: Sequence[str],
        lease: float = LEASE_S, slots: int = 1,
    ) -> None:  # fmt: skip
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.server = server
        self.database = database
        self.hurry = Hurry(folder / "hurry")
        self.tellers: list[Teller] = []
        self.ordered: list[Transfer] = []
        self.engine = database.engine(pool_pre_ping=True)
        bank.create(self.engine)
        self.client = rmq.Client(server.url, retry_for=30)
        self.topics = {way: self._topic(f"{name}-{n}", lease, slots) for n, way in enumerate(ways)}

    def _topic(self, name: str, lease: float, slots: int) -> rmq.Topic:
        # No dedup window: what is sent again after its ack is a message again.
        made = self.client.topic(name, slots=slots, lease=lease, retry=RETRY, dedup_window=0)
        made.open()
        return made

    def close(self) -> None:
        for teller in self.tellers:
            teller.close()
        self.client.close()

    # --- what is done ----------------------------------------------------------------------------

    def teller(
        self, plan: Plan = (), *, together: bool = False, concurrency: int = 1,
        mutants: Sequence[str] = (), slow_s: float = 0.0,
    ) -> Teller:  # fmt: skip
        """Start a teller, who serves all topics."""
        task = {
            "url": self.server.url, "database": self.database.url(),
            "topics": {topic.name: way for way, topic in self.topics.items()},
            "plan": list(plan), "together": together, "concurrency": concurrency,
            "mutants": list(mutants), "slow_s": slow_s,
            "faults": str(self.folder / "faults"), "begins": str(self.folder / "begins"),
            "hurry": str(self.hurry.path),
        }  # fmt: skip
        made = Teller(self, plan, task)
        self.tellers.append(made)
        return made

    def order(self, some: list[Transfer]) -> None:
        """Note transfers that are to be done."""
        bank.order(self.engine, some)
        self.ordered += some

    def send(self, some: Sequence[Transfer] | None = None) -> None:
        """Send a transfer on each topic: those given, or new ones, whose accounts nobody shares."""
        if some is None:
            places = range(0, 2 * len(self.topics), 2)
            some = [
                Transfer(way, place, place + 1, 100 + place)
                for way, place in zip(self.topics, places, strict=True)
            ]
            self.order(list(some))
        for one, topic in zip(some, self.topics.values(), strict=True):
            topic.send(one._asdict())

    def forget_claims(self) -> int:
        """Delete all claims of the topics, as somebody with a redis-cli may; how many."""
        with self.server.raw() as redis:
            keys = [
                key
                for topic in self.topics.values()
                for key in redis.scan_iter(f"rmq:{{{topic.name}_*}}:claim:*")
            ]
            return int(redis.delete(*keys)) if keys else 0

    # --- what is seen ----------------------------------------------------------------------------

    def begun(self, of: Teller | None = None) -> Counter[str]:
        """Return how often handlers began on each key."""
        found = events(self.folder / "begins")
        return Counter(one["key"] for one in found if of is None or one["pid"] == of.pid)

    def begins(self, ways: set[str], times: int = 1, of: Teller | None = None) -> None:
        """Wait until handlers, or those of one teller, have begun so often on all of these."""
        wait_for(
            lambda: all(self.begun(of)[way] >= times for way in ways),
            lambda: f"{ways} begun: {self.begun()}, {self.stderr_text()}", PATIENCE_S,
        )  # fmt: skip

    def applies(self, ways: set[str]) -> None:
        """Wait until a transfer of each of these is applied, its transaction at its end."""
        wait_for(
            lambda: all(self.books().applied[way] for way in ways),
            lambda: f"{ways} applied: {self.books().applied}, {self.stderr_text()}", PATIENCE_S,
            SLOW_POLL_S,
        )  # fmt: skip

    def fired(self) -> Counter[str]:
        """The faults that tellers did to themselves."""
        return Counter(str(one["name"]) for one in events(self.folder / "faults"))

    def left(self) -> int:
        """Return how many messages are unsettled."""
        found = [self.client.admin.stats(topic.name) for topic in self.topics.values()]
        return sum(stats[name] for stats in found for name in WAITING)

    def dead(self) -> int:
        """Return how many messages are dead."""
        return sum(self.client.admin.stats(one.name)["dead"] for one in self.topics.values())

    def stderr_text(self) -> str:
        """Return the stderr of the tellers."""
        return "\n".join(one.stderr_text() for one in self.tellers)

    def drained(self) -> None:
        """Wait until nothing is left to do, and let the tellers that live come to their end."""
        wait_for(
            lambda: not self.left(), lambda: f"{self.left()} left, {self.stderr_text()}",
            PATIENCE_S, SLOW_POLL_S,
        )  # fmt: skip
        for one in self.tellers:
            if not one.is_gone():
                one.ends()

    def planned(self) -> Counter[str]:
        """The faults that tellers were to do to themselves."""
        return Counter(name for one in self.tellers for name in one.plan)

    def books(self, more: Counter[str] | None = None, dropped: Counter[str] | None = None) -> Books:
        """Audit it. `more`: what else was done to it; `dropped`: what was given up."""
        return audit(
            self.engine, self.ordered, left=self.left(), dead=self.dead(),
            fired=self.fired() + (more or Counter()), planned=self.planned(),
            dropped=dropped or Counter(),
        )  # fmt: skip

    def times(self) -> dict[str, int]:
        """Return how often the transfer of each rung was applied."""
        applied = self.books().applied
        return {way: applied[way] for way in self.topics}


@contextmanager
def opened(
    server: Server, database: Database, name: str, folder: Path, ways: Sequence[str],
    lease: float = LEASE_S, slots: int = 1,
) -> Iterator[Bank]:  # fmt: skip
    """A bank that is closed at the end."""
    made = Bank(server, database, name, folder, ways, lease, slots)
    try:
        yield made
    finally:
        made.close()
