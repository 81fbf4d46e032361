"""Runtime limits: which runs of a handler have exceeded their max_runtime."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from rmq.core.delivery import DeliveryData
from rmq.worker.disposition import Overrun


class RuntimeLimits:
    """The limits of running deliveries, by the monotonic clock.

    Args:
        overdue: deliveries that are settled as failed although their runs go on; added to here.
    """

    def __init__(self, overdue: set[DeliveryData]) -> None:
        self.running: dict[DeliveryData, tuple[float, float]] = {}  # end, max_runtime in seconds
        self._overdue = overdue
        self._lock = threading.Lock()  # a run ends in time or late, not both
        self._rest: dict[DeliveryData, Sequence[DeliveryData]] = {}

    def begin(self, delivery: DeliveryData, until: float, max_runtime_s: float) -> None:
        """Note until when a delivery may run."""
        self.running[delivery] = until, max_runtime_s

    def wait_behind(self, delivery: DeliveryData, rest: Sequence[DeliveryData]) -> None:
        """Note the deliveries that wait behind a running one, in order."""
        self._rest[delivery] = rest

    def end(self, delivery: DeliveryData) -> None:
        """Forget a delivery that runs no longer."""
        if self.running:
            with self._lock:
                self.running.pop(delivery, None)
        if self._rest:
            self._rest.pop(delivery, None)

    def first_end(self) -> float:
        """Return when the first running delivery exceeds its limit; infinity if none has one."""
        return min((until for until, _ in list(self.running.values())), default=float("inf"))

    def take_overdue(self, now: float) -> Iterator[Overrun]:
        """Return the runs that are too long, each once."""
        for delivery, (until, max_runtime_s) in list(self.running.items()):
            if now < until:
                continue
            with self._lock:
                if delivery not in self.running:
                    continue  # it has ended just now
                self._overdue.add(delivery)
                rest = self._rest.pop(delivery, ())
                del self.running[delivery]
            yield Overrun(delivery, max_runtime_s, rest)
