"""Find handlers that have run for longer than their `max_runtime`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.worker.settling.disposition import Report


class RuntimeLimit(NamedTuple):
    """The time limit of one running delivery.

    Attributes:
        until: Monotonic time at which the delivery exceeds its limit.
        max_runtime_s: `max_runtime` of the delivery in seconds.
        rest: The next deliveries of the same ordered batch.
    """

    until: float
    max_runtime_s: float
    rest: Sequence[InnerDelivery]


class RuntimeLimits:
    """The time limits of the running deliveries of one handler.

    Attributes:
        running: Limit of each running delivery.
        overrun: Deliveries beyond their limit. They are settled, although their handlers still run.
    """

    def __init__(self) -> None:
        self.running: dict[InnerDelivery, RuntimeLimit] = {}
        self.overrun: set[InnerDelivery] = set()
        self._lock = threading.Lock()  # a delivery ends in time or too late, never both

    def end(self, delivery: InnerDelivery) -> bool:
        """Remove the limit of a delivery whose handler has ended.

        Return whether the handler ran for longer than the limit.
        """
        with self._lock:
            self.running.pop(delivery, None)
            is_overrun = delivery in self.overrun
            self.overrun.discard(delivery)
            return is_overrun

    def next_limit(self) -> float:
        """Return when the next delivery exceeds its limit, or infinity if there is no limit."""
        return min((limit.until for limit in list(self.running.values())), default=float("inf"))

    def find_overruns(self, now: float) -> Iterator[Report]:
        """Yield a report for each delivery that has exceeded its limit since the last call."""
        for delivery, limit in list(self.running.items()):
            if now < limit.until:
                continue
            with self._lock:
                if delivery not in self.running:
                    continue  # it has ended just now
                self.overrun.add(delivery)  # first, because `end` needs the delivery in one of both
                del self.running[delivery]
            yield Report(delivery, rest=limit.rest, overrun_s=limit.max_runtime_s)
