"""Renewal: claims in the ledger live on while their handlers run.

A thread for a plain engine, a task for an async one, whose connections belong to their event loop.
All claims that are held are renewed together. A delivery that has lost its lease is left out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from rmq.delivery import DeliveryData
from rmq.ledger.rows import Row

log = logging.getLogger("rmq")

TICK_S = 0.2  # how often it looks whether a claim is due; the shortest hold is 1 s
IDLE_S = 10.0  # the thread ends when nothing was held for so long
MOST = 500  # rows in one UPDATE

Batch = tuple[list[Row], int]


class Held:
    """A claim that is held.

    Attributes:
        due: when to renew it next, by the monotonic clock.
    """

    __slots__ = ("due", "hold_ms", "one", "row")

    def __init__(self, one: DeliveryData, row: Row, hold_ms: int) -> None:
        self.one = one
        self.row = row
        self.hold_ms = hold_ms
        self.put_off()

    def put_off(self) -> None:
        """It was renewed, or has failed to be: again in a third of its life."""
        self.due = time.monotonic() + self.hold_ms / 3000


class _Renewing:
    """What is held, and which of it is due."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, one: DeliveryData, row: Row, hold_ms: int) -> Iterator[None]:
        """Renew a claim within."""
        held = Held(one, row, hold_ms)
        with self._lock:
            self._held[id(held)] = held
        try:
            self._start()
            yield
        finally:
            with self._lock:
                del self._held[id(held)]

    def _start(self) -> None:
        raise NotImplementedError

    def _batches(self) -> list[Batch]:
        """Rows to renew, by topic and life, if one of them is due."""
        with self._lock:
            held = list(self._held.values())
        groups: dict[tuple[str, int], list[Held]] = {}
        for one in held:
            if not one.one.lost:
                groups.setdefault((one.row.topic, one.hold_ms), []).append(one)
        now, found = time.monotonic(), []
        for (_, hold_ms), some in groups.items():
            if any(one.due <= now for one in some):
                for one in some:
                    one.put_off()
                rows = [one.row for one in some]
                found += [(rows[at : at + MOST], hold_ms) for at in range(0, len(rows), MOST)]
        return found


def _told(rows: list[Row]) -> None:
    log.warning(
        "ledger: %d claims of %s could not be renewed; what is not renewed before it expires "
        "may be run again",
        len(rows),
        rows[0].topic,
        exc_info=True,
    )


class ThreadRenewing(_Renewing):
    """Renewal in a daemon thread, which runs while something is held.

    Args:
        renew: renews rows; called in that thread.
    """

    def __init__(self, renew: Callable[[list[Row], int], None]) -> None:
        super().__init__()
        self._renew = renew
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
            for rows, hold_ms in self._batches():
                try:
                    self._renew(rows, hold_ms)
                except Exception:
                    _told(rows)
            with self._lock:
                if self._held:
                    busy = time.monotonic()
                elif time.monotonic() - busy > IDLE_S:
                    self._thread = None  # under the lock, so that the next claim starts another
                    return


class TaskRenewing(_Renewing):
    """Renewal in a task of the running event loop, which runs while something is held.

    Args:
        renew: renews rows.
    """

    def __init__(self, renew: Callable[[list[Row], int], Awaitable[None]]) -> None:
        super().__init__()
        self._renew = renew
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
                for rows, hold_ms in self._batches():
                    try:
                        await self._renew(rows, hold_ms)
                    except Exception:
                        _told(rows)
        finally:
            self._task = None  # it keeps its loop alive
