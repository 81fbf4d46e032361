"""HTTP routes of worker processes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from rmq.features.workers.status import WorkerStatus
from rmq.features.workers.wanted import PROCESSES_MAX
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Request, TopicPath, show

TABLE = Table("server")


class WorkerList(Answer):
    """Worker processes, with their last reports."""

    workers: list[WorkerStatus]


@TABLE.get("/workers")
async def list_workers(context: RequestContext) -> WorkerList:
    """List worker processes with their last reports, sorted by host and pid."""
    return WorkerList(workers=await context.admin.workers())


class WantedQuery(Request):
    """Minimum and maximum of the computed number."""

    min: Annotated[int, Meta(ge=0, le=PROCESSES_MAX)] = 1
    max: Annotated[int, Meta(ge=1, le=PROCESSES_MAX)] | None = None


class Wanted(Answer):
    """How many worker processes a topic needs, and how RMQ calculated this number.

    Attributes:
        processes: Number of processes that the topic needs.
        running: Number of processes that handle the topic now.
        executors: arrival_per_s * run_s + backlog * run_s / work_off_s, or null if a term is
            unknown.
        arrival_per_s: Messages that became ready per second, in the last minute or in the last five
            minutes. RMQ uses the larger rate. null if unknown.
        run_s: Mean time for which a message occupies an executor, or null if unknown.
        backlog: Number of messages that consumers may receive now.
        work_off_s: Time in which the workers should finish the backlog.
        executors_per_process: Executors of a process that handles the topic, or null if there is no
            such process.
        unknown: Unknown terms and assumptions. May be empty.
    """

    topic: str
    processes: int
    running: int
    executors: float | None
    arrival_per_s: float | None
    run_s: float | None
    backlog: int
    work_off_s: float
    executors_per_process: float | None
    unknown: str


@TABLE.get("/topics/{topic}/workers-wanted")
async def get_workers_wanted(
    context: RequestContext, path: TopicPath, query: WantedQuery
) -> Wanted:
    """Compute how many worker processes a topic needs."""
    found = await context.admin.workers_wanted(path.topic, min=query.min, max=query.max)
    return show(found, Wanted, topic=path.topic)
