"""Topics: list, create, change, resize, pause, delete and count them."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from rmq.errors import SettingsMismatch
from rmq.server.http.api import bodies, cursors, views
from rmq.server.http.api.operation import At, Table, check_confirm
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import Role

TABLE = Table("topics")
NONE = "topic-not-found"


@TABLE.get("/topics")
async def list_topics(at: At, query: bodies.TopicsQuery) -> views.TopicList:
    """List topics by name."""
    names = await at.admin.topics()
    if query.contains:
        names = [name for name in names if query.contains in name]
    start = bisect_right(names, cursors.read(query.cursor, str)) if query.cursor else 0
    page = names[start : start + query.limit]
    more = start + query.limit < len(names)
    return views.TopicList(topics=page, cursor=cursors.write(page[-1]) if more else None)


@TABLE.post("/topics", "conflict", role=Role.ADMIN, status=201)
async def create_topic(at: At, body: bodies.NewTopic) -> views.Topic:
    """Create a topic; settings that are left out have their defaults."""
    topic = at.client.topic(body.name, **body.settings.given())
    if not await topic.open():
        raise ApiError("conflict", f"topic {body.name!r} exists", "name")
    return views.topic_of(body.name, topic.settings)


@TABLE.get("/topics/{topic}", NONE, "conflict", has_etag=True)
async def get_topic(at: At, path: bodies.TopicPath) -> views.Topic:
    """Return the settings of a topic, its pauses, and how far a resize has come."""
    return views.topic_of(path.topic, await at.admin.settings(path.topic))


@TABLE.delete("/topics/{topic}", NONE, "conflict", role=Role.ADMIN)
async def delete_topic(
    at: At, path: bodies.TopicPath, query: bodies.DeleteTopicQuery
) -> views.Deleted:
    """Delete a topic for good, with everything that belongs to it.

    `confirm` must be its name. One that holds messages is deleted with `force` alone; `dry_run`
    counts them. Stopped half-way, no client can open the topic; repeat the request.
    """
    check_confirm(query.confirm, path.topic)
    deleted = await at.admin.topic_delete(path.topic, force=query.force, dry_run=query.dry_run)
    return views.Deleted(**deleted._asdict(), dry_run=query.dry_run)


@TABLE.patch("/topics/{topic}/settings", NONE, "conflict", "changed", role=Role.ADMIN)
async def set_topic(at: At, path: bodies.TopicPath, body: bodies.Settings) -> views.Topic:
    """Change settings of a topic while it is used; `slots` and `max_retries` stay.

    With the header If-Match, and an ETag of the topic, nothing is done where it has changed since:
    its settings, a pause or a resize.
    """
    read = None
    if_match = at.headers.get("If-Match", "*")
    if if_match != "*":
        read = await at.admin.settings(path.topic)
        shown = msgspec.json.encode(views.topic_of(path.topic, read))
        if views.etag_of(shown) not in if_match:
            raise ApiError("changed", "read the topic again; nothing was done", "If-Match")
    try:
        done = await at.admin.topic_set(path.topic, unless_changed=read, **body.given())
    except SettingsMismatch as error:
        raise ApiError("changed", str(error), "If-Match") from None
    return views.topic_of(path.topic, done)


@TABLE.post("/topics/{topic}/resize", NONE, "conflict", role=Role.ADMIN)
async def resize_topic(at: At, path: bodies.TopicPath, body: bodies.Resize) -> views.Resized:
    """Change the number of slots of a topic while it is used, or go on with that.

    The answer does not wait for older messages: new ones of some slots wait for those, until
    `pending` is 0. The server goes on by itself, and the topic's `resizing` says how far it is.
    """
    done = await at.admin.topic_resize(path.topic, body.slots, dry_run=body.dry_run, wait=False)
    return views.Resized(**done._asdict(), dry_run=body.dry_run)


@TABLE.post("/topics/{topic}/pause", NONE, "conflict", role=Role.OPERATOR)
async def pause_topic(at: At, path: bodies.TopicPath, body: bodies.PauseTopic) -> views.Paused:
    """Stop every delivery of a topic, every send to it, or both, until it is resumed.

    What is paused keeps its pause. The answer for both is the pause of receive.
    """
    pause = await at.admin.topic_pause(path.topic, verb=body.verb, by=body.by, why=body.why)
    found = views.paused_of(pause)
    assert found is not None
    return found


@TABLE.post("/topics/{topic}/resume", NONE, "conflict", role=Role.OPERATOR)
async def resume_topic(at: At, path: bodies.TopicPath, body: bodies.ResumeTopic) -> views.Resumed:
    """End pauses of a topic, and wake its consumers."""
    pause = await at.admin.topic_resume(path.topic, verb=body.verb)
    return views.Resumed(was=views.paused_of(pause))


@TABLE.get("/topics/{topic}/stats", NONE, "conflict")
async def get_stats(at: At, path: bodies.TopicPath) -> views.Stats:
    """Count what a topic holds and has done."""
    return views.Stats(topic=path.topic, counts=await at.admin.stats(path.topic))


@TABLE.get("/topics/{topic}/stats/slots", NONE, "conflict")
async def get_stats_by_slot(at: At, path: bodies.TopicPath) -> views.SlotStats:
    """Count what each slot of a topic holds and has done."""
    return views.SlotStats(topic=path.topic, slots=await at.admin.stats_by_slot(path.topic))


@TABLE.get("/topics/{topic}/stats/due", NONE, "conflict")
async def get_due_counts(at: At, path: bodies.TopicPath) -> views.DueCounts:
    """Count the messages of a topic that wait for a time, by when they are due."""
    counts = await at.admin.due_counts(path.topic)
    return views.DueCounts(
        topic=path.topic, counts=[views.DueCount(**count._asdict()) for count in counts]
    )


@TABLE.get("/topics/{topic}/history", NONE, "conflict")
async def get_history(at: At, path: bodies.TopicPath, query: bodies.HistoryQuery) -> views.History:
    """Return the figures of a topic over time."""
    samples = await at.admin.history(path.topic, since=query.since, step=query.step)
    return views.History(topic=path.topic, samples=samples)


@TABLE.post("/topics/{topic}/rollback", NONE, "conflict", role=Role.OPERATOR)
async def roll_back(at: At, path: bodies.TopicPath, body: bodies.Nothing) -> views.Count:
    """Give back every expired lease of a topic now; consumers and the server do it anyway."""
    return views.Count(count=await at.admin.rollback(path.topic))
