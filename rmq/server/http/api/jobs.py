"""Jobs: redrives and purges that go on by themselves, run by the services of a server."""

from __future__ import annotations

from rmq.core.job import Job
from rmq.server.http.api import bodies, cursors, views
from rmq.server.http.api.operation import At, Table, check_confirm
from rmq.server.http.principal import Role

TABLE = Table("jobs")
NONE = "not-found"


@TABLE.get("/jobs")
async def list_jobs(at: At, query: bodies.JobsQuery) -> views.JobList:
    """List jobs, the newest first; a job is kept for 7 days."""

    def place(job: Job) -> tuple[int, str]:
        return -job.began_ms, job.id

    found = sorted(await at.admin.jobs(query.topic), key=place)
    if query.cursor:
        after = cursors.read(query.cursor, tuple[int, str])
        found = [job for job in found if place(job) > after]
    page = found[: query.limit]
    return views.JobList(
        jobs=[views.job_of(job) for job in page],
        cursor=cursors.write(place(page[-1])) if len(found) > len(page) else None,
    )


@TABLE.post("/topics/{topic}/jobs", "topic-not-found", "conflict", role=Role.OPERATOR, status=201)
async def start_job(at: At, path: bodies.TopicPath, body: bodies.NewJob) -> views.Job:
    """Start a redrive or purge of the dead letters of a topic, which goes on after this answer.

    A dry run of `redrive` or `purge` counts them first. A request that is repeated with the same
    header Idempotency-Key starts no other job; without one it does, and each dead letter is sent
    back once all the same.
    """
    if body.verb == "purge":
        at.require(Role.ADMIN)  # as the purge that it does
        check_confirm(body.confirm, path.topic)
    job = await at.admin.job_start(
        path.topic, body.verb, conditions=body.given(), rate=body.rate, keep=body.keep, by=body.by,
        expected=body.expected, to=body.to, dedup_key=at.headers.get("Idempotency-Key"),
    )  # fmt: skip
    return views.job_of(job)


@TABLE.get("/jobs/{job}", NONE)
async def get_job(at: At, path: bodies.JobPath) -> views.Job:
    """Return how far a job is."""
    return views.job_of(await at.admin.job(path.job))


@TABLE.get("/jobs/{job}/outcomes", NONE)
async def list_job_outcomes(
    at: At, path: bodies.JobPath, query: bodies.OutcomesQuery
) -> views.JobOutcomes:
    """List what became of the last messages of a job, the newest first."""
    await at.admin.job(path.job)
    found = await at.admin.job_outcomes(path.job, query.limit)
    return views.JobOutcomes(outcomes=[views.outcome_of(each) for each in found])


@TABLE.post("/jobs/{job}/pause", NONE, role=Role.OPERATOR)
async def pause_job(at: At, path: bodies.JobPath, body: bodies.ChangeJob) -> views.Done:
    """Let a job do nothing until it is resumed."""
    return views.Done(done=await at.admin.job_pause(path.job, by=body.by))


@TABLE.post("/jobs/{job}/resume", NONE, role=Role.OPERATOR)
async def resume_job(at: At, path: bodies.JobPath, body: bodies.ChangeJob) -> views.Done:
    """Let a paused job go on."""
    return views.Done(done=await at.admin.job_resume(path.job, by=body.by))


@TABLE.post("/jobs/{job}/stop", NONE, role=Role.OPERATOR)
async def stop_job(at: At, path: bodies.JobPath, body: bodies.ChangeJob) -> views.Done:
    """End a job after the batch on its way; what it has done stays done."""
    return views.Done(done=await at.admin.job_stop(path.job, by=body.by))
