"""Find deliveries that a program wants to cancel.

A request to cancel is published on the wake-up channel, and stored in a hash of the slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.inner_delivery import OPEN, InnerDelivery
from rmq.kernel.transport.flow.steps import (
    Command,
    Flow,
    Pipeline,
    is_master_down,
    raise_first_error,
)
from rmq.kernel.transport.lua.script_loader import plain

SIGNAL = b"cancel"  # first word of a published request


def requested_by(
    payload: bytes, slots: Sequence[SlotKeys], deliveries: Mapping[bytes, InnerDelivery]
) -> InnerDelivery | None:
    """Return the unsettled delivery that a published request wants to cancel, or None.

    Args:
        payload: Request from the wake-up channel. The script lua/cancel.lua publishes it.
        slots: Slots of the topic.
        deliveries: Unsettled deliveries by message id.
    """
    words = payload.split(b" ", 3)
    if words[0] != SIGNAL or len(words) != 4:
        return None
    try:
        delivery = deliveries.get(slots[int(words[1])].id_of(words[3]))
        is_meant = delivery is not None and _is_for(delivery, words[2])
    except (ValueError, IndexError):
        return None
    return delivery if is_meant else None


def find_requested(
    deliveries: Iterable[InnerDelivery],
) -> Flow[tuple[list[InnerDelivery], bool]]:
    """Read the requests to cancel from Redis, and return the deliveries to cancel.

    In a cluster, a slot is skipped if its master cannot be reached. The messages of the other slots
    must not wait for this master.

    Returns:
        Deliveries to cancel, and whether all slots were read.
    """
    by_slot: dict[bytes, list[InnerDelivery]] = {}
    for delivery in deliveries:
        by_slot.setdefault(delivery.origin.keys.slot, []).append(delivery)
    pages = [
        (slot, given[at : at + BATCH_MAX])
        for slot, given in by_slot.items()
        for at in range(0, len(given), BATCH_MAX)
    ]
    calls = [_read_requests(slot, page) for slot, page in pages]
    replies = (yield Pipeline(calls)) if calls else []
    raise_first_error([reply for reply in replies if not is_master_down(reply)])
    found = [
        delivery
        for (_, page), reply in zip(pages, replies, strict=True)
        if not is_master_down(reply)
        for delivery, request in zip(page, reply, strict=True)
        if request is not None and _is_for(delivery, request)
    ]
    return found, not any(map(is_master_down, replies))


def _read_requests(slot: bytes, page: Iterable[InnerDelivery]) -> Command[list[bytes | None]]:
    fields = [b"~" + member_of(delivery.raw_id) for delivery in page]
    return Command(plain("HMGET"), (slot,), fields, list, fails_fast=True)


def _is_for(delivery: InnerDelivery, request: bytes) -> bool:
    return delivery.state == OPEN and float(request) == delivery.score % 1000
