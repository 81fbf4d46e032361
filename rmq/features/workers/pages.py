"""Workers: processes that run handlers, and what they run just now."""

from __future__ import annotations

from rmq.features.workers.status import WorkerStatus
from rmq.web.page import PageRequest, Pages, View

PAGES = Pages()

ROWS = 200
SILENT_S = 30.0  # a process that has not reported for so long has probably died


@PAGES.get("/workers")
async def workers(request: PageRequest) -> View:
    """List worker processes, and the longest runs."""
    contains = request.query.get("contains", "")[:128]
    every = await request.readings.get("workers", lambda: request.context.admin.workers(), 1.0)
    found = [each for each in every if contains in " ".join((each.id, each.host, *each.topics))]
    found.sort(key=lambda each: (each.host, each.pid))
    runs = sorted(
        ((run, each) for each in found for run in each.running), key=lambda pair: pair[0].since
    )
    return View(
        "workers.html",
        {"found": found[:ROWS], "count": len(found), "runs": runs[:50], "contains": contains,
         "silent_s": SILENT_S, "taken": lambda each: _sum(each, "taken"),
         "failed": lambda each: _sum(each, "nack")},
        "Workers",
    )  # fmt: skip


def _sum(worker: WorkerStatus, verb: str) -> int:
    return sum(handler.counts.get(verb, 0) for handler in worker.handlers)
