"""The limits of running deliveries: find the runs that exceed their `max_runtime`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from rmq.kernel.core.delivery import HeldDelivery
from rmq.worker.settling.disposition import Report


class RuntimeLimits:
    """The limits of running deliveries, by the monotonic clock.

    Args:
        overdue: deliveries that are settled as failed although their runs go on; added to here.
    """

    def __init__(self, overdue: set[HeldDelivery]) -> None:
        self.running: dict[HeldDelivery, tuple[float, float]] = {}  # end, max_runtime in seconds
        self._overdue = overdue
        self._lock = threading.Lock()  # a run ends in time or late, not both
        self._rest: dict[HeldDelivery, Sequence[HeldDelivery]] = {}

    def begin(self, delivery: HeldDelivery, until: float, max_runtime_s: float) -> None:
        """Note until when a delivery may run."""
        self.running[delivery] = until, max_runtime_s

    def wait_behind(self, delivery: HeldDelivery, rest: Sequence[HeldDelivery]) -> None:
        """Note the deliveries that wait behind a running one, in order."""
        self._rest[delivery] = rest

    def end(self, delivery: HeldDelivery) -> None:
        """Forget a delivery that runs no longer."""
        if self.running:
            with self._lock:
                self.running.pop(delivery, None)
        if self._rest:
            self._rest.pop(delivery, None)

    def first_end(self) -> float:
        """Return when the first running delivery exceeds its limit; infinity if none has one."""
        return min((until for until, _ in list(self.running.values())), default=float("inf"))

    def take_overdue(self, now: float) -> Iterator[Report]:
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
            yield Report(delivery, rest=rest, overran_s=max_runtime_s)
