"""Queries and sinks, such as Spark's, and claims on business keys."""

from __future__ import annotations

from rmq.server.http.api import bodies, views
from rmq.server.http.api.operation import At, Table
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import Role

TABLE = Table("queries")
NONE = "topic-not-found"


@TABLE.get("/topics/{topic}/queries", NONE, "conflict")
async def list_queries(at: At, path: bodies.TopicPath) -> views.QueryList:
    """List the queries that hold messages of a topic."""
    return views.QueryList(queries=await at.admin.queries(path.topic))


@TABLE.post("/topics/{topic}/queries/{run}/release", NONE, "conflict", role=Role.OPERATOR)
async def release_query(at: At, path: bodies.QueryPath, body: bodies.ReleaseQuery) -> views.Count:
    """Give back at once all messages of a query that never comes back."""
    count = await at.admin.release_query(
        path.topic, path.run, force=body.force, dry_run=body.dry_run
    )
    return views.Count(count=count)


@TABLE.get("/topics/{topic}/sinks", NONE, "conflict")
async def list_sinks(at: At, path: bodies.TopicPath) -> views.SinkList:
    """List the last batch that each query has published to a topic.

    It walks all keys of the database: seldom a thing to ask for where there are many millions.
    """
    return views.SinkList(sinks=await at.admin.sinks(path.topic))


@TABLE.delete("/topics/{topic}/sinks", NONE, "conflict", role=Role.ADMIN)
async def forget_sink(at: At, path: bodies.TopicPath, query: bodies.SinkQuery) -> views.Done:
    """Forget which batches a query has published, for one whose checkpoint is gone."""
    return views.Done(done=await at.admin.forget_sink(path.topic, query.query))


@TABLE.get("/topics/{topic}/claims", NONE, "not-found", "conflict")
async def get_claim(at: At, path: bodies.TopicPath, query: bodies.ClaimQuery) -> views.Claim:
    """Return the claim on a business key."""
    found = await at.admin.claim(path.topic, query.key, consumer=query.consumer)
    if found is None:
        raise ApiError("not-found", "there is no claim on this key", "key")
    return views.Claim(**found._asdict() | {"message_id": str(found.message_id)})


@TABLE.delete("/topics/{topic}/claims", NONE, "conflict", role=Role.ADMIN)
async def delete_claim(at: At, path: bodies.TopicPath, query: bodies.ClaimQuery) -> views.Done:
    """Delete the claim on a business key: the next message of the key is worked on."""
    done = await at.admin.unclaim(path.topic, query.key, consumer=query.consumer)
    return views.Done(done=done)
