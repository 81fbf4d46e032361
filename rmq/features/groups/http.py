"""HTTP routes of groups: list, pause, resume, release and purge them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from rmq.features.groups.flows import Sort
from rmq.features.groups.scripts import GroupState
from rmq.http_framework.operation import RequestContext, Table, check_confirm
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import (
    Answer,
    Done,
    Limit,
    MessageIdText,
    Name,
    Request,
    Text,
    TopicPath,
    show,
)
from rmq.kernel.core.access import Role

TABLE = Table("groups")
PATH = "/topics/{topic}/groups"
SCAN = 20_000  # groups that a request examines


class GroupsQuery(Request):
    """Selects groups to list. You choose their order, how many to list, and how many to skip."""

    sort: Sort = "held"
    limit: Limit = 100
    skip: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class GroupQuery(Request):
    """Selects a group.

    If `id` names a message, `ahead` in the response counts the held messages before this message.
    """

    group: Text
    id: MessageIdText | None = None


class GroupBody(Request):
    """The name of a group."""

    group: Text


class GroupPurge(GroupBody):
    """A group whose waiting messages you want to delete.

    Attributes:
        confirm: Name of the topic.
        dry_run: Whether to only count the messages.
    """

    confirm: Name
    dry_run: bool = False


class Group(Answer):
    """A group, with the same fields as in `rmq groups ls`.

    Attributes:
        held: Number of messages that RMQ holds until admitted messages are settled.
        out: Number of admitted messages. Workers may receive them, have them in flight, or will
            retry them.
        is_held: Whether a dead letter stopped the group.
        message: Id of the admitted message, if the topic admits one message of a group at a time.
        retried: Time at which `message` will be retried.
        in_flight: Whether `message` is in flight.
        dead_letter: Id of the message whose death stopped the group.
        ahead: Number of held messages before the message in the request.
        waits_for: Reason why messages are held, in words.
    """

    group: str
    slot: int
    held: int
    out: int
    oldest: datetime | None
    paused: bool
    is_held: bool
    weight: int
    share_key: str | None
    message: str | None
    retried: datetime | None
    in_flight: bool
    dead_letter: str | None
    ahead: int | None
    waits_for: str


class GroupList(Answer):
    """Sorted groups. If `complete` is false, RMQ examined only the first 20 000 groups."""

    groups: list[Group]
    looked_at: int
    complete: bool


class GroupPurged(Answer):
    """The number of deleted messages."""

    count: int


def group_of(state: GroupState) -> Group:
    """Convert a group to the response of the API."""
    return show(state, Group, waits_for=state.waits_for)


@TABLE.get(PATH)
async def list_groups(context: RequestContext, path: TopicPath, query: GroupsQuery) -> GroupList:
    """List groups that have admitted messages, are paused, or are held by a dead letter."""
    found = await context.admin.groups(
        path.topic, sort=query.sort, limit=query.limit, skip=query.skip, scan=SCAN
    )
    groups = [group_of(state) for state in found.groups]
    return GroupList(groups=groups, looked_at=found.looked_at, complete=found.complete)


@TABLE.get("/topics/{topic}/group", "not-found")
async def get_group(context: RequestContext, path: TopicPath, query: GroupQuery) -> Group:
    """Return a group that has admitted messages, is paused, or is held by a dead letter."""
    found = await context.admin.group(path.topic, query.group, id=query.id)
    if found is None:
        raise ApiError("not-found", "this group has no message out, and is not stopped", "group")
    return group_of(found)


@TABLE.post(PATH + "/pause", role=Role.OPERATOR)
async def pause_group(context: RequestContext, path: TopicPath, body: GroupBody) -> Done:
    """Pause a group until you resume it. Messages in flight are not affected."""
    return Done(done=await context.admin.group_pause(path.topic, body.group))


@TABLE.post(PATH + "/resume", role=Role.OPERATOR)
async def resume_group(context: RequestContext, path: TopicPath, body: GroupBody) -> Done:
    """End the pause of a group, and wake consumers."""
    return Done(done=await context.admin.group_resume(path.topic, body.group))


@TABLE.post(PATH + "/release", role=Role.OPERATOR)
async def release_group(context: RequestContext, path: TopicPath, body: GroupBody) -> Done:
    """Release a group that a dead letter holds. The dead letter is not deleted."""
    return Done(done=await context.admin.group_release(path.topic, body.group))


@TABLE.post(PATH + "/purge", role=Role.ADMIN)
async def purge_group(context: RequestContext, path: TopicPath, body: GroupPurge) -> GroupPurged:
    """Delete the waiting messages of a group.

    Messages in flight and dead letters are not deleted.
    """
    check_confirm(body.confirm, path.topic)
    count = await context.admin.group_purge(path.topic, body.group, dry_run=body.dry_run)
    return GroupPurged(count=count)
