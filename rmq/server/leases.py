"""Show messages in flight, the workers that have them, and the end of their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from rmq.features.spark.held import HeldQuery
from rmq.features.workers.status import HandlerRun, WorkerStatus
from rmq.http_framework.message import page_of
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.page import PageRequest, Pages, View
from rmq.http_framework.requests import Answer, LeasesQuery, TopicPath, show
from rmq.kernel.core.message import Message
from rmq.kernel.core.score import shared_lease

PAGES = Pages()

ROWS = 100


@PAGES.get("/topics/{topic}/leases")
async def leases(request: PageRequest) -> View:
    """Show the messages in flight and the consumers of a topic."""
    path = TopicPath(topic=request.topic)
    query = LeasesQuery(limit=ROWS, cursor=request.query.get("cursor") or None)
    found, consumers = await asyncio.gather(
        list_leases(request.context, path, query), list_consumers(request.context, path)
    )
    values = {
        "topic": request.topic, "found": request.shown(found.leases), "cursor": found.cursor,
        "is_first": not query.cursor, "workers": consumers.workers[:ROWS],
        "held": consumers.queries[:ROWS], "in_flight": consumers.in_flight,
    }  # fmt: skip
    return View("leases.html", values, f"{request.topic}: leases")


TABLE = Table("leases")


class LeaseList(Answer):
    """Messages in flight, sorted by slot (part of the topic) and by the end of their leases."""

    leases: list[Lease]
    cursor: str | None


@TABLE.get("/topics/{topic}/leases")
async def list_leases(context: RequestContext, path: TopicPath, query: LeasesQuery) -> LeaseList:
    """List the messages in flight, with their workers and the time until their leases end.

    RMQ knows the worker of a message only if it is a worker process. Each worker process reports
    its 20 oldest running messages every 10 s.
    """
    found, cursor = await page_of(context, path.topic, query, "prepare")
    now_ms = (await context.admin.stats(path.topic))["now_ms"]
    runs = {
        run.id: (worker, run)
        for worker in await context.admin.workers()
        for run in worker.running
        if run.topic == path.topic
    }
    return LeaseList(leases=leases_of(found, now_ms, runs), cursor=cursor)


class Consumers(Answer):
    """The worker processes and queries that receive messages of a topic.

    A consumer in your own program is not listed.
    """

    topic: str
    in_flight: int
    workers: list[WorkerStatus]
    queries: list[HeldQuery]


@TABLE.get("/topics/{topic}/consumers")
async def list_consumers(context: RequestContext, path: TopicPath) -> Consumers:
    """List the worker processes that handle a topic, and the queries that have its messages.

    Consumers in your own programs are not listed, but their messages are listed as messages in
    flight.
    """
    queries = await context.admin.queries(path.topic)
    workers = [each for each in await context.admin.workers() if path.topic in each.topics]
    in_flight = (await context.admin.stats(path.topic))["in_flight"]
    return Consumers(topic=path.topic, in_flight=in_flight, workers=workers, queries=queries)


Run = tuple[WorkerStatus, HandlerRun]


class LeaseHolder(Answer):
    """The worker process that handles a message, with the same fields as in `rmq worker ls`.

    Attributes:
        handler: Name of the handler. Empty if the worker has not reported this message, but another
            message with the same shared lease.
        seconds: How long the handler has been running, or null if the worker has not reported the
            message.
    """

    id: str
    host: str
    pid: int
    handler: str
    seconds: float | None


class Lease(Answer):
    """A message in flight.

    Attributes:
        kind: "own" if the message has its own lease. "shared" if the message has the lease that a
            worker process shares among its messages of a slot (part of the topic). "query" if the
            message has the lease of a query such as Spark's (see `/queries`).
        number: Number of a shared lease.
        deadline: End of the lease, or null if unknown, for example for a query.
        left_s: Seconds until the lease ends. If the lease has expired, the value is negative, and
            RMQ soon rolls the message back.
        holder: Worker that handles the message, or null if unknown, for example for a consumer in
            your own program.
    """

    id: str
    slot: int
    type: str | None
    deliveries: int
    kind: Literal["own", "shared", "query"]
    number: int | None
    deadline: datetime | None
    left_s: float | None
    holder: LeaseHolder | None


def leases_of(messages: list[Message], now_ms: int, runs: Mapping[str, Run]) -> list[Lease]:
    """Convert messages in flight to leases.

    Args:
        messages: The messages.
        now_ms: Time of Redis' clock, in epoch ms.
        runs: What workers have reported about each message. The key is the message id.
    """
    of_lease: dict[tuple[int, int], WorkerStatus] = {}
    for message in messages:
        number, run = shared_lease(message.score), runs.get(str(message.id))
        if number and run:
            of_lease[message.slot, number] = run[0]
    return [_lease_of(message, now_ms, runs.get(str(message.id)), of_lease) for message in messages]


def _lease_of(
    message: Message, now_ms: int, run: Run | None, of_lease: Mapping[tuple[int, int], WorkerStatus]
) -> Lease:
    number = shared_lease(message.score)
    worker = run[0] if run else of_lease.get((message.slot, number))
    holder = None
    if worker is not None:
        handler, seconds = (run[1].handler, run[1].seconds) if run else ("", None)
        holder = show(worker, LeaseHolder, handler=handler, seconds=seconds)
    ends = message.deadline
    left_s = None if ends is None else round(ends.timestamp() - now_ms / 1000, 3)
    kind = "query" if message.held_by_query else "shared" if number else "own"
    return show(message, Lease, kind=kind, number=number or None, left_s=left_s, holder=holder)
