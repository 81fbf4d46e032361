"""HTTP routes of schedules: list, pause, resume, run and delete them."""

from __future__ import annotations

from datetime import datetime

from rmq.features.schedules.flows import ScheduleState
from rmq.http_framework.message import Body, Sent, body_of
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Done, Name, Nothing, TopicPath, show
from rmq.kernel.core.access import Role


class SchedulePath(TopicPath):
    """A schedule of a topic."""

    name: Name


TABLE = Table("schedules")
NONE = "not-found"
PATH = "/topics/{topic}/schedules/{name}"


class ScheduleList(Answer):
    """Schedules. The schedule that is due next is first."""

    schedules: list[Schedule]


@TABLE.get("/topics/{topic}/schedules")
async def list_schedules(context: RequestContext, path: TopicPath) -> ScheduleList:
    """List the schedules of a topic."""
    found = await context.admin.schedules(path.topic)
    return ScheduleList(schedules=[schedule_of(state) for state in found])


class Schedule(Answer):
    """A schedule, with the same fields as in `rmq schedule show`. Durations are in seconds."""

    topic: str
    name: str
    every: float | None
    cron: str | None
    tz: str
    jitter: float
    catch_up: str
    catch_up_limit: int
    body: Body
    priority: int | None
    headers: dict[str, str]
    expires: float | None
    type: str | None
    paused: bool
    next: datetime | None
    next_due: datetime | None
    last: datetime | None
    sent: int


@TABLE.get(PATH, NONE)
async def get_schedule(context: RequestContext, path: SchedulePath) -> Schedule:
    """Return a schedule."""
    return schedule_of(await context.admin.schedule(path.topic, path.name))


@TABLE.delete(PATH, NONE, role=Role.ADMIN)
async def delete_schedule(context: RequestContext, path: SchedulePath) -> Done:
    """Delete a schedule. Messages that it has sent stay."""
    return Done(done=await context.admin.schedule_delete(path.topic, path.name))


@TABLE.post(PATH + "/pause", NONE, role=Role.OPERATOR)
async def pause_schedule(context: RequestContext, path: SchedulePath, body: Nothing) -> Done:
    """Pause a schedule until you resume it."""
    return Done(done=await context.admin.schedule_pause(path.topic, path.name))


@TABLE.post(PATH + "/resume", NONE, role=Role.OPERATOR)
async def resume_schedule(context: RequestContext, path: SchedulePath, body: Nothing) -> Done:
    """Resume a paused schedule at its next time."""
    return Done(done=await context.admin.schedule_resume(path.topic, path.name))


@TABLE.post(PATH + "/run", NONE, "queue-full", role=Role.OPERATOR, status=201)
async def run_schedule(context: RequestContext, path: SchedulePath, body: Nothing) -> Sent:
    """Send the message of a schedule now, even if the schedule is paused.

    The times of the schedule do not change.
    """
    return show(await context.admin.schedule_run(path.topic, path.name), Sent)


def schedule_of(state: ScheduleState) -> Schedule:
    """Convert a schedule to the response of the API."""
    return show(state, Schedule, body=body_of(state.body))
