"""Which deliveries a thread or task is running a handler for, and what is noted about each.

An interceptor that has to know between `before_handle` and `after_handle` keeps it here: in a
context variable, so that spans and log records made inside the handler find it, those of threads
and tasks that it starts with its context among them. It is put back as it was when the run ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

from rmq.core.delivery import DeliveryData
from rmq.core.record import TIMED
from rmq.core.telemetry import lateness_s

T = TypeVar("T")


class Run:
    """One run of a handler, for one delivery or a batch.

    Attributes:
        first: the delivery; of a batch, the first one.
        topic: its name.
        size: how many deliveries.
        note: for the interceptor.
    """

    __slots__ = ("first", "note", "open", "size", "token", "topic", "where")

    def __init__(self, first: DeliveryData, where: object) -> None:
        self.first = first
        self.topic = first.topic
        self.size = 0
        self.note: Any = None
        self.open: dict[int, tuple[DeliveryData, Any]] = {}
        self.where = where
        self.token: Token[Run | None] | None = None


class Runs(Generic[T]):
    """The runs that one interceptor knows of; T is what it notes about each delivery."""

    def __init__(self, name: str) -> None:
        self._now: ContextVar[Run | None] = ContextVar(name, default=None)

    @property
    def now(self) -> Run | None:
        """The run that the caller is inside of."""
        return self._now.get()

    def begin(self, delivery: DeliveryData, state: T) -> Run | None:
        """A handler is about to run for this delivery. Returns the run where it is the first."""
        run, where, fresh = self._now.get(), _where(), None
        if run is None or not run.open or run.where != where:
            # One that was inherited, by a thread or task that a handler started, is not ours.
            run = fresh = Run(delivery, where)
            run.token = self._now.set(run)
        run.open[id(delivery)] = delivery, state
        run.size += 1
        return fresh

    def end(self, delivery: DeliveryData) -> tuple[T | None, Run | None]:
        """It has run. Returns what was noted, and the run where this was the last delivery."""
        run = self._now.get()
        if run is None or id(delivery) not in run.open:
            return None, None
        state: T = run.open.pop(id(delivery))[1]
        if run.open:
            return state, None
        assert run.token is not None
        self._now.reset(run.token)
        return state, run


def _where() -> tuple[int, object]:
    try:
        task: object = asyncio.current_task()
    except RuntimeError:
        task = None  # a thread without a loop
    return threading.get_ident(), task


def late_s(delivery: DeliveryData) -> float | None:
    """How late the handler starts that is about to run, seconds; None for a retry.

    From when the message was due; of one sent to be taken at once, from when its id was made, and
    None where the id tells no time: it was derived from a dedup key. By this machine's clock. A
    message that was snoozed or redriven counts from its first due time.
    """
    if delivery.attempt != 1:
        return None
    entry, due = delivery._record, 0
    if entry[0] & TIMED:
        due = int.from_bytes(entry[8:14], "big")
    made = delivery.id.made_at
    if made is None and not due:
        return None
    made_ms = 0 if made is None else int(made.timestamp() * 1000)
    return lateness_s(1, due, made_ms, time.time() * 1000)
