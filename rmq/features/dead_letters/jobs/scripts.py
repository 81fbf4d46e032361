"""The Lua scripts of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq.kernel.core.ids import members_of
from rmq.kernel.core.keys import job_key, job_log_key
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader


class JobReply(NamedTuple):
    """Reply of a script about a job."""

    state: int  # 1 done, 0 not done, -1 no such job
    now_ms: int


class JobTaken(NamedTuple):
    """Reply of the script `job_take`."""

    state: int  # 1 the runner has the lease, 0 it does not, -1 no such job
    now_ms: int
    fields: dict[str, bytes]


class JobStepReply(NamedTuple):
    """Reply of the script `job_step`."""

    state: int  # 1 recorded, 0 the runner lost the job, -1 no such job
    job_state: str
    batch: int  # number of the batch to handle now
    now_ms: int


class Batch(NamedTuple):
    """Messages of one slot that a job changes together, and where the search continues.

    Attributes:
        slot: Index of the slot.
        ids: Ids of the messages.
        cursor: Position after the batch, as text.
        examined: Number of messages that the job has examined so far.
        is_last: Whether this is the last batch of the job.
    """

    slot: int
    ids: list[bytes]
    cursor: str
    examined: int
    is_last: bool


def job_start(prefix: str, job: str, definition: Sequence[str]) -> Command[JobReply]:
    """Store a job. Return whether the job is new (1 or 0), and its start time."""
    return _changing("job_start", prefix, job, definition)


def job_pause(prefix: str, job: str) -> Command[JobReply]:
    """Pause a job until it is resumed."""
    return _changing("job_pause", prefix, job)


def job_resume(prefix: str, job: str) -> Command[JobReply]:
    """Resume a paused job."""
    return _changing("job_resume", prefix, job)


def job_stop(prefix: str, job: str, keep_s: int) -> Command[JobReply]:
    """End a job."""
    return Command(
        script_loader.load("job_stop"),
        (job_key(prefix, job), job_log_key(prefix, job)),
        [clock.now_us, keep_s],
        _job_reply,
    )


def _changing(verb: str, prefix: str, job: str, args: Sequence[Any] = ()) -> Command[JobReply]:
    return Command(
        script_loader.load(verb), (job_key(prefix, job),), [clock.now_us, *args], _job_reply
    )


def _job_reply(reply: list[Any]) -> JobReply:
    return JobReply(reply[0], reply[1])


def job_take(prefix: str, job: str, runner: str, hold_ms: int) -> Command[JobTaken]:
    """Get or renew the lease of a job. With `hold_ms=0`, end it. Return the fields of the job."""

    def parse(reply: list[Any]) -> JobTaken:
        names, values = reply[2::2], reply[3::2]
        fields = {name.decode(): value for name, value in zip(names, values, strict=True)}
        return JobTaken(reply[0], reply[1], fields)

    return Command(
        script_loader.load("job_take"),
        (job_key(prefix, job),),
        [clock.now_us, runner, hold_ms],
        parse,
    )


def job_step(
    prefix: str,
    job: str,
    runner: str,
    hold_ms: int,
    *,
    number: int,
    letters: str,
    examined: int,
    cursor: str,
    slot: int = 0,
    ids: Sequence[bytes] = (),
    last: bool = False,
    keep_s: int,
    most: int,
) -> Command[JobStepReply]:
    """Record what a job did with a batch, and which messages are in its next batch."""
    return Command(
        script_loader.load("job_step"),
        (job_key(prefix, job), job_log_key(prefix, job)),
        [
            clock.now_us, runner, hold_ms, number, letters, examined, cursor, slot,
            b"".join(members_of(ids)), 1 if last else "", keep_s, most,
        ],
        lambda reply: JobStepReply(reply[0], reply[1].decode(), reply[2], reply[3]),
    )  # fmt: skip
