"""How many deliveries a worker may hold for a handler at most."""

from __future__ import annotations

from rmq.kernel.handlers.handler import Handler

IN_ORDER = 50  # messages in one ordered run; no other worker has the slot meanwhile


def most_held(handler: Handler) -> int:
    """Return how many deliveries a worker may hold for a handler at most."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


def most_begun(handler: Handler) -> int:
    """Return how many deliveries may have begun and not be settled yet: all that are held.

    Runs that have ended wait for the settler, which may be slower than they are. One more is in the
    hands of the fetcher, while a claim is prepared.
    """
    return max(handler.concurrency * max(1, handler.batch), most_held(handler)) + 1
