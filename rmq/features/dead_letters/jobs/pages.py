"""Jobs: redrives and purges that go on by themselves."""

from __future__ import annotations

from rmq.features.dead_letters.jobs.job import Job
from rmq.kernel.core.access import Role
from rmq.web.page import Ask, Pages, Redirect, View

PAGES = Pages()

ROWS = 100
OUTCOMES = 50


@PAGES.get("/jobs")
async def jobs(ask: Ask) -> View:
    """List jobs, the newest first."""
    found = await ask.readings.get("jobs", lambda: ask.at.admin.jobs(), 1.0)
    return View("jobs.html", {"found": found[:ROWS], "count": len(found)}, "Jobs")


@PAGES.get("/jobs/{job}")
async def job(ask: Ask) -> View:
    """Show how far a job is, and what became of the last messages."""
    found = await ask.at.admin.job(ask.path["job"])
    outcomes = await ask.at.admin.job_outcomes(found.id, OUTCOMES)
    return View("job.html", {"job": found, "outcomes": outcomes, "share": _share(found)}, found.id)


@PAGES.post("/jobs/{job}/{verb}", Role.OPERATOR)
async def change(ask: Ask) -> Redirect:
    """Pause, resume or stop a job."""
    verbs = {
        "pause": ask.at.admin.job_pause,
        "resume": ask.at.admin.job_resume,
        "stop": ask.at.admin.job_stop,
    }
    id, verb = ask.path["job"], ask.path["verb"]
    if verb not in verbs:
        return Redirect(ask.url("jobs", id))
    done = await verbs[verb](id, by=ask.at.principal.name)
    return Redirect(
        ask.url("jobs", id), f"{verb.capitalize()}: {'done' if done else 'nothing to do'}"
    )


def _share(job: Job) -> float | None:
    """Return how much of a job is done, 0 to 1; None where nobody counted before."""
    if job.state == "done":
        return 1.0
    return min(1.0, job.matched / job.expected) if job.expected else None
