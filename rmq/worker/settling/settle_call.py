"""Deliveries that a settler settles by one verb, over as many tries as Redis needs."""

from __future__ import annotations

from rmq.errors import RMQError
from rmq.kernel.consumer.flows import Verb
from rmq.kernel.core.delivery import LOST, OPEN, HeldDelivery
from rmq.worker.handled_topic import PAUSE_MOST_S, PAUSE_S

ASIDE_PAUSE_MOST_S = 0.5  # a replica takes over within seconds


class SettleCall:
    """Deliveries that are settled by one verb.

    Args:
        verb: Name of the verb.
        deliveries: Deliveries to settle.
        flow: Settles a list of deliveries, and returns those whose leases were lost.
        is_aside: Whether the call waits in its own thread for the master of its slots.

    Attributes:
        left: Deliveries that are not known to be settled.
        lost: Deliveries whose leases were lost when the verb reached Redis.
        outage: The last error of an outage of Redis; None: no outage.
    """

    def __init__(
        self, verb: str, deliveries: list[HeldDelivery], flow: Verb, is_aside: bool
    ) -> None:
        self.verb = verb
        self.deliveries = deliveries
        self.flow = flow
        self.is_aside = is_aside
        self.left = deliveries
        self.lost: list[HeldDelivery] = []
        self.outage: RMQError | None = None
        self._pause_s = PAUSE_S

    def drop_settled(self) -> None:
        """Keep the deliveries that still need the verb.

        A delivery that a late reply showed as settled still has to be reported by its verb.
        """
        self.left = [each for each in self.left if each.state == OPEN or each.unconfirmed]

    def split_off_open(self) -> list[HeldDelivery]:
        """Remove and return the deliveries that are open; the verb has settled the others."""
        is_open = {each for each in self.left if each.state == OPEN or each.unconfirmed}
        split_off = [each for each in self.left if each in is_open]
        self.deliveries = [each for each in self.deliveries if each not in is_open]
        self.left = [each for each in self.left if each not in is_open]
        self.lost = [each for each in self.left if each.state == LOST]
        return split_off

    def next_pause_s(self) -> float:
        """Return the pause before the next try; each is twice as long as the last."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, ASIDE_PAUSE_MOST_S if self.is_aside else PAUSE_MOST_S)
        return pause_s
