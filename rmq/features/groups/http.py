"""Groups: list them, pause, resume, release and purge one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from rmq.features.groups.flows import Sort
from rmq.features.groups.scripts import GroupState
from rmq.kernel.core.access import Role
from rmq.web.operation import RequestContext, Table, check_confirm
from rmq.web.problems import ApiError
from rmq.web.requests import (
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

TABLE = Table("groups")
PATH = "/topics/{topic}/groups"
SCAN = 20_000  # groups that a request looks at


class GroupsQuery(Request):
    """Which groups are listed: after `skip` of them, in this order."""

    sort: Sort = "held"
    limit: Limit = 100
    skip: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class GroupQuery(Request):
    """A group, and a message of it, of which `ahead` tells."""

    group: Text
    id: MessageIdText | None = None


class GroupBody(Request):
    """The name of a group."""

    group: Text


class GroupPurge(GroupBody):
    """A group whose waiting messages are deleted.

    Attributes:
        confirm: the topic's name.
        dry_run: only count them.
    """

    confirm: Name
    dry_run: bool = False


class Group(Answer):
    """A group; fields as of `rmq groups ls`.

    Attributes:
        held: messages that wait behind those that are out.
        out: messages that may be taken, are in flight, or are retried.
        is_held: by a dead letter.
        message: the message that is out, where one is out at a time.
        retried: when that is retried.
        in_flight: whether that is in flight.
        dead_letter: the message whose death stopped the group.
        ahead: held messages that go before the one that was asked for.
        waits_for: what held messages wait for, in words.
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
    """Groups in order; `complete`: of all groups, else of the first 20 000 that were found."""

    groups: list[Group]
    looked_at: int
    complete: bool


class GroupPurged(Answer):
    """How many messages were deleted."""

    count: int


def group_of(state: GroupState) -> Group:
    """Return a group as it is shown."""
    return show(state, Group, waits_for=state.waits_for)


@TABLE.get(PATH)
async def list_groups(context: RequestContext, path: TopicPath, query: GroupsQuery) -> GroupList:
    """List groups that have messages out, are paused, or are held by a dead letter."""
    found = await context.admin.groups(
        path.topic, sort=query.sort, limit=query.limit, skip=query.skip, scan=SCAN
    )
    groups = [group_of(state) for state in found.groups]
    return GroupList(groups=groups, looked_at=found.looked_at, complete=found.complete)


@TABLE.get("/topics/{topic}/group", "not-found")
async def get_group(context: RequestContext, path: TopicPath, query: GroupQuery) -> Group:
    """Return a group that has messages out, is paused, or is held by a dead letter."""
    found = await context.admin.group(path.topic, query.group, id=query.id)
    if found is None:
        raise ApiError("not-found", "nothing of this group is out, and nobody stopped it", "group")
    return group_of(found)


@TABLE.post(PATH + "/pause", role=Role.OPERATOR)
async def pause_group(context: RequestContext, path: TopicPath, body: GroupBody) -> Done:
    """Let no more messages of a group out until it is resumed; what is in flight stays so."""
    return Done(done=await context.admin.group_pause(path.topic, body.group))


@TABLE.post(PATH + "/resume", role=Role.OPERATOR)
async def resume_group(context: RequestContext, path: TopicPath, body: GroupBody) -> Done:
    """End the pause of a group, and wake consumers."""
    return Done(done=await context.admin.group_resume(path.topic, body.group))


@TABLE.post(PATH + "/release", role=Role.OPERATOR)
async def release_group(context: RequestContext, path: TopicPath, body: GroupBody) -> Done:
    """Let a group go on that a dead letter holds; the dead letter stays."""
    return Done(done=await context.admin.group_release(path.topic, body.group))


@TABLE.post(PATH + "/purge", role=Role.ADMIN)
async def purge_group(context: RequestContext, path: TopicPath, body: GroupPurge) -> GroupPurged:
    """Delete the waiting messages of a group; those in flight and dead letters stay."""
    check_confirm(body.confirm, path.topic)
    count = await context.admin.group_purge(path.topic, body.group, dry_run=body.dry_run)
    return GroupPurged(count=count)
