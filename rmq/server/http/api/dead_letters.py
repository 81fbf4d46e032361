"""Dead letters: list, redrive and purge them; purge waiting messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rmq.core.message import Message
from rmq.server.http.api import bodies, views
from rmq.server.http.api.messages import walk
from rmq.server.http.api.operation import At, Table
from rmq.server.http.api.problems import ApiError

TABLE = Table("dead letters")
NONE = "topic-not-found"


@TABLE.get("/topics/{topic}/dead-letters", NONE, "conflict")
async def list_dead_letters(
    at: At, path: bodies.TopicPath, query: bodies.DeadQuery
) -> views.MessageList:
    """List dead letters, the oldest of each slot first.

    A page may have fewer than `limit` before the last one: a request looks at 5000 dead letters.
    """
    before = datetime.now(UTC) - timedelta(seconds=query.older_than or 0)

    def fits(message: Message) -> bool:
        reason = message.failure.reason if message.failure else None
        return (
            (query.reason is None or reason == query.reason)
            and (query.type is None or message.type == query.type)
            and (query.older_than is None or message.died is None or message.died <= before)
        )

    is_filtered = (query.reason, query.type, query.older_than) != (None, None, None)
    return await walk(at, path.topic, query, "dead", fits if is_filtered else None)


@TABLE.post("/topics/{topic}/dead-letters/redrive", NONE, "conflict")
async def redrive(at: At, path: bodies.TopicPath, body: bodies.Redrive) -> views.Redriven:
    """Send dead letters back to be consumed again, with all their retries.

    A request that ends before all are sent goes on where it stopped when it is repeated.
    """
    done = await at.admin.redrive(
        path.topic, ids=body.ids, reason=body.reason, type=body.type, older_than=body.older_than,
        dry_run=body.dry_run, rate=body.rate,
    )  # fmt: skip
    return views.Redriven(**done._asdict())


@TABLE.post("/topics/{topic}/purge", NONE, "conflict")
async def purge(at: At, path: bodies.TopicPath, body: bodies.Purge) -> views.Count:
    """Delete waiting messages or dead letters for good; messages in flight are not touched."""
    if body.confirm != path.topic:
        raise ApiError("invalid", "confirm: give the name of the topic", "confirm")
    count = await at.admin.purge(
        path.topic, body.queue, ids=body.ids, reason=body.reason, type=body.type,
        older_than=body.older_than, dry_run=body.dry_run,
    )  # fmt: skip
    return views.Count(count=count)
