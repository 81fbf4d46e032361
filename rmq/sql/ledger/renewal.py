"""Renewal: claims in the ledger live on while their handlers run.

A thread for a plain engine, a task for an async one, whose connections belong to their event loop.
All claims that are held are renewed together, whether or not the deliveries still have their
leases: a claim ends with its run. Work that is done and could not be marked is marked from here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rmq.errors import ClaimLost
from rmq.sql.ledger import rows
from rmq.sql.ledger.rows import Row

log = logging.getLogger("rmq")

TICK_S = 0.2  # how often it looks whether a claim is due; the shortest hold is 1 s
IDLE_S = 10.0  # the thread ends when nothing was held for so long
MARK_S = 1.0  # between two attempts to mark what is done
MOST = 500  # rows in one UPDATE

Batch = tuple[list[Row], int]


class Held:
    """A claim that is held.

    Attributes:
        due: when to renew it next, by the monotonic clock.
        ttl_ms: of work that is done and not marked yet: how long its row is to live; else None.
        mark_at: when to try to mark it, by the monotonic clock.
    """

    __slots__ = ("due", "hold_ms", "mark_at", "row", "ttl_ms")

    def __init__(self, row: Row, hold_ms: int) -> None:
        self.row = row
        self.hold_ms = hold_ms
        self.ttl_ms: int | None = None
        self.mark_at = 0.0
        self.put_off()

    def put_off(self) -> None:
        """It was renewed, or has failed to be: again in a third of its life."""
        self.due = time.monotonic() + self.hold_ms / 3000

    def mark_later(self, ttl_ms: int) -> None:
        """Keep it beyond its run, until its row is marked as done."""
        self.ttl_ms = ttl_ms
        self.mark_at = time.monotonic() + MARK_S


class _Renewing:
    """The claims that are held, and which of them are due."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, row: Row, hold_ms: int) -> Iterator[Held]:
        """Renew a claim within; and after, if its work could not be marked."""
        held = Held(row, hold_ms)
        with self._lock:
            self._held[id(held)] = held
        try:
            self._start()
            yield held
        finally:
            if held.ttl_ms is None:
                self._drop(held)

    def _drop(self, held: Held) -> None:
        with self._lock:
            self._held.pop(id(held), None)

    def _start(self) -> None:
        raise NotImplementedError

    def _batches(self) -> list[Batch]:
        """Rows to renew, by topic and life, if one of them is due."""
        with self._lock:
            held = list(self._held.values())
        groups: dict[tuple[str, int], list[Held]] = {}
        for one in held:
            groups.setdefault((one.row.topic, one.hold_ms), []).append(one)
        now, found = time.monotonic(), []
        for (_, hold_ms), some in groups.items():
            if any(one.due <= now for one in some):
                for one in some:
                    one.put_off()
                due = [one.row for one in some]
                found += [(due[at : at + MOST], hold_ms) for at in range(0, len(due), MOST)]
        return found

    def _unmarked(self) -> list[Held]:
        """Claims of work that is done, to be marked now."""
        now = time.monotonic()
        with self._lock:
            held = list(self._held.values())
        found = [one for one in held if one.ttl_ms is not None and one.mark_at <= now]
        for one in found:
            one.mark_at = now + MARK_S
        return found

    def _marked(self, held: Held, ours: bool) -> None:
        self._drop(held)
        if not ours:
            told_lost(held.row)


def told_lost(row: Row) -> None:
    """Log that work was done whose claim was gone; repeating it would be worse: no exception."""
    error = ClaimLost(
        f"the claim on key {row.key!r} of {row.topic} ran out, or was deleted, while {row.owner} "
        "worked: another delivery may have done the same work. Give the ledger a longer hold"
    )
    log.error("ledger: %s", error)


def _told(some: list[Row]) -> None:
    log.warning(
        "ledger: %d claims of %s could not be renewed; what is not renewed before it expires "
        "may be run again",
        len(some),
        some[0].topic,
        exc_info=True,
    )


class ThreadRenewing(_Renewing):
    """Renewal in a daemon thread, which runs while something is held.

    Args:
        call: does something to rows in the database; called in that thread.
        let_go: closes its connections; called at the end of the thread.
    """

    def __init__(self, call: Callable[..., Any], let_go: Callable[[], None]) -> None:
        super().__init__()
        self._call = call
        self._let_go = let_go
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="rmq-ledger", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        busy = time.monotonic()
        while True:
            time.sleep(TICK_S)
            for some, hold_ms in self._batches():
                try:
                    self._call(rows.renew, some, hold_ms)
                except Exception:
                    _told(some)
            for held in self._unmarked():
                try:
                    self._marked(held, self._call(rows.mark, held.row, held.ttl_ms))
                except Exception:
                    log.debug("ledger: %s is not marked yet", held.row, exc_info=True)
            with self._lock:
                if self._held:
                    busy = time.monotonic()
                elif time.monotonic() - busy > IDLE_S:
                    self._thread = None  # under the lock, so that the next claim starts another
                    break
        self._let_go()


class TaskRenewing(_Renewing):
    """Renewal in a task of the running event loop, which runs while something is held.

    Args:
        call: does something to rows in the database.
        let_go: closes its connections; awaited at the end of the task.
    """

    def __init__(
        self, call: Callable[..., Awaitable[Any]], let_go: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__()
        self._call = call
        self._let_go = let_go
        self._task: asyncio.Task[None] | None = None

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="rmq-ledger")

    async def _run(self) -> None:
        busy = time.monotonic()
        try:
            while self._held or time.monotonic() - busy < IDLE_S:
                await asyncio.sleep(TICK_S)
                if self._held:
                    busy = time.monotonic()
                for some, hold_ms in self._batches():
                    try:
                        await self._call(rows.renew, some, hold_ms)
                    except Exception:
                        _told(some)
                for held in self._unmarked():
                    try:
                        self._marked(held, await self._call(rows.mark, held.row, held.ttl_ms))
                    except Exception:
                        log.debug("ledger: %s is not marked yet", held.row, exc_info=True)
        finally:
            self._task = None  # it keeps its loop alive
            await self._let_go()
