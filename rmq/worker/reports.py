"""What hands report, sorted by kind: the crew carries out each kind in one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from rmq.delivery import DeliveryData
from rmq.worker.runner import Halt, Overrun, Ruling


class Reports:
    """Reports of one turn. What is in `overdue` was given back before, when its time was over."""

    def __init__(
        self,
        items: Iterable[Any],
        overdue: set[DeliveryData],
        overran: Callable[[Overrun], Ruling],
    ) -> None:
        self.acks: list[DeliveryData] = []
        self.others: list[tuple[DeliveryData, Ruling]] = []
        self.halts: list[Halt] = []
        self.late: list[DeliveryData] = []
        self.awaited: list[threading.Event] = []  # set when all of this is carried out
        for item in items:
            if isinstance(item, DeliveryData):
                if overdue and item in overdue:
                    overdue.discard(item)
                else:
                    self.acks.append(item)
            elif isinstance(item, Halt):
                self.halts.append(item)
            elif isinstance(item, threading.Event):
                self.awaited.append(item)
            elif isinstance(item, Overrun):
                self.late.append(item.one)
                self.others.append((item.one, overran(item)))
            elif item[0] in overdue:
                overdue.discard(item[0])
            else:
                self.others.append(item)
