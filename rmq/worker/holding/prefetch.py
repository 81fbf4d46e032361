"""The largest number of deliveries that a worker may have for a handler."""

from __future__ import annotations

from rmq.kernel.handlers.handler import Handler

IN_ORDER = 50  # messages in one ordered batch, which blocks its slot for other workers


def most_in_flight(handler: Handler) -> int:
    """Return the largest number of deliveries in flight for a handler."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


def most_begun(handler: Handler) -> int:
    """Return the largest number of deliveries that have begun and are not settled yet.

    The settler may be slower than the handler, so all deliveries in flight may have begun. The
    fetcher adds a delivery while it prepares a claim.
    """
    return max(handler.concurrency * max(1, handler.batch), most_in_flight(handler)) + 1
