"""Check whether deliveries under shared leases are still held: what `extend` does in a worker.

A worker renews such a lease as long as it holds a delivery, so there is nothing to extend.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmq.core.ids import member_of
from rmq.protocol.flows import claim
from rmq.protocol.flows.settle import UNKNOWN
from rmq.protocol.steps import Flow, RawCommand


def check_held(consumer: Any, deliveries: Iterable[Any]) -> Flow[list[Any]]:
    """Return the deliveries that are lost. Claims are renewed; nothing else is changed."""
    context, letters = consumer._context, ""
    given, _ = consumer._leases(deliveries)
    lease_ms = consumer._receive_state.lease_ms or context.settings.lease_ms
    extra = claim.renew(context, claim.held(given), lease_ms)
    if extra is not None:
        yield from claim.run_alone(extra)
    for delivery in given:
        key, member = delivery._origin.keys.prepare, member_of(delivery._id)
        score = yield RawCommand("extend", "ZSCORE", key, member)
        is_held = score is not None and float(score) == delivery._score
        letters += UNKNOWN if is_held else "0"
    lost: list[Any] = consumer._note_letters(given, letters)
    return lost
