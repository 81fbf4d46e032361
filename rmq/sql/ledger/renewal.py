"""Renew claims in the ledger while their handlers run.

For a plain engine, a thread renews the claims. For an async engine, a task renews the claims,
because the connections of the engine belong to an event loop. One thread or task renews all claims
of a process. It renews a claim until the run of the handler ends, even if the delivery has lost its
lease. If RMQ cannot mark finished work as done, it tries again until the marked row would have
expired.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rmq.errors import ClaimLost
from rmq.kernel.core.generators import Call, Procedure, run, run_async
from rmq.sql.connections import AnyEngine
from rmq.sql.errors import StoreAway, one_line
from rmq.sql.ledger import rows
from rmq.sql.ledger.rows import Row

log = logging.getLogger("rmq")

TICK_S = 0.2  # time between two checks for due claims; the shortest hold is 1 s
IDLE_S = 10.0  # the thread or task ends after this time without a claim
MARK_S = 1.0  # time between two attempts to mark done work
BATCH = 500  # rows in one UPDATE

Batch = tuple[list[Row], int]


class RunningClaim:
    """A claim of a running handler.

    Attributes:
        due: Monotonic time of the next renewal.
        ttl_ms: Time in ms for which the database keeps the row after it is marked as done. None
            until the work is done.
        mark_at: Monotonic time of the next attempt to mark the row.
        mark_until: Monotonic time at which RMQ stops trying to mark the row, because a marked row
            would have expired.
    """

    __slots__ = ("due", "hold_ms", "mark_at", "mark_until", "row", "ttl_ms")

    def __init__(self, row: Row, hold_ms: int) -> None:
        self.row = row
        self.hold_ms = hold_ms
        self.ttl_ms: int | None = None
        self.mark_at = self.mark_until = 0.0
        self.schedule()

    def schedule(self) -> None:
        """Schedule the next renewal. The wait is a third of the claim's lifetime."""
        self.due = time.monotonic() + self.hold_ms / 3000

    def mark_later(self, ttl_ms: int) -> None:
        """Keep the claim of finished work until its row is marked as done.

        RMQ tries to mark the row for at most `ttl_ms`.
        """
        now = time.monotonic()
        self.mark_at = now + MARK_S
        self.mark_until = now + ttl_ms / 1000
        self.ttl_ms = ttl_ms  # last: from now on another thread marks it


class Renewal:
    """Keeps the claims of running handlers, and renews them.

    Args:
        transact: Function that calls another function with a connection of `engine`.
        engine: Engine whose connections RMQ uses only for renewal.
        dispose: Whether to close the connections when no claim remains.
    """

    def __init__(
        self, transact: Callable[..., Procedure[Any]], engine: AnyEngine, dispose: bool
    ) -> None:
        self._transact = transact
        self._engine = engine
        self._dispose = dispose
        self._claims: dict[int, RunningClaim] = {}
        self._lock = threading.Lock()

    @contextmanager
    def renewing(self, row: Row, hold_ms: int) -> Iterator[RunningClaim]:
        """Renew a claim while the `with` block runs.

        If RMQ cannot mark the finished work as done, it continues to renew the claim after the
        block.
        """
        claim = RunningClaim(row, hold_ms)
        with self._lock:
            self._claims[id(claim)] = claim
        try:
            self._start()
            yield claim
        finally:
            if claim.ttl_ms is None:
                self._drop(claim)

    def _drop(self, claim: RunningClaim) -> None:
        with self._lock:
            self._claims.pop(id(claim), None)

    def _start(self) -> None:
        raise NotImplementedError

    def _due(self) -> list[Batch]:
        """Return the rows to renew now, in batches.

        Each batch has one topic and one lifetime. If a claim must be renewed, the other claims of
        its topic with the same lifetime are renewed at the same time.
        """
        with self._lock:
            claims = list(self._claims.values())
        groups: dict[tuple[str, int], list[RunningClaim]] = {}
        for claim in claims:
            groups.setdefault((claim.row.topic, claim.hold_ms), []).append(claim)
        now, batches = time.monotonic(), []
        for (_, hold_ms), group in groups.items():
            if any(claim.due <= now for claim in group):
                for claim in group:
                    claim.schedule()
                due = [claim.row for claim in group]
                batches += [(due[at : at + BATCH], hold_ms) for at in range(0, len(due), BATCH)]
        return batches

    def _unmarked(self) -> list[RunningClaim]:
        now = time.monotonic()
        with self._lock:
            claims = list(self._claims.values())
        unmarked = [claim for claim in claims if claim.ttl_ms is not None and claim.mark_at <= now]
        for claim in unmarked:
            claim.mark_at = now + MARK_S
        return unmarked

    def _round(self) -> Procedure[None]:
        for batch, hold_ms in self._due():
            try:
                yield from self._transact(rows.renew, batch, hold_ms, engine=self._engine)
            except Exception as error:
                _log_not_renewed(batch, error)
        for claim in self._unmarked():
            try:
                is_ours = yield from self._transact(
                    rows.mark, claim.row, claim.ttl_ms, engine=self._engine
                )
            except Exception as error:
                log.debug("ledger: %s is not marked yet", claim.row, exc_info=True)
                if time.monotonic() >= claim.mark_until:
                    self._drop(claim)
                    _log_not_marked(claim.row, error)
                continue
            self._drop(claim)
            if not is_ours:
                log_claim_lost(claim.row)

    def _close(self) -> Procedure[None]:
        if self._dispose:
            yield Call(self._engine.dispose)


