"""What was done to dead letters."""

from __future__ import annotations

from rmq.server.http.api.views.answer import Answer
from rmq.server.http.api.views.messages import StoredMessage


class Redriven(Answer):
    """How many dead letters fitted, were sent back, and cannot be read.

    Attributes:
        sample: of a dry run: some that fit, at most 10, of the oldest in each slot.
    """

    matched: int
    sent: int
    unreadable: int
    sample: list[StoredMessage]


class Purged(Answer):
    """How many messages were deleted, or put into the trash.

    Attributes:
        sample: of a dry run: some dead letters that fit, at most 10, of the oldest in each slot.
    """

    count: int
    sample: list[StoredMessage]
