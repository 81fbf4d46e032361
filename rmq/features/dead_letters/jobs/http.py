"""Jobs: redrives and purges that run in the background, run by the services of a server."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from rmq.features.dead_letters import http
from rmq.features.dead_letters.jobs.job import Job as StoredJob, JobState
from rmq.kernel.core.access import Role
from rmq.web.operation import RequestContext, Table, check_confirm, read_cursor, write_cursor
from rmq.web.requests import (
    BY,
    Answer,
    CursorText,
    Done,
    JobText,
    Limit,
    Line,
    Name,
    Request,
    TopicPath,
    show,
)


class JobPath(Request):
    """A job, as TOPIC.XXXXXXXX."""

    job: JobText


class JobsQuery(Request):
    """Which jobs are listed."""

    topic: Name | None = None
    limit: Limit = 100
    cursor: CursorText | None = None


class OutcomesQuery(Request):
    """How many outcomes are listed."""

    limit: Limit = 100


class ChangeJob(Request):
    """The name of the person who changes a job, for people to read."""

    by: Line = BY


TABLE = Table("jobs")
NONE = "not-found"


class JobList(Answer):
    """Jobs, the newest first.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    jobs: list[Job]
    cursor: str | None


@TABLE.get("/jobs")
async def list_jobs(context: RequestContext, query: JobsQuery) -> JobList:
    """List jobs, the newest first; a job is kept for 7 days."""

    def place(job: StoredJob) -> tuple[int, str]:
        return -job.began_ms, job.id

    found = sorted(await context.admin.jobs(query.topic), key=place)
    if query.cursor:
        after = read_cursor(query.cursor, tuple[int, str])
        found = [job for job in found if place(job) > after]
    page = found[: query.limit]
    cursor = write_cursor(place(page[-1])) if len(found) > len(page) else None
    return JobList(jobs=[job_of(job) for job in page], cursor=cursor)


class Job(Answer):
    """A job; fields as of `rmq job show`; `keep`: seconds in the trash, of a purge."""

    id: str
    topic: str
    verb: str
    conditions: dict[str, Any]
    rate: float | None
    keep: float
    by: str
    state: JobState
    began: datetime
    ended: datetime | None
    expected: int | None
    examined: int
    done: int
    gone: int
    unreadable: int
    runner: str
    to: str | None
    refused: dict[str, int]


@TABLE.post("/topics/{topic}/jobs", role=Role.OPERATOR, status=201)
async def start_job(context: RequestContext, path: TopicPath, body: http.NewJob) -> Job:
    """Start a redrive or purge of the dead letters of a topic, which continues after this answer.

    A dry run of `redrive` or `purge` counts them first. A request that is repeated with the same
    header Idempotency-Key starts no other job; without one it does, and each dead letter is sent
    back once all the same.
    """
    if body.verb == "purge":
        context.require(Role.ADMIN)  # as the purge that it does
        check_confirm(body.confirm, path.topic)
    job = await context.admin.job_start(
        path.topic, body.verb, conditions=body.given(), rate=body.rate, keep=body.keep, by=body.by,
        expected=body.expected, to=body.to, dedup_key=context.headers.get("Idempotency-Key"),
    )  # fmt: skip
    return job_of(job)


@TABLE.get("/jobs/{job}", NONE)
async def get_job(context: RequestContext, path: JobPath) -> Job:
    """Return how far a job is."""
    return job_of(await context.admin.job(path.job))


class JobOutcomes(Answer):
    """The outcomes of the last messages of a job, the newest first."""

    outcomes: list[JobOutcome]


@TABLE.get("/jobs/{job}/outcomes", NONE)
async def list_job_outcomes(
    context: RequestContext, path: JobPath, query: OutcomesQuery
) -> JobOutcomes:
    """List what became of the last messages of a job, the newest first."""
    await context.admin.job(path.job)
    found = await context.admin.job_outcomes(path.job, query.limit)
    return JobOutcomes(outcomes=[show(each, JobOutcome) for each in found])


@TABLE.post("/jobs/{job}/pause", NONE, role=Role.OPERATOR)
async def pause_job(context: RequestContext, path: JobPath, body: ChangeJob) -> Done:
    """Pause a job until it is resumed."""
    return Done(done=await context.admin.job_pause(path.job, by=body.by))


@TABLE.post("/jobs/{job}/resume", NONE, role=Role.OPERATOR)
async def resume_job(context: RequestContext, path: JobPath, body: ChangeJob) -> Done:
    """Resume a paused job."""
    return Done(done=await context.admin.job_resume(path.job, by=body.by))


@TABLE.post("/jobs/{job}/stop", NONE, role=Role.OPERATOR)
async def stop_job(context: RequestContext, path: JobPath, body: ChangeJob) -> Done:
    """End a job after its current batch; what it has done stays done."""
    return Done(done=await context.admin.job_stop(path.job, by=body.by))


class JobOutcome(Answer):
    """The outcome of a job for a message.

    gone: it was no longer a dead letter. From conflict on: on the way to another topic it was
    refused, and stayed dead.
    """

    id: str
    outcome: Literal[
        "done", "gone", "unreadable", "conflict", "too large", "full", "paused", "moving",
        "not durable",
    ]  # fmt: skip


def job_of(found: StoredJob) -> Job:
    """Return a job as it is shown."""
    return show(found, Job, keep=found.keep_ms / 1000)
