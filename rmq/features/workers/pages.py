"""The console page of worker processes and their current runs."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from rmq.errors import RMQError
from rmq.features.workers.status import WorkerStatus
from rmq.http_framework.page import PageRequest, Pages, View

PAGES = Pages()

ROWS, RUNS = 200, 50
LEASES_S = 15.0  # settings are cached for this time
SILENT_S = 30.0  # a process that has not reported for this time has probably died


@PAGES.get("/workers")
async def workers(request: PageRequest) -> View:
    """List worker processes, and the longest runs."""
    contains = request.query.get("contains", "")[:128]
    every = await request.readings.get("workers", lambda: request.context.admin.workers(), 1.0)
    found = [each for each in every if contains in " ".join((each.id, each.host, *each.topics))]
    found.sort(key=lambda each: (each.host, each.pid))
    runs = sorted(
        ((run, each) for each in found for run in each.running), key=lambda pair: pair[0].since
    )[:RUNS]
    leases = await _leases(request, {run.topic for run, _ in runs})
    long_runs = {run for each in found for run in each.long_runs(leases)}
    return View(
        "workers.html",
        {"found": found[:ROWS], "count": len(found), "runs": runs, "contains": contains,
         "silent_s": SILENT_S, "received": lambda each: _sum(each, "received"),
         "failed": lambda each: _sum(each, "nack"), "long_runs": long_runs},
        "Workers",
    )  # fmt: skip


async def _leases(request: PageRequest, topics: set[str]) -> dict[str, float]:
    leases = {}
    for topic in topics:
        with suppress(RMQError):
            read = partial(request.context.admin.settings, topic)
            settings = await request.readings.get(f"settings {topic}", read, LEASES_S)
            leases[topic] = settings.lease_ms / 1000
    return leases


def _sum(worker: WorkerStatus, verb: str) -> int:
    return sum(handler.counts.get(verb, 0) for handler in worker.handlers)
