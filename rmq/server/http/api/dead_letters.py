"""Dead letters: list, redrive and purge them; purge waiting messages."""

from __future__ import annotations

from rmq.core import dead_letter_filter
from rmq.server.http.api import bodies, views
from rmq.server.http.api.messages import walk
from rmq.server.http.api.operation import At, Table
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import Role

TABLE = Table("dead letters")
NONE = "topic-not-found"


@TABLE.get("/topics/{topic}/dead-letters", NONE, "conflict")
async def list_dead_letters(
    at: At, path: bodies.TopicPath, query: bodies.DeadQuery
) -> views.MessageList:
    """List dead letters, the oldest of each slot first.

    A page may have fewer than `limit` before the last one: a request looks at 5000 dead letters.
    """
    if query.filter is None:
        return await walk(at, path.topic, query, "dead")
    wanted = dead_letter_filter.parse(query.filter)
    now_ms = (await at.admin.stats(path.topic))["now_ms"]
    return await walk(
        at, path.topic, query, "dead", lambda message: wanted.matches(message, now_ms)
    )


@TABLE.post("/topics/{topic}/dead-letters/redrive", NONE, "conflict", role=Role.OPERATOR)
async def redrive(at: At, path: bodies.TopicPath, body: bodies.Redrive) -> views.Redriven:
    """Send dead letters back to be consumed again, with all their retries.

    A request that ends before all are sent goes on where it stopped when it is repeated.
    """
    done = await at.admin.redrive(
        path.topic, ids=body.ids, reason=body.reason, type=body.type, older_than=body.older_than,
        dry_run=body.dry_run, rate=body.rate,
    )  # fmt: skip
    return views.Redriven(**done._asdict())


@TABLE.post("/topics/{topic}/purge", NONE, "conflict", role=Role.ADMIN)
async def purge(at: At, path: bodies.TopicPath, body: bodies.Purge) -> views.Count:
    """Delete waiting messages or dead letters for good; messages in flight are not touched."""
    if body.confirm != path.topic:
        raise ApiError("invalid", "confirm: give the name of the topic", "confirm")
    count = await at.admin.purge(
        path.topic, body.queue, ids=body.ids, reason=body.reason, type=body.type,
        older_than=body.older_than, dry_run=body.dry_run,
    )  # fmt: skip
    return views.Count(count=count)
