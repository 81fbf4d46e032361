"""HTTP routes of topics: list, create, change, resize, pause, delete and count them."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rmq.errors import SettingsMismatch
from rmq.http_framework.operation import (
    RequestContext,
    Table,
    check_confirm,
    read_cursor,
    write_cursor,
)
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import (
    BY,
    Answer,
    Count,
    CursorText,
    Limit,
    Line,
    Name,
    Nothing,
    Request,
    TopicPath,
    etag_of,
    show,
)
from rmq.kernel.core.access import Role
from rmq.kernel.core.history import Sample
from rmq.kernel.core.pause import PauseVerb
from rmq.kernel.core.score import moment
from rmq.kernel.core.settings import Settings as KeptSettings

# --- queries -------------------------------------------------------------------------------------


class TopicsQuery(Request):
    """Selects topics to list."""

    limit: Limit = 100
    cursor: CursorText | None = None
    contains: Annotated[str, Meta(max_length=128)] | None = None


class SamplesQuery(Request):
    """The start of the period, in seconds before now, and the seconds between two counts.

    The time between two samples is a multiple of 10 s.
    """

    since: Annotated[float, Meta(ge=10, le=604_800)] = 3600
    step: Annotated[int, Meta(ge=10, le=604_800)] | None = None


class DeleteTopicQuery(Request):
    """Options of a deletion. `confirm` must be the name of the topic."""

    confirm: Name
    force: bool = False
    dry_run: bool = False


class Settings(Request):
    """Settings of a topic, named as in `rmq topic set`. Durations are in seconds.

    Null turns a setting off.
    """

    slots: int | UnsetType = UNSET
    default_priority: int | UnsetType = UNSET
    timed_priority: int | Literal["first"] | UnsetType = UNSET
    lease: float | UnsetType = UNSET
    max_retries: int | UnsetType = UNSET
    retry: str | UnsetType = UNSET
    dedup_window: float | UnsetType | None = UNSET
    max_length: int | UnsetType | None = UNSET
    overflow: Literal["reject", "block", "drop_lowest"] | UnsetType = UNSET
    max_body: int | UnsetType = UNSET
    expires: float | UnsetType | None = UNSET
    on_expire: Literal["dead", "drop"] | UnsetType = UNSET
    durability: str | UnsetType = UNSET
    dead_retention: float | UnsetType | None = UNSET
    unhandled: float | UnsetType | None = UNSET
    limit: str | UnsetType | None = UNSET
    slo: str | UnsetType | None = UNSET
    groups: str | UnsetType | None = UNSET
    max_depth: int | UnsetType | None = UNSET
    dead_to: str | UnsetType | None = UNSET
    history: str | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """Return the settings in the request as keyword arguments for `Client.topic`."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not UNSET}


class NewTopic(Request):
    """A topic to create, with its settings."""

    name: Name
    settings: Settings = msgspec.field(default_factory=Settings)


class PauseTopic(Request):
    """A pause of a topic: what it stops, who pauses the topic, and why."""

    verb: PauseVerb = "receive"
    by: Line = BY
    why: Line = ""


class ResumeTopic(Request):
    """The pauses to end."""

    verb: PauseVerb = "both"


class Resize(Request):
    """The new number of slots: a multiple or a divisor of the present number."""

    slots: Annotated[int, Meta(ge=1, le=1024)]
    dry_run: bool = False


TABLE = Table("topics")


class TopicList(Answer):
    """Names of topics, sorted."""

    topics: list[str]
    cursor: str | None


@TABLE.get("/topics")
async def list_topics(context: RequestContext, query: TopicsQuery) -> TopicList:
    """List topics by name."""
    names = await context.admin.topics()
    if query.contains:
        names = [name for name in names if query.contains in name]
    start = bisect_right(names, read_cursor(query.cursor, str)) if query.cursor else 0
    page = names[start : start + query.limit]
    more = start + query.limit < len(names)
    return TopicList(topics=page, cursor=write_cursor(page[-1]) if more else None)


