"""Shared leases as the flows and deliveries of a consumer see them; a worker has the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class SharedLease(Protocol):
    """The lease of all deliveries that this process took of a slot under one number."""

    def is_lost(self) -> bool:
        """Return whether it is gone, or has ended as far as this process knows."""

    def safe_until(self) -> float:
        """Return until when it surely holds, by the monotonic clock."""


class SharedLeases(Protocol):
    """The shared leases of a consumer, by slot."""

    def number(self, slot: int) -> int:
        """Return the number of the lease to take under; 0: open one."""

    def taken(self, slot: int, number: int, since: float, lease_ms: int) -> SharedLease:
        """Note the lease under which a batch was taken by a call that began at `since`."""

    def handed_over(self, slot: int, number: int) -> SharedLease:
        """Return the lease of a batch that was handed over; it may be one that is used no more."""

    def hold(self, deliveries: Iterable[Any]) -> None:
        """Count deliveries that are handed over; their leases are renewed from now on."""

    def forget(self, deliveries: Iterable[Any]) -> None:
        """Count deliveries no longer: they are settled, or lost."""

    def retire(self, slot: int) -> None:
        """Renew the lease of a slot no more: a delivery of it cannot be settled."""
