"""A shop on real servers, its producers, relays and consumers in processes of their own."""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import rmq
from rmq.sql.outbox.tables import CONFIRMED, stubs
from tests.databases import Database
from tests.faults import outbox_shop
from tests.faults.aof import lives
from tests.faults.outbox_books import Auditor, Books, Event
from tests.faults.process import Process
from tests.faults.storm import Hurry
from tests.faults.worker_scene import WAITING
from tests.patience import wait_for
from tests.servers import Server

PATIENCE_S = 120.0  # for what takes seconds when nobody else is on this machine
HANDS = 2


class Child(Process):
    """A process of the shop. `step`: where it is to kill itself, or ""."""

    def __init__(self, scene: Shop, role: str, step: str, task: dict[str, Any]) -> None:
        self.role = role
        self.step = step
        errors = scene.folder / f"err-{len(scene.children)}"
        super().__init__("tests.faults.outbox_child", task, errors, [step] if step else [])

    def is_gone(self) -> bool:
        """Whether it has ended: killed by itself where it should, or at its end."""
        code = self.process.poll()
        assert code in (None, 0) or (self.step and code == -signal.SIGKILL), (
            code,
            self.stderr_text(),
        )
        return code is not None


class Shop:
    """Two topics: of one messages are worked on; the other waits until somebody is told to."""

    def __init__(self, server: Server, database: Database, name: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.server = server
        self.database = database
        self.work, self.held = f"{name}-work", f"{name}-held"
        self.hurry, self.enough = Hurry(folder / "hurry"), folder / "enough"
        self.children: list[Child] = []
        self.done: Counter[str] = Counter()
        self._events: list[Event] = []
        self._read = 0
        self._numbers = itertools.count()
        self.engine = database.engine(pool_pre_ping=True)
        outbox_shop.create(self.engine)
        self.box = outbox_shop.outbox()
        self.open()

    def open(self) -> None:
        """Create the topics, as a program does that starts."""
        self.client = rmq.Client(self.server.url, retry_for=30)
        for name in (self.work, self.held):
            self.client.topic(name, **outbox_shop.SETTINGS).open()

    def close(self) -> None:
        for child in self.children:
            child.close()
        self.client.close()

    # --- what is done ----------------------------------------------------------------------------

    def child(
        self, role: str, step: str = "", after: int = 1, mutants: Sequence[str] = (), **more: Any
    ) -> Child:
        """Start a process; `after`: the pass of the step at which it dies."""
        task = {
            "role": role, "step": step, "after": after, "mutants": list(mutants),
            "url": self.server.url, "database": self.database.url(),
            "work": self.work, "held": self.held, "history": str(self.folder / "history"),
            "hurry": str(self.hurry.path), "enough": str(self.enough),
            "topics": [self.work], "concurrency": HANDS, **more,
        }  # fmt: skip
        made = Child(self, role, step, task)
        self.children.append(made)
        return made

    def place(self, kind: str, count: int, topic: str = "", **options: Any) -> list[str]:
        """Place orders of a kind, in one transaction; their stubs."""
        topic = topic or self.work
        keys = [f"{kind}-{next(self._numbers)}" for _ in range(count)]
        with self.engine.begin() as connection:
            return [
                outbox_shop.place(connection, self.box, topic, key, kind, **options) for key in keys
            ]

    def flush(self) -> None:
        """FLUSHALL, then open the topics as a program does that starts.

        A relay may create a topic at the same time. If the FLUSHALL comes between the topic's hash
        and its slots, the relay stores messages in slots whose stamp no hash has any more. RMQ does
        not open such a topic: an operator has to delete what is left, which is done here.
        """
        for is_last in (False, False, True):
            with self.server.raw() as redis:
                redis.flushall()
            self.done["flush"] += 1
            self.client.close()
            try:
                return self.open()
            except rmq.TopicVanished as error:
                if is_last or "another life" not in str(error):
                    raise

    # --- what is seen ----------------------------------------------------------------------------

    def history(self) -> list[Event]:
        """Return the events that the processes have written."""
        path = self.folder / "history"
        with path.open("ab+") as file:
            file.seek(self._read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        self._events += map(json.loads, text.splitlines())
        return self._events

    def fired(self) -> Counter[str]:
        """The faults that processes did to themselves, and those that were done to them."""
        found = Counter(str(one["name"]) for one in self.history() if one["e"] == "fault")
        return found + self.done

    def ready(self, children: Sequence[Child]) -> bool:
        """Whether these relays have opened their topics."""
        pids = {one["pid"] for one in self.history() if one["e"] == "ready"}
        return pids >= {one.pid for one in children}

    def looked(self, stubs: Sequence[str], times: int) -> bool:
        """Whether the resend has asked for each of these so often."""
        found = Counter(id for one in self.history() if one["e"] == "looked" for id in one["at"])
        return all(found[stub] >= times for stub in stubs)

    def placed(self) -> int:
        """Return how many orders are committed."""
        return self._count(sa.select(sa.func.count()).select_from(outbox_shop.orders))

    def unconfirmed(self, topic: str = "%") -> int:
        """Return how many stubs are not confirmed."""
        query = sa.select(sa.func.count()).select_from(stubs)
        return self._count(query.where(stubs.c.status != CONFIRMED, stubs.c.topic.like(topic)))

    def _count(self, query: Any) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(query) or 0)

    def left(self) -> int:
        """Return how many messages are unsettled."""
        found = [self.client.admin.stats(name) for name in (self.work, self.held)]
        return sum(stats[name] for stats in found for name in WAITING)

    def dead(self) -> int:
        """Return how many messages are dead."""
        return sum(self.client.admin.stats(name)["dead"] for name in (self.work, self.held))

    def stderr_text(self) -> str:
        """Return the stderr of the children."""
        return "\n".join(one.stderr_text()[-600:] for one in self.children)

    def is_drained(self) -> bool:
        """Whether nothing is left to do."""
        for one in self.children:
            one.is_gone()  # it would tell of an end that nobody planned
        return not self.unconfirmed() and not self.left()

    def drained(self, within_s: float = PATIENCE_S) -> None:
        """Wait until nothing is left to do, and let those that live come to their end."""
        wait_for(
            self.is_drained,
            lambda: f"{self.unconfirmed()} open, {self.left()} left, {self.stderr_text()}",
            within_s,
        )
        self.end()

    def end(self) -> None:
        """Let those that live come to their end."""
        for one in self.children:
            if not one.is_gone():
                one.ends()

    def planned(self) -> Counter[str]:
        """The faults that processes were to do to themselves."""
        return Counter(f"kill {one.step}" for one in self.children if one.step)

    def books(self, dropped: Counter[str] | None = None) -> Books:
        """Audit it. `dropped`: faults that were given up."""
        found = lives(Path(self.server.dir), (self.work, self.held))
        auditor = Auditor(self.engine, self.history(), found)
        planned = self.planned() + self.done - (dropped or Counter())
        return auditor.books(planned, self.done, self.left(), self.dead())


@contextmanager
def opened(server: Server, database: Database, name: str, folder: Path) -> Iterator[Shop]:
    """A shop that is closed at the end."""
    made = Shop(server, database, name, folder)
    try:
        yield made
    finally:
        made.close()
