"""Keep the state of an interceptor for each delivery whose handler is running.

An interceptor keeps its state between `before_handle` and `after_handle` in a context variable.
Spans and log records made inside the handler find this state. They also find it in threads and
tasks that the handler starts with its context. The variable is reset when the run ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

from rmq.kernel.core.metrics import lateness_s
from rmq.kernel.core.record import TIMED
from rmq.kernel.delivery.delivery import DeliveryData, inner_of

T = TypeVar("T")


class Run:
    """A run of a handler, for one delivery or a batch.

    Attributes:
        first: Delivery, or the first delivery of a batch.
        topic: Name of the topic.
        size: Number of deliveries.
        note: State that the interceptor keeps for the run.
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
    """The current runs of handlers, for one interceptor.

    The type variable T is the type of the interceptor's state for a delivery.
    """

    def __init__(self, name: str) -> None:
        self._now: ContextVar[Run | None] = ContextVar(name, default=None)

    @property
    def now(self) -> Run | None:
        """The run of the handler that called this code, or None outside of a handler."""
        return self._now.get()

    def begin(self, delivery: DeliveryData, state: T) -> Run | None:
        """Record that a handler starts.

        Return the run for the first delivery of a batch, and None for the other deliveries.
        """
        run, where, fresh = self._now.get(), _where(), None
        if run is None or not run.open or run.where != where:
            # A thread or task that a handler started inherits the run of that handler. If the new
            # thread or task runs another handler, it needs a run of its own.
            run = fresh = Run(delivery, where)
            run.token = self._now.set(run)
        run.open[id(delivery)] = delivery, state
        run.size += 1
        return fresh

    def end(self, delivery: DeliveryData) -> tuple[T | None, Run | None]:
        """Record that a handler has ended.

        Return the state for the delivery. Also return the run if this was its last delivery.
        """
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
    """Return how late the handler of a delivery starts, in seconds. Return None for a retry.

    The time is measured from the due time, by this machine's clock. If a message was due when it
    was sent, the time in its id is used instead. If a message was snoozed or redriven, its first
    due time is used.

    The result is None if the id was derived from a dedup key, because such an id contains no time.
    """
    if delivery.attempt != 1:
        return None
    entry, due = inner_of(delivery).record, 0
    if entry[0] & TIMED:
        due = int.from_bytes(entry[8:14], "big")
    made = delivery.id.made_at
    if made is None and not due:
        return None
    made_ms = 0 if made is None else int(made.timestamp() * 1000)
    return lateness_s(1, due, made_ms, time.time() * 1000)
