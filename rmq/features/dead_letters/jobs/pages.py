"""Pages of jobs: redrives and purges that run in the background."""

from __future__ import annotations

from rmq.features.dead_letters.jobs.job import Job
from rmq.http_framework.page import PageRequest, Pages, Redirect, View
from rmq.kernel.core.access import Role

PAGES = Pages()

ROWS = 100
OUTCOMES = 50


@PAGES.get("/jobs")
async def jobs(request: PageRequest) -> View:
    """List jobs, newest first."""
    found = await request.readings.get("jobs", lambda: request.context.admin.jobs(), 1.0)
    return View("jobs.html", {"found": found[:ROWS], "count": len(found)}, "Jobs")


@PAGES.get("/jobs/{job}")
async def job(request: PageRequest) -> View:
    """Show the progress of a job, and the outcomes of its last messages."""
    found = await request.context.admin.job(request.path["job"])
    outcomes = await request.context.admin.job_outcomes(found.id, OUTCOMES)
    return View("job.html", {"job": found, "outcomes": outcomes, "share": _share(found)}, found.id)


@PAGES.post("/jobs/{job}/{verb}", Role.OPERATOR)
async def change(request: PageRequest) -> Redirect:
    """Pause, resume or stop a job."""
    verbs = {
        "pause": request.context.admin.job_pause,
        "resume": request.context.admin.job_resume,
        "stop": request.context.admin.job_stop,
    }
    id, verb = request.path["job"], request.path["verb"]
    if verb not in verbs:
        return Redirect(request.url("jobs", id))
    done = await verbs[verb](id, by=request.context.principal.name)
    return Redirect(
        request.url("jobs", id), f"{verb.capitalize()}: {'done' if done else 'nothing to do'}"
    )


def _share(job: Job) -> float | None:
    """Return the finished part of a job, 0 to 1, or None if the messages were not counted."""
    if job.state == "done":
        return 1.0
    return min(1.0, job.matched / job.expected) if job.expected else None
