"""Worker processes, as they last reported."""

from __future__ import annotations

from rmq.features.workers.status import WorkerStatus
from rmq.web.operation import RequestContext, Table
from rmq.web.requests import Answer

TABLE = Table("server")


class WorkerList(Answer):
    """Worker processes, as they last reported."""

    workers: list[WorkerStatus]


@TABLE.get("/workers")
async def list_workers(context: RequestContext) -> WorkerList:
    """List worker processes, by host and pid, as they last reported."""
    return WorkerList(workers=await context.admin.workers())