def log_claim_lost(row: Row) -> None:
    """Log that a claim was lost before its work was done.

    The function raises no error, because RMQ would repeat the work after an error.
    """
    error = ClaimLost(
        f"the claim on key {row.key!r} of {row.topic} expired, or was deleted, while {row.owner} "
        "worked: another delivery may have done the same work. Give the ledger a longer hold"
    )
    log.error("ledger: %s", error)


def _log_not_renewed(batch: list[Row], error: Exception) -> None:
    log.warning(
        "ledger: %d claims of %s could not be renewed; what is not renewed before it expires "
        "may be run again",
        len(batch),
        batch[0].topic,
        exc_info=not isinstance(error, StoreAway),  # `Outage` has logged why
    )


def _log_not_marked(row: Row, error: Exception) -> None:
    cause = error.__cause__ if isinstance(error, StoreAway) and error.__cause__ else error
    log.error(
        "ledger: the work on key %r of %s is done and could not be marked as done; another "
        "delivery may do it again: %s",
        row.key, row.topic, one_line(cause),
    )  # fmt: skip


class ThreadRenewal(Renewal):
    """Renews claims in a daemon thread.

    The thread ends when there was no claim for IDLE_S seconds.
    """

    def __init__(
        self, transact: Callable[..., Procedure[Any]], engine: AnyEngine, dispose: bool
    ) -> None:
        super().__init__(transact, engine, dispose)
        self._thread: threading.Thread | None = None
        self._ending = False  # whether the thread must end as soon as no handler has a claim
        self._wake = threading.Event()

    def _start(self) -> None:
        with self._lock:
            self._ending = False
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="rmq-ledger", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Try once more to mark finished work as done, and end the thread."""
        with self._lock:
            self._ending, thread = True, self._thread
            claims = list(self._claims.values())
            for claim in claims:
                claim.mark_at = 0.0
        self._wake.set()
        is_needed = any(claim.ttl_ms is None for claim in claims)
        if thread is not None and not is_needed and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        busy = time.monotonic()
        while True:
            self._wake.wait(TICK_S)
            self._wake.clear()
            ending = self._ending  # read before the round, which then tries every mark
            run(self._round())
            if ending:
                self._drop_unmarked()
            with self._lock:
                if self._claims:
                    busy = time.monotonic()
                elif self._ending or time.monotonic() - busy > IDLE_S:
                    self._thread = None  # under the lock, so that the next claim starts another
                    break
        run(self._close())

    def _drop_unmarked(self) -> None:
        with self._lock:
            unmarked = [claim for claim in self._claims.values() if claim.ttl_ms is not None]
            for claim in unmarked:
                del self._claims[id(claim)]
        for claim in unmarked:
            _log_not_marked(claim.row, ConnectionError("the ledger was closed"))


class TaskRenewal(Renewal):
    """Renews claims in a task of the running event loop. The task ends when no claim remains."""

    _task: asyncio.Task[None] | None = None

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="rmq-ledger")

    async def _run(self) -> None:
        busy = time.monotonic()
        try:
            while self._claims or time.monotonic() - busy < IDLE_S:
                await asyncio.sleep(TICK_S)
                if self._claims:
                    busy = time.monotonic()
                await run_async(self._round())
        finally:
            self._task = None  # a task keeps its loop alive
            await run_async(self._close())
