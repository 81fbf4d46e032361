"""HTTP routes of pending follow-ups: list, send and drop them."""

from __future__ import annotations

from datetime import datetime

from rmq.http_framework.operation import RequestContext, Table, check_confirm
from rmq.http_framework.requests import Answer, Name, Nothing, Request, TopicPath, show
from rmq.kernel.core.access import Role

TABLE = Table("follow-ups")
PATH = "/topics/{topic}/pending"


class PendingDrop(Request):
    """Selects the pending follow-ups to delete, by their target topic.

    Attributes:
        target: Name of the topic that would get the follow-ups.
        confirm: Name of the topic whose messages were acked or rejected.
        dry_run: Whether to only count the follow-ups.
    """

    target: Name
    confirm: Name
    dry_run: bool = False


class Pending(Answer):
    """The pending follow-ups of one slot for another slot, with the fields of `rmq pending ls`.

    Attributes:
        slot: Index of the slot whose messages were acked or rejected.
        target: Name of the topic that gets the follow-ups.
        target_slot: Index of the slot of that topic.
        entries: Number of follow-ups.
        since: Time of the first of these acks.
        next_try: Earliest time at which a process tries to send the follow-ups.
    """

    slot: int
    target: str
    target_slot: int
    entries: int
    since: datetime
    next_try: datetime


class PendingList(Answer):
    """All pending follow-ups of a topic, oldest first."""

    pending: list[Pending]


class PendingCount(Answer):
    """A number of follow-ups."""

    count: int


@TABLE.get(PATH)
async def list_pending(context: RequestContext, path: TopicPath) -> PendingList:
    """List the follow-ups of a topic that are not yet in their target topics."""
    rows = await context.admin.pending(path.topic)
    return PendingList(pending=[show(row, Pending) for row in rows])


@TABLE.post(PATH + "/send", role=Role.OPERATOR)
async def send_pending(context: RequestContext, path: TopicPath, body: Nothing) -> PendingCount:
    """Send the pending follow-ups of a topic now."""
    return PendingCount(count=await context.admin.pending_send(path.topic))


@TABLE.post(PATH + "/drop", role=Role.ADMIN)
async def drop_pending(context: RequestContext, path: TopicPath, body: PendingDrop) -> PendingCount:
    """Delete the pending follow-ups that a topic has for one target topic."""
    check_confirm(body.confirm, path.topic)
    count = await context.admin.pending_drop(path.topic, body.target, dry_run=body.dry_run)
    return PendingCount(count=count)
