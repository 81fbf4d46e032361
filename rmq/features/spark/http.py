"""HTTP routes of queries and sinks of engines such as Spark."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from rmq.features.spark.held import HeldQuery, Sink
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Count, Done, Request, Text, TopicPath
from rmq.kernel.core.access import Role

Run = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$", min_length=32, max_length=32)]


class QueryPath(TopicPath):
    """A query that has messages of a topic in flight."""

    run: Run


class SinkQuery(Request):
    """The query whose record of published batches is selected."""

    query: Text


class ReleaseQuery(Request):
    """Options of a release.

    With `force`, RMQ releases messages even if a process runs the query.
    """

    force: bool = False
    dry_run: bool = False


TABLE = Table("queries")


class QueryList(Answer):
    """Queries that have messages of a topic in flight."""

    queries: list[HeldQuery]


@TABLE.get("/topics/{topic}/queries")
async def list_queries(context: RequestContext, path: TopicPath) -> QueryList:
    """List the queries that have messages of a topic in flight."""
    return QueryList(queries=await context.admin.queries(path.topic))


@TABLE.post("/topics/{topic}/queries/{run}/release", role=Role.OPERATOR)
async def release_query(context: RequestContext, path: QueryPath, body: ReleaseQuery) -> Count:
    """Give back all messages of a query that will not start again."""
    count = await context.admin.release_query(
        path.topic, path.run, force=body.force, dry_run=body.dry_run
    )
    return Count(count=count)


class SinkList(Answer):
    """The last batch that each query has published to a topic."""

    sinks: list[Sink]


@TABLE.get("/topics/{topic}/sinks")
async def list_sinks(context: RequestContext, path: TopicPath) -> SinkList:
    """List the last batch that each query has published to a topic.

    The request scans all keys of the database, which takes long with many millions of keys.
    """
    return SinkList(sinks=await context.admin.sinks(path.topic))


@TABLE.delete("/topics/{topic}/sinks", role=Role.ADMIN)
async def forget_sink(context: RequestContext, path: TopicPath, query: SinkQuery) -> Done:
    """Delete the record of a query's published batches.

    Use this request after you have deleted the checkpoint of the query.
    """
    return Done(done=await context.admin.forget_sink(path.topic, query.query))
