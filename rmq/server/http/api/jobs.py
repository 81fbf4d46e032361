"""Jobs: redrives that go on by themselves, run by the services of a server."""

from __future__ import annotations

from rmq.server.http.api import bodies, views
from rmq.server.http.api.operation import At, Table
from rmq.server.http.principal import Role

TABLE = Table("jobs")
NONE = "not-found"


@TABLE.get("/jobs")
async def list_jobs(at: At, query: bodies.JobsQuery) -> views.JobList:
    """List jobs, the newest first; a job is kept for 7 days."""
    found = await at.admin.jobs(query.topic)
    return views.JobList(jobs=[views.job_of(job) for job in found[: query.limit]])


@TABLE.post("/topics/{topic}/jobs", "topic-not-found", "conflict", role=Role.OPERATOR, status=201)
async def start_job(at: At, path: bodies.TopicPath, body: bodies.NewJob) -> views.Job:
    """Start a redrive of the dead letters of a topic, which goes on after this answer.

    A request that is repeated starts another one; each dead letter is sent back once all the same.
    """
    conditions = {
        "ids": body.ids, "reason": body.reason, "type": body.type, "older_than": body.older_than,
    }  # fmt: skip
    given = {name: value for name, value in conditions.items() if value is not None}
    job = await at.admin.job_start(path.topic, conditions=given, rate=body.rate, by=body.by)
    return views.job_of(job)


@TABLE.get("/jobs/{job}", NONE)
async def get_job(at: At, path: bodies.JobPath) -> views.Job:
    """Return how far a job is."""
    return views.job_of(await at.admin.job(path.job))


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
