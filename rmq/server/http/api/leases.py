"""Leases and consumers: what is in flight, with whom, and for how long."""

from __future__ import annotations

from rmq.server.http.api import bodies, views
from rmq.server.http.api.messages import page_of
from rmq.server.http.api.operation import At, Table

TABLE = Table("leases")
NONE = "topic-not-found"


@TABLE.get("/topics/{topic}/leases", NONE, "conflict")
async def list_leases(at: At, path: bodies.TopicPath, query: bodies.LeasesQuery) -> views.LeaseList:
    """List the messages in flight, with the time that is left, and who has them.

    The holder is known of what a worker process runs: it reports its 20 oldest runs every 10 s.
    """
    found, cursor = await page_of(at, path.topic, query, "prepare")
    now_ms = (await at.admin.stats(path.topic))["now_ms"]
    runs = {
        run.id: (worker, run)
        for worker in await at.admin.workers()
        for run in worker.running
        if run.topic == path.topic
    }
    return views.LeaseList(leases=views.leases_of(found, now_ms, runs), cursor=cursor)


@TABLE.get("/topics/{topic}/consumers", NONE, "conflict")
async def list_consumers(at: At, path: bodies.TopicPath) -> views.Consumers:
    """List the worker processes that handle a topic, and the queries that hold messages of it.

    Consumers that a program uses itself report nothing; what they have is in flight.
    """
    queries = await at.admin.queries(path.topic)
    workers = [each for each in await at.admin.workers() if path.topic in each.topics]
    in_flight = (await at.admin.stats(path.topic))["in_flight"]
    return views.Consumers(topic=path.topic, in_flight=in_flight, workers=workers, queries=queries)
