"""Exceptions by which a handler, or the block of a delivery, settles the delivery."""

from __future__ import annotations

from rmq.kernel.core.validation import Duration


class Snooze(Exception):
    """Raise in a handler or `with delivery` to try again after `delay`, at no cost of a retry."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = delay


class Reject(Exception):
    """Raise in a handler or `with delivery` to make the message a dead letter, with the reason."""


class Retry(Exception):
    """Raise in a handler or `with delivery` to fail the message and retry it after `delay`.

    It costs a retry. None: the delay of the retry policy.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__() if delay is None else super().__init__(delay)
        self.delay = delay


DISPOSITIONS = (Snooze, Retry, Reject)
