"""Console pages of jobs, which change many messages in the background."""

from __future__ import annotations

import shlex

from rmq.features.dead_letters.jobs.job import Job
from rmq.features.dead_letters.pages import COUNTED_S, read_rate
from rmq.http_framework.page import PageRequest, Pages, Redirect, View, whole_number
from rmq.http_framework.problems import ApiError
from rmq.http_framework.readings import LongReading
from rmq.kernel.core.access import Role

PAGES = Pages()

ROWS = 100
OUTCOMES = 50
MATCHES_S = 10.0  # after this time, the messages of a cancel are counted again


@PAGES.get("/jobs")
async def jobs(request: PageRequest) -> View:
    """List jobs, newest first."""
    found = await request.readings.get("jobs", lambda: request.context.admin.jobs(), 1.0)
    return View("jobs.html", {"found": found[:ROWS], "count": len(found)}, "Jobs")


@PAGES.get("/jobs/{job}")
async def job(request: PageRequest) -> View:
    """Show the progress of a job, and the outcomes of the messages that the job handled last."""
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


@PAGES.get("/topics/{topic}/cancel", Role.ADMIN)
async def ask_cancel(request: PageRequest) -> View:
    """Ask the user for a filter, and show how many messages a cancel would end."""
    text, running = request.query.get("filter", "").strip(), request.query.get("running") == "on"
    reading: LongReading | None = None
    if text:
        request.disclosure.check_filter(request.context.principal, text)

        async def count(_: LongReading) -> int:
            return await request.context.admin.job_matches(
                request.topic, "cancel", conditions={"filter": text}, running=running
            )

        key = f"cancel {request.topic} {running} {text}"
        reading = request.readings.start(key, count, MATCHES_S)
        await reading.wait(COUNTED_S)
    words = ["rmq", "cancel", request.topic, "--filter", shlex.quote(text or "type=refund")]
    return View(
        "cancel_many.html",
        {
            "topic": request.topic, "filter": text, "running": running, "reading": reading,
            "command": " ".join([*words, *(["--running"] if running else [])]),
        },
        f"{request.topic}: cancel messages",
        status=400 if reading and reading.error else 200,
    )  # fmt: skip


@PAGES.post("/topics/{topic}/cancel", Role.ADMIN)
async def cancel(request: PageRequest) -> Redirect:
    """Start the job that cancels messages."""
    request.confirm(request.topic)
    text, rate = request.form.get("filter", "").strip(), request.form.get("rate", "").strip()
    if not text:
        raise ApiError("invalid", "the form has no filter; go back")
    request.disclosure.check_filter(request.context.principal, text)
    job = await request.context.admin.job_start(
        request.topic, "cancel", conditions={"filter": text},
        rate=read_rate(rate) if rate else None, by=request.context.principal.name,
        expected=whole_number(request.form.get("expected", "")),
        running=request.form.get("running") == "on",
    )  # fmt: skip
    return Redirect(request.url("jobs", job.id), "Started the cancel")


def _share(job: Job) -> float | None:
    if job.state == "done":
        return 1.0
    return min(1.0, job.matched / job.expected) if job.expected else None
