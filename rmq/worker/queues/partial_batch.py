"""Collect deliveries until a batch is full, or until the handler's `linger` time has passed."""

from __future__ import annotations

import time

from rmq.kernel.delivery.inner_delivery import InnerDelivery


class PartialBatch:
    """Collects deliveries until a batch is full.

    Args:
        size: Number of deliveries in a full batch.
        linger_s: Maximum number of seconds for which the first delivery waits for more deliveries.
    """

    def __init__(self, size: int, linger_s: float) -> None:
        self._size = size
        self._linger_s = linger_s
        self._waiting: list[InnerDelivery] = []
        self._since = 0.0

    def linger_until(self) -> float:
        """Return when the first delivery has waited long enough, or infinity for no delivery."""
        return self._since + self._linger_s if self._waiting else float("inf")

    def add(self, deliveries: list[InnerDelivery]) -> list[list[InnerDelivery]]:
        """Add deliveries. Return the batches that are full or have waited long enough."""
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += deliveries
        batches = []
        while len(self._waiting) >= self._size:
            batches.append(self._waiting[: self._size])
            self._waiting = self._waiting[self._size :]
        if batches:
            self._since = time.monotonic()  # the remaining deliveries have just arrived
        if self.linger_until() <= time.monotonic():
            batches.append(self.remove_all())
        return batches

    def remove_all(self) -> list[InnerDelivery]:
        """Remove and return all deliveries."""
        waiting, self._waiting = self._waiting, []
        return waiting
