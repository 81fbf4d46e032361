"""HTTP routes of jobs: redrives, purges, cancels and replays that `rmq server` runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from rmq.features.dead_letters import http
from rmq.features.dead_letters.jobs.job import Job as StoredJob, JobState
from rmq.http_framework.operation import (
    RequestContext,
    Table,
    check_confirm,
    read_cursor,
    write_cursor,
)
from rmq.http_framework.requests import (
    BY,
    Answer,
    Count,
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
from rmq.kernel.core.access import Role


class JobPath(Request):
    """The id of a job. It has the form TOPIC.XXXXXXXX."""

    job: JobText


class JobsQuery(Request):
    """Selects jobs to list."""

    topic: Name | None = None
    limit: Limit = 100
    cursor: CursorText | None = None


class OutcomesQuery(Request):
    """Limits the number of outcomes to list."""

    limit: Limit = 100


class ChangeJob(Request):
    """The name of the person who changes a job, for display."""

    by: Line = BY


TABLE = Table("jobs")
NONE = "not-found"


class JobList(Answer):
    """Jobs, newest first."""

    jobs: list[Job]
    cursor: str | None


@TABLE.get("/jobs")
async def list_jobs(context: RequestContext, query: JobsQuery) -> JobList:
    """List jobs, newest first. Redis keeps a job for 7 days after its end."""

    def position(job: StoredJob) -> tuple[int, str]:
        return -job.began_ms, job.id

    found = sorted(await context.admin.jobs(query.topic), key=position)
    if query.cursor:
        after = read_cursor(query.cursor, tuple[int, str])
        found = [job for job in found if position(job) > after]
    page = found[: query.limit]
    cursor = write_cursor(position(page[-1])) if len(found) > len(page) else None
    return JobList(jobs=[job_of(job) for job in page], cursor=cursor)


class Job(Answer):
    """A job, with the same fields as in `rmq job show`.

    `keep` is the number of seconds for which purged messages stay in the trash. `lost_to` is set if
    the history removed messages before a replay could read them. It is the time of the last ack
    among these messages.
    """

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
    running: bool
    requested: int
    fresh: bool
    lost_to: datetime | None


@TABLE.post("/topics/{topic}/jobs", role=Role.OPERATOR, status=201)
async def start_job(context: RequestContext, path: TopicPath, body: http.NewJob) -> Job:
    """Start a redrive, purge, cancel or replay as a job, which continues after this response.

    To count the messages first, use `jobs/matches`, or a dry run of `redrive` or `purge`. If you
    repeat a request with the same Idempotency-Key header, RMQ starts no second job. Without the
    header, a repeated request starts another job. Each message is still changed only once, but a
    second replay sends the messages again.
    """
    if body.verb not in ("redrive", "replay"):
        context.require(Role.ADMIN)  # as a purge requires
        check_confirm(body.confirm, path.topic)
    job = await context.admin.job_start(
        path.topic, body.verb, conditions=body.given(), rate=body.rate, keep=body.keep, by=body.by,
        expected=body.expected, to=body.to, dedup_key=context.headers.get("Idempotency-Key"),
        running=body.running, fresh=body.fresh,
    )  # fmt: skip
    return job_of(job)


@TABLE.post("/topics/{topic}/jobs/matches", role=Role.OPERATOR)
async def count_job_matches(
    context: RequestContext, path: TopicPath, body: http.JobMatches
) -> Count:
    """Count the messages that a job would change now. Change nothing."""
    found = await context.admin.job_matches(
        path.topic, body.verb, conditions=body.given(), running=body.running
    )
    return Count(count=found)


@TABLE.get("/jobs/{job}", NONE)
async def get_job(context: RequestContext, path: JobPath) -> Job:
    """Return the state and progress of a job."""
    return job_of(await context.admin.job(path.job))


class JobOutcomes(Answer):
    """Results of the job for the messages that it handled last, newest first."""

    outcomes: list[JobOutcome]


@TABLE.get("/jobs/{job}/outcomes", NONE)
async def list_job_outcomes(
    context: RequestContext, path: JobPath, query: OutcomesQuery
) -> JobOutcomes:
    """List what the job did with the messages that it handled last, newest first."""
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
    """End a job after its current batch. The job does not undo finished work."""
    return Done(done=await context.admin.job_stop(path.job, by=body.by))


class JobOutcome(Answer):
    """The outcome of a job for one message.

    "gone" means that the message was no longer a dead letter, that it was settled before the
    cancel, or that the history no longer had it. "conflict", "too large", "full", "paused",
    "moving" and "not durable" mean that the target topic of a redrive refused the message. A
    refused message stays dead. "requested" means that a cancel requested the cancellation of a
    message in flight. "already requested", "in flight", "in query" and "dead" mean that a cancel
    did not change the message.
    """

    id: str
    outcome: Literal[
        "done", "gone", "unreadable", "conflict", "too large", "full", "paused", "moving",
        "not durable", "requested", "already requested", "in flight", "in query", "dead",
    ]  # fmt: skip


def job_of(found: StoredJob) -> Job:
    """Convert a job to the response of the API."""
    return show(found, Job, keep=found.keep_ms / 1000)