class Topic(Answer):
    """A topic: its settings, its pauses, and an unfinished resize.

    Attributes:
        settings: Settings by name. Durations are in seconds; 0 means that the setting is off.
        paused: Pause of deliveries, or null.
        sends_paused: Pause of sends, or null.
        resizing: Unfinished resize, or null.
    """

    name: str
    settings: dict[str, int | float | str]
    paused: Paused | None
    sends_paused: Paused | None
    resizing: Resizing | None


@TABLE.post("/topics", "conflict", role=Role.ADMIN, status=201)
async def create_topic(context: RequestContext, body: NewTopic) -> Topic:
    """Create a topic. Omitted settings have their defaults."""
    topic = context.client.topic(body.name, **body.settings.given())
    if not await topic.open():
        raise ApiError("conflict", f"topic {body.name!r} exists", "name")
    return topic_of(body.name, topic.settings)


@TABLE.get("/topics/{topic}", has_etag=True)
async def get_topic(context: RequestContext, path: TopicPath) -> Topic:
    """Return the settings of a topic, its pauses, and the progress of a resize."""
    return topic_of(path.topic, await context.admin.settings(path.topic))


class Deleted(Answer):
    """The message counts of a deleted topic, or of a topic in a dry run."""

    waiting: int
    in_flight: int
    dead: int
    other_keys: int
    batches: int
    dry_run: bool


@TABLE.delete("/topics/{topic}", role=Role.ADMIN)
async def delete_topic(
    context: RequestContext, path: TopicPath, query: DeleteTopicQuery
) -> Deleted:
    """Delete a topic permanently, with everything that belongs to it.

    `confirm` must be the name of the topic. A topic that contains messages, or has batches that are
    not done, requires `force`. With `dry_run`, the request only counts the messages. If the request
    is interrupted, no client can open the topic until you repeat the request.
    """
    check_confirm(query.confirm, path.topic)
    deleted = await context.admin.topic_delete(path.topic, force=query.force, dry_run=query.dry_run)
    return show(deleted, Deleted, dry_run=query.dry_run)


@TABLE.patch("/topics/{topic}/settings", "changed", role=Role.ADMIN)
async def set_topic(context: RequestContext, path: TopicPath, body: Settings) -> Topic:
    """Change settings of a topic while it is in use. You cannot change `slots` and `groups`.

    With the header If-Match, the request changes nothing if the settings, the pauses or the resize
    of the topic have changed since you read its ETag.
    """
    read = None
    if_match = context.headers.get("If-Match", "*")
    if if_match != "*":
        read = await context.admin.settings(path.topic)
        shown = msgspec.json.encode(topic_of(path.topic, read))
        if etag_of(shown) not in if_match:
            raise ApiError("changed", "nothing was done; read the topic again", "If-Match")
    try:
        done = await context.admin.topic_set(path.topic, unless_changed=read, **body.given())
    except SettingsMismatch as error:
        raise ApiError("changed", str(error), "If-Match") from None
    return topic_of(path.topic, done)


class Resized(Answer):
    """The progress of a resize.

    Attributes:
        before: Former number of slots.
        after: Requested number of slots.
        waiting: Number of older messages, in former slots, that newer messages wait for.
        in_flight: Number of messages in flight in the former slots.
        pending: Number of former slots that may still contain older messages. With 0, the resize is
            finished.
    """

    before: int
    after: int
    waiting: int
    in_flight: int
    pending: int
    dry_run: bool


@TABLE.post("/topics/{topic}/resize", role=Role.ADMIN)
async def resize_topic(context: RequestContext, path: TopicPath, body: Resize) -> Resized:
    """Change the number of slots (parts) of a topic in use, or continue an interrupted change.

    The server responds before the resize is finished, and continues the resize. New messages of
    some slots wait for older messages until `pending` is 0. The field `resizing` of the topic shows
    the progress.
    """
    done = await context.admin.topic_resize(
        path.topic, body.slots, dry_run=body.dry_run, wait=False
    )
    return show(done, Resized, dry_run=body.dry_run)


class Paused(Answer):
    """A pause of a topic: since when, by whom, and why."""

    since: datetime
    by: str
    why: str


