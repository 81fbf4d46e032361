"""Claim the business keys of received deliveries before their handlers run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmq.kernel.consumer import claim_flows
from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import TopicHandlers
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.handled_topic import delivery_maker
from rmq.worker.heartbeat.leases import LeaseTracker

log = logging.getLogger("rmq")


def claim_keys(
    deliveries: Sequence[InnerDelivery],
    handlers: TopicHandlers,
    flows: ConsumerFlows,
    transport: Transport,
    tracker: LeaseTracker | None = None,
) -> None:
    """Claim the business keys of deliveries in one call to Redis.

    The function skips deliveries whose handlers use no claims. If Redis does not answer for a
    claim, the worker later releases the delivery.
    """
    for delivery in deliveries:
        handler = handlers.route(delivery.type)
        if handler is None or handler.claims is None:
            continue
        # This is user code. A message that kills the process here must count as begun.
        if tracker is not None:
            tracker.memory.begin(delivery)
        shown = delivery_maker(handler, flows, transport)(delivery)
        handler.claims.prepare(shown, handler.convert_body)
        if tracker is not None:
            tracker.memory.remove([delivery])
    try:
        transport.run(flows.claim(deliveries))
    except Exception as error:  # the deliveries must still be reported
        log.warning("claims of %s are not known: %s", handlers.context.name, error)
    if tracker is not None:
        slots = handlers.context.settings.first_slots
        tracker.add_claims(deliveries, lambda name: claim_flows.claim_slot(name, slots))
