"""Reports of ended runs, and the error that stops a topic at present."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from rmq.core import failure
from rmq.core.delivery import DeliveryData
from rmq.errors import RMQError
from rmq.worker.disposition import DONE_BEFORE, Disposition, Halt, Overrun

log = logging.getLogger("rmq")


class ErrorState:
    """The error that stops a topic at present. A new kind of error is logged once."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.error: RMQError | None = None

    def note(self, error: Exception) -> RMQError:
        """Store an error, and log it if it is of another kind than the one before."""
        known = error if isinstance(error, RMQError) else RMQError(failure.summary(error))
        if self.error is None or type(self.error) is not type(known):
            log.error(
                "topic %r cannot go on, and is tried again: %s", self._topic, failure.text_of(error)
            )
            if not isinstance(error, RMQError):
                log.exception("unexpected")
        self.error = known
        return known

    def clear(self, error: RMQError | None = None) -> None:
        """Forget the error. `error`: only if it is still this one."""
        if error is None or self.error is error:
            self.error = None


class ReportBatch:
    """The reports of one turn, sorted by kind.

    A delivery in `overdue` was settled when its run exceeded `max_runtime`; the report of the end
    of that run is dropped.
    """

    def __init__(
        self,
        items: Iterable[Any],
        overdue: set[DeliveryData],
        disposition_of_overrun: Callable[[Overrun], Disposition],
    ) -> None:
        self.acks: list[DeliveryData] = []
        self.duplicates = 0  # acks of deliveries whose work had been done before
        self.others: list[tuple[DeliveryData, Disposition]] = []
        self.flushed: list[threading.Event] = []  # set when all reports are carried out
        self.halts: list[Halt] = []
        self.overran: list[DeliveryData] = []
        for item in items:
            if isinstance(item, DeliveryData):
                if overdue and item in overdue:
                    overdue.discard(item)
                else:
                    self.acks.append(item)
            elif isinstance(item, Halt):
                self.halts.append(item)
            elif isinstance(item, threading.Event):
                self.flushed.append(item)
            elif isinstance(item, Overrun):
                self.overran.append(item.delivery)
                failed = (item.delivery, disposition_of_overrun(item))
                if item.rest:
                    self.halts.append(Halt(failed, list(item.rest)))
                else:
                    self.others.append(failed)
            elif item[0] in overdue:
                overdue.discard(item[0])
            elif item[1] is DONE_BEFORE:
                self.acks.append(item[0])
                self.duplicates += 1
            else:
                self.others.append(item)


def deliveries_of(item: Any) -> list[DeliveryData]:
    """Return the deliveries that a report is about."""
    if isinstance(item, DeliveryData):
        return [item]
    if isinstance(item, Halt):
        return item.rest + ([item.failed[0]] if item.failed is not None else [])
    if isinstance(item, Overrun):
        return [item.delivery, *item.rest]
    return [] if isinstance(item, threading.Event) else [item[0]]
