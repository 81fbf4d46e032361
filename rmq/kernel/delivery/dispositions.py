"""Exceptions by which a handler, or the block of a delivery, settles the delivery."""

from __future__ import annotations

from rmq.errors import Cancelled
from rmq.kernel.core.validation import Duration


class Snooze(Exception):
    """Raise it in a handler or `with delivery` to try again after `delay`. This costs no retry."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = delay


class Reject(Exception):
    """Raise it in a handler or `with delivery` to make the message a dead letter with a reason."""


class Retry(Exception):
    """Raise it in a handler or `with delivery` to fail the message and retry it after `delay`.

    This costs a retry. If `delay` is None, the retry policy decides about the delay.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__() if delay is None else super().__init__(delay)
        self.delay = delay


DISPOSITIONS = (Snooze, Retry, Reject, Cancelled)  # a block that raises one ends quietly
