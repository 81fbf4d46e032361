"""Deliveries that wait until a batch is full, or for the `linger` of their handler."""

from __future__ import annotations

import time

from rmq.kernel.core.delivery import HeldDelivery


class PartialBatch:
    """The deliveries of a handler that are not yet a full batch.

    Args:
        size: Deliveries of a full batch.
        linger_s: How long the first delivery waits for more.
    """

    def __init__(self, size: int, linger_s: float) -> None:
        self._size = size
        self._linger_s = linger_s
        self._waiting: list[HeldDelivery] = []
        self._since = 0.0

    def linger_until(self) -> float:
        """Return until when the deliveries wait for more; infinity: there are none."""
        return self._since + self._linger_s if self._waiting else float("inf")

    def add(self, deliveries: list[HeldDelivery]) -> list[list[HeldDelivery]]:
        """Add deliveries; return the batches that are full, or have waited long enough."""
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += deliveries
        batches = []
        while len(self._waiting) >= self._size:
            batches.append(self._waiting[: self._size])
            self._waiting = self._waiting[self._size :]
        if batches:
            self._since = time.monotonic()  # the rest has just arrived
        if self.linger_until() <= time.monotonic():
            batches.append(self.take_all())
        return batches

    def take_all(self) -> list[HeldDelivery]:
        """Remove and return all deliveries."""
        taken, self._waiting = self._waiting, []
        return taken
