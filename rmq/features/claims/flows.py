"""Show and delete the claim on a business key."""

from __future__ import annotations

from rmq.kernel.consumer import claim_flows as claim_flow
from rmq.kernel.delivery.business_key import check_consumer, check_key
from rmq.kernel.delivery.claim import ClaimStatus
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, RawCommand


def _claim_key(context: TopicContext, key: str, consumer: str) -> Flow[bytes]:
    name = f"{check_consumer(consumer)}:{check_key(key)}".encode()
    yield from opening.open(context, create=False)
    return claim_flow.claim_key(context, name)


def claim(context: TopicContext, key: str, consumer: str) -> Flow[ClaimStatus | None]:
    """Return the claim on a business key, or None."""
    claim_key = yield from _claim_key(context, key, consumer)
    value = yield RawCommand("claim", "GET", claim_key)
    left_ms = yield RawCommand("claim", "PTTL", claim_key)
    return None if value is None else ClaimStatus.read(value, left_ms)


def unclaim(context: TopicContext, key: str, consumer: str) -> Flow[bool]:
    """Delete the claim on a business key. Return whether there was a claim."""
    claim_key = yield from _claim_key(context, key, consumer)
    return bool((yield RawCommand("unclaim", "DEL", claim_key)))
