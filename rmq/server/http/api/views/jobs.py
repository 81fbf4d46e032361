"""Jobs as they are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from rmq.core import job
from rmq.core.job import JobState
from rmq.server.http.api.views.answer import Answer


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


class JobList(Answer):
    """Jobs, the newest first.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    jobs: list[Job]
    cursor: str | None


class JobOutcome(Answer):
    """The outcome of a job for a message.

    gone: somebody else had taken it away. From conflict on: on the way to another topic it was
    refused, and stayed dead.
    """

    id: str
    outcome: Literal[
        "done", "gone", "unreadable", "conflict", "too large", "full", "paused", "moving",
        "not durable",
    ]  # fmt: skip


class JobOutcomes(Answer):
    """The outcomes of the last messages of a job, the newest first."""

    outcomes: list[JobOutcome]


def job_of(found: job.Job) -> Job:
    """Return a job as it is shown."""
    return Job(
        id=found.id, topic=found.topic, verb=found.verb, conditions=found.conditions,
        rate=found.rate, keep=found.keep_ms / 1000, by=found.by, state=found.state,
        began=found.began, ended=found.ended, expected=found.expected, examined=found.examined,
        done=found.done, gone=found.gone, unreadable=found.unreadable, runner=found.runner,
        to=found.to, refused=dict(found.refused),
    )  # fmt: skip


def outcome_of(found: job.JobOutcome) -> JobOutcome:
    """Return the outcome of a job for a message as it is shown."""
    return JobOutcome(id=str(found.id), outcome=found.outcome)  # type: ignore[arg-type]
