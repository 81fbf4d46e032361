"""Jobs in tests of scripts: their keys before and after, and calls on them."""

from __future__ import annotations

from typing import Any

from rmq.features.dead_letters.jobs import scripts
from rmq.kernel.core.keys import job_key, job_log_key
from rmq.kernel.transport.flow.steps import Command
from tests.lua.box import Box

JOB = "t.0a1b2c3d"
DEFINITION = ("verb", "redrive", "rate", "")
KEY, LOG = job_key("rmq", JOB), job_log_key("rmq", JOB)


def clear(box: Box) -> None:
    box.redis.delete(KEY, LOG)


def begin(box: Box, runner: str = "") -> None:
    """Start the job, and let a runner take it."""
    clear(box)
    assert box.run(scripts.job_start("rmq", JOB, DEFINITION)).state == 1
    if runner:
        assert box.run(scripts.job_take("rmq", JOB, runner, 10_000)).state == 1


def step(runner: str = "me", **given: Any) -> Command[scripts.JobStepReply]:
    """A step of the job; by default the first one, which notes nothing."""
    values: dict[str, Any] = {
        "number": 0, "letters": "", "examined": 0, "cursor": "", "keep_s": 60, "most": 5,
    }  # fmt: skip
    return scripts.job_step("rmq", JOB, runner, 10_000, **values | given)


def fields(box: Box) -> dict[str, str]:
    """The job's hash."""
    return {
        name.decode(): value.decode("latin-1") for name, value in box.redis.hgetall(KEY).items()
    }


def whole(box: Box) -> tuple[dict[str, str], list[bytes]]:
    """Everything that stands in Redis about the job."""
    return fields(box), box.redis.lrange(LOG, 0, -1)


def changed(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Fields that differ: the new value, or None."""
    names = before.keys() | after.keys()
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}
