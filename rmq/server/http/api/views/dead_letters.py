"""Dead letters by cause, and what was done to them."""

from __future__ import annotations

from datetime import datetime

from rmq.protocol.flows import dead_letter_groups
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


class Restored(Answer):
    """How many letters were put back from the trash.

    Attributes:
        sample: of a dry run: some that fit, at most 10.
    """

    count: int
    sample: list[StoredMessage]


class DeadLetterGroup(Answer):
    """Dead letters of one cause; fields as of `rmq.DeadLetterGroup`.

    Attributes:
        fingerprint: empty: of these no failure is known.
        first: when the first of them died.
        last: when the last of them died.
        example: the id of the last of them.
        error: of the example.
    """

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    example: str
    reason: str
    error: str


class DeadLetterGroups(Answer):
    """Dead letters by cause, the largest group first.

    Attributes:
        other: dead letters of groups that are not listed.
        total: all that were counted.
    """

    groups: list[DeadLetterGroup]
    other: int
    total: int


def groups_of(found: dead_letter_groups.DeadLetterGroups, limit: int) -> DeadLetterGroups:
    """Return the largest groups as they are shown."""
    groups = [
        DeadLetterGroup(
            fingerprint=each.fingerprint, count=each.count, first=each.first, last=each.last,
            example=str(each.example), reason=each.reason, error=each.error,
        )
        for each in found.groups[:limit]
    ]  # fmt: skip
    other = found.total - sum(each.count for each in groups)
    return DeadLetterGroups(groups=groups, other=other, total=found.total)
