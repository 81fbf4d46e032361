"""Read the bodies of messages from an object store, and remove the bodies after the ack."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rmq.errors import DecodeError, RMQError
from rmq.kernel.consumer import settle
from rmq.kernel.consumer.settle import Lease, Leases, Settling
from rmq.kernel.core import codec, failure, object_store
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.object_store import Reference
from rmq.kernel.delivery.inner_delivery import InnerDelivery, SharedLeases
from rmq.kernel.topic import tombstones
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, InBackground, InThread

REMOVE_S = 0.5  # time between two removals of acked bodies
READ_BYTES = 64 * 1024 * 1024  # bodies of one batch; a single body may be larger
Reasons = list[tuple[Lease, bytes]]


def read(
    context: TopicContext, shared: SharedLeases | None, deliveries: list[InnerDelivery]
) -> Flow[tuple[list[InnerDelivery], Reasons]]:
    """Read the bodies of deliveries from the object store.

    If a body cannot be read, its message is given back as failed. The bodies of a batch have a
    limit in bytes. The first delivery above the limit and all later deliveries are released, so
    that the messages stay in order.

    Returns:
        Deliveries with their bodies. Also the leases of messages that cannot be decoded, with the
            reasons.
    """
    within = _within(deliveries)
    kept, excess = deliveries[:within], deliveries[within:]
    offloaded = [delivery for delivery in kept if type(delivery.body) is Reference]
    references = [delivery.body for delivery in offloaded]
    reading = partial(object_store.read_all, references, codec.Offloaded.limit)
    objects = (yield InThread(reading)) if references else []
    failed, unreadable = Reasons(), Reasons()
    for delivery, data in zip(offloaded, objects, strict=True):
        try:
            if isinstance(data, DecodeError):
                raise data
            delivery.body = codec.decode_object(data)
        except DecodeError as error:
            reason = failure.encode(error, failure.this_worker())
            (failed if error is data else unreadable).append((_lease(delivery), reason))
    if excess:
        leases, places = Leases.of(map(_lease, excess)), [d.queue_position() for d in excess]
        yield from _settle(settle.release(context, leases, places, 0), shared, leases)
    if failed:
        leases = Leases.of([lease for lease, _ in failed])
        reasons = [reason for _, reason in failed]
        yield from _settle(settle.nack(context, leases, reasons, None), shared, leases)
    out = {lease.id for lease, _ in failed + unreadable}
    return [delivery for delivery in kept if delivery.raw_id not in out], unreadable


def _within(deliveries: Sequence[InnerDelivery]) -> int:
    size = 0
    for at, delivery in enumerate(deliveries):
        if type(delivery.body) is Reference:
            if size and size + delivery.body.size > READ_BYTES:
                return at
            size += delivery.body.size
    return len(deliveries)


def _lease(delivery: InnerDelivery) -> Lease:
    return Lease(delivery.origin.keys.index, delivery.raw_id, delivery.score)


def _settle(settling: Settling[str], shared: SharedLeases | None, leases: Leases) -> Flow[None]:
    """Settle deliveries, and ignore errors.

    After an error, the messages go back to the queue when their leases expire.
    """
    try:
        yield from settling.run()
    except RMQError:
        if shared is not None:
            for slot in set(leases.slots):
                shared.retire(slot)


class Removal:
    """Removes bodies from the object store after a consumer has acked their messages.

    Attributes:
        slots: Slots from which the consumer received offloaded bodies.
    """

    def __init__(self) -> None:
        self.slots: dict[bytes, SlotKeys] = {}
        self._is_planned = False

    def plan(self) -> Flow[None]:
        """Schedule the removal of the bodies of acked messages.

        The removal includes all messages that are acked before it runs.
        """
        if not self._is_planned:
            self._is_planned = True
            yield InBackground(REMOVE_S, self.run)

    def run(self) -> Flow[None]:
        """Remove the bodies of all messages that were acked in the slots of this object."""
        self._is_planned = False
        for keys in list(self.slots.values()):
            yield from tombstones.remove_objects(keys)
