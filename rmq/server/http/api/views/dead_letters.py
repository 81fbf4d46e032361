"""Dead letters by cause, and what was done to them."""

from __future__ import annotations

import base64
from contextlib import suppress
from datetime import datetime

from rmq.core import record
from rmq.core.message import Message
from rmq.core.record import Record
from rmq.errors import DecodeError
from rmq.protocol.flows import dead_letter_groups
from rmq.protocol.flows.dead_letter_pages import cursor_of
from rmq.server.http.api.views.answer import Answer
from rmq.server.http.api.views.messages import Failure, StoredMessage, failure_of


class Redriven(Answer):
    """How many dead letters fitted, were sent, and cannot be read.

    Attributes:
        refused: how many stayed dead because of the other topic, by outcome.
        sample: of a dry run: some that fit, at most 10, of the oldest in each slot.
    """

    matched: int
    sent: int
    unreadable: int
    refused: dict[str, int]
    sample: list[StoredMessage]


class Purged(Answer):
    """How many messages were deleted, or put into the trash.

    Attributes:
        sample: of a dry run: some dead letters that fit, at most 10, of the oldest in each slot.
    """

    count: int
    sample: list[StoredMessage]


class Imported(Answer):
    """How many messages were sent, and how many the topic had already, in any queue."""

    stored: int
    duplicate: int


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


class DeadLetterLine(Answer, omit_defaults=True):
    """A dead letter as `rmq dlq import` reads it; fields that are null are left out.

    Attributes:
        cursor: of another export: it goes on behind this line.
        codec: the number of the codec of the body; null: the record cannot be read.
        body_base64: the body as its producer's codec wrote it.
        bodies_base64: the same of a message that collected several.
    """

    id: str
    cursor: str
    slot: int
    died: datetime | None
    deliveries: int
    headers: dict[str, str]
    type: str | None = None
    priority: int | None = None
    failure: Failure | None = None
    codec: int | None = None
    body_base64: str | None = None
    bodies_base64: list[str] | None = None


def line_of(message: Message) -> DeadLetterLine:
    """Return a dead letter whose body is its record as a line."""
    line = DeadLetterLine(
        id=str(message.id), cursor=cursor_of(message), slot=message.slot, died=message.died,
        deliveries=message.deliveries, headers=dict(message.headers), type=message.type,
        priority=message.priority, failure=failure_of(message.failure),
    )  # fmt: skip
    raw = message.body
    if not isinstance(raw, Record):
        line.body_base64 = _base64(bytes(raw))
        return line
    line.codec = raw.codec
    if raw.flags & record.COLLECTS:
        with suppress(DecodeError):
            line.bodies_base64 = [_base64(each) for each in record.collected_bodies(raw.body)]
            return line
    line.body_base64 = _base64(raw.body)
    return line


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


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
