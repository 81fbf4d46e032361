"""What a consumer does with offloaded bodies: read those of a batch, remove what it has acked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rmq.errors import DecodeError
from rmq.kernel.consumer.settle import Lease
from rmq.kernel.core import codec, failure, offloading
from rmq.kernel.core.delivery import HeldDelivery
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import tombstones
from rmq.kernel.transport.steps import Flow, InBackground, InThread

REMOVE_S = 0.5  # a consumer removes what it has acked once in so long
Reasons = list[tuple[Lease, bytes]]


def read(deliveries: Sequence[HeldDelivery]) -> Flow[tuple[Reasons, Reasons]]:
    """Read the bodies of deliveries that have references instead.

    Returns:
        The leases of those whose object cannot be had, and of those that cannot be decoded, with
        the reason.
    """
    references = [delivery.body for delivery in deliveries]
    objects = yield InThread(partial(offloading.read_all, references, codec.Offloaded.limit))
    failed, unreadable = Reasons(), Reasons()
    for delivery, data in zip(deliveries, objects, strict=True):
        try:
            if isinstance(data, DecodeError):
                raise data
            delivery.body = codec.decode_object(data)
        except DecodeError as error:
            lease = Lease(delivery.origin.keys.index, delivery.raw_id, delivery.score)
            reason = failure.encode(error, failure.this_worker())
            (failed if error is data else unreadable).append((lease, reason))
    return failed, unreadable


class Removal:
    """What a consumer removes: objects of the slots that have given it offloaded bodies."""

    def __init__(self) -> None:
        self._slots: dict[bytes, SlotKeys] = {}
        self._is_planned = False

    def note(self, keys: SlotKeys) -> None:
        """Take note of a slot that has given an offloaded body."""
        self._slots[keys.slot] = keys

    def plan(self) -> Flow[None]:
        """Remove, a little later, what has been acked by then."""
        if self._slots and not self._is_planned:
            self._is_planned = True
            yield InBackground(REMOVE_S, self.run)

    def run(self) -> Flow[None]:
        """Remove the objects of all tombstones of these slots."""
        self._is_planned = False
        for keys in list(self._slots.values()):
            yield from tombstones.take(keys)
