"""How a delivery is settled whose `with` block has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq.core import failure
from rmq.core.delivery import Reject, Retry, Snooze
from rmq.protocol.steps import Flow

Verb = Callable[[list[Any]], Flow[list[Any]]]


def verb_for(consumer: Any, error: BaseException | None) -> Verb:
    """Return the flow of a consumer that settles deliveries whose block ended so."""
    if error is None:
        ack: Verb = consumer._ack
        return ack
    if isinstance(error, Snooze):
        delay = error.delay
        return lambda deliveries: consumer._release(deliveries, delay)
    if isinstance(error, Retry):
        wait = error.delay
        cause = error.__cause__ or "asked for a retry"
        return lambda deliveries: consumer._nack(deliveries, wait, cause)
    if isinstance(error, Reject):
        reason = failure.text_of(error) or "rejected"
        return lambda deliveries: consumer._reject(deliveries, reason)
    if isinstance(error, Exception):
        return lambda deliveries: consumer._nack(deliveries, None, error)
    return lambda deliveries: consumer._release(deliveries, 0)  # Ctrl-C is not the message's fault