@TABLE.post("/topics/{topic}/pause", role=Role.OPERATOR)
async def pause_topic(context: RequestContext, path: TopicPath, body: PauseTopic) -> Paused:
    """Stop every delivery of a topic, every send to it, or both, until you resume the topic.

    If the topic is already paused, it keeps its first pause. If the request pauses both, the
    response has the pause of deliveries.
    """
    pause = await context.admin.topic_pause(path.topic, verb=body.verb, by=body.by, why=body.why)
    return show(pause, Paused)


class Resumed(Answer):
    """The pause that was ended, or null.

    If both pauses were ended, the response has only the pause of deliveries.
    """

    was: Paused | None


@TABLE.post("/topics/{topic}/resume", role=Role.OPERATOR)
async def resume_topic(context: RequestContext, path: TopicPath, body: ResumeTopic) -> Resumed:
    """End pauses of a topic, and wake its consumers."""
    pause = await context.admin.topic_resume(path.topic, verb=body.verb)
    return Resumed(was=pause and show(pause, Paused))


class Stats(Answer):
    """The message counts of a topic. lua/topic/stats.lua lists their names."""

    topic: str
    counts: dict[str, int]


@TABLE.get("/topics/{topic}/stats")
async def get_stats(context: RequestContext, path: TopicPath) -> Stats:
    """Count messages and events of a topic."""
    return Stats(topic=path.topic, counts=await context.admin.stats(path.topic))


class SlotStats(Answer):
    """The message counts of each slot (part) of a topic."""

    topic: str
    slots: list[dict[str, int]]


@TABLE.get("/topics/{topic}/stats/slots")
async def get_stats_by_slot(context: RequestContext, path: TopicPath) -> SlotStats:
    """Count messages and events of each slot (part) of a topic."""
    return SlotStats(topic=path.topic, slots=await context.admin.stats_by_slot(path.topic))


class DueCounts(Answer):
    """Numbers of messages of a topic by due time. Messages without a due time do not count."""

    topic: str
    counts: list[DueCount]


@TABLE.get("/topics/{topic}/stats/due")
async def get_due_counts(context: RequestContext, path: TopicPath) -> DueCounts:
    """Count the messages of a topic that have a due time, by their due times."""
    counts = await context.admin.due_counts(path.topic)
    return DueCounts(topic=path.topic, counts=[show(count, DueCount) for count in counts])


class Samples(Answer):
    """The message counts of a topic over time, as servers have stored them, oldest first."""

    topic: str
    samples: list[Sample]


@TABLE.get("/topics/{topic}/samples")
async def get_samples(context: RequestContext, path: TopicPath, query: SamplesQuery) -> Samples:
    """Return the message counts of a topic over time."""
    samples = await context.admin.samples(path.topic, since=query.since, step=query.step)
    return Samples(topic=path.topic, samples=samples)


@TABLE.post("/topics/{topic}/rollback", role=Role.OPERATOR)
async def roll_back(context: RequestContext, path: TopicPath, body: Nothing) -> Count:
    """Roll back every expired lease of a topic now. Consumers and the server also do this."""
    return Count(count=await context.admin.rollback(path.topic))


class Resizing(Answer):
    """An unfinished resize.

    Attributes:
        before: Former number of slots.
        pending: Number of former slots that may still contain older messages.
    """

    since: datetime
    before: int
    pending: int


class DueCount(Answer):
    """The number of messages that become due within a range of time.

    Attributes:
        within_s: End of the range, in seconds from now. The range starts at the end of the previous
            range. 0 stands for messages that are due now. null stands for messages that are due
            after the last range.
        messages: Number of messages that are due within the range.
    """

    within_s: float | None
    messages: int


def topic_of(name: str, settings: KeptSettings) -> Topic:
    """Convert a topic to the response of the API."""
    resizing = settings.layout.resizing if settings.layout else None
    shown = resizing and show(
        resizing, Resizing, since=moment(resizing.since_ms), pending=len(resizing.pending)
    )
    return show(settings, Topic, name=name, settings=settings.shown(), resizing=shown)
