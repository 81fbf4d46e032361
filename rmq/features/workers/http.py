"""Worker processes, as they last reported."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from rmq.features.workers.status import WorkerStatus
from rmq.features.workers.wanted import PROCESSES_MAX
from rmq.web.operation import RequestContext, Table
from rmq.web.requests import Answer, Request, TopicPath, show

TABLE = Table("server")


class WorkerList(Answer):
    """Worker processes, as they last reported."""

    workers: list[WorkerStatus]


@TABLE.get("/workers")
async def list_workers(context: RequestContext) -> WorkerList:
    """List worker processes, by host and pid, as they last reported."""
    return WorkerList(workers=await context.admin.workers())


class WantedQuery(Request):
    """The bounds of the answer."""

    min: Annotated[int, Meta(ge=0, le=PROCESSES_MAX)] = 1
    max: Annotated[int, Meta(ge=1, le=PROCESSES_MAX)] | None = None


class Wanted(Answer):
    """How many worker processes a topic needs, and the terms from which that follows.

    Attributes:
        processes: how many.
        running: how many processes handle the topic now.
        executors: arrival_per_s * run_s + backlog * run_s / work_off_s; null: not known.
        arrival_per_s: messages that became ready in a second, of the last minute or, where that is
            more, the last five; null: not known.
        run_s: for how long a message keeps an executor busy; null: not known.
        backlog: messages that may be taken now.
        work_off_s: in which time they are to be worked off.
        executors_per_process: of the processes that handle the topic; null: there is none.
        unknown: what is not known, and what was assumed; empty: nothing.
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
    """Tell how many worker processes a topic needs."""
    found = await context.admin.workers_wanted(path.topic, min=query.min, max=query.max)
    return show(found, Wanted, topic=path.topic)
