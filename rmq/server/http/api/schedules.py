"""Schedules: list, pause, resume, run and delete them."""

from __future__ import annotations

from rmq.server.http.api import bodies, views
from rmq.server.http.api.operation import At, Table
from rmq.server.http.principal import Role

TABLE = Table("schedules")
NONE = ("topic-not-found", "not-found", "conflict")
PATH = "/topics/{topic}/schedules/{name}"


@TABLE.get("/topics/{topic}/schedules", "topic-not-found", "conflict")
async def list_schedules(at: At, path: bodies.TopicPath) -> views.ScheduleList:
    """List the schedules of a topic."""
    found = await at.admin.schedules(path.topic)
    return views.ScheduleList(schedules=[views.schedule_of(state) for state in found])


@TABLE.get(PATH, *NONE)
async def get_schedule(at: At, path: bodies.SchedulePath) -> views.Schedule:
    """Return a schedule."""
    return views.schedule_of(await at.admin.schedule(path.topic, path.name))


@TABLE.delete(PATH, *NONE, role=Role.ADMIN)
async def delete_schedule(at: At, path: bodies.SchedulePath) -> views.Done:
    """Delete a schedule; messages that it has sent stay, and a program may declare it again."""
    return views.Done(done=await at.admin.schedule_delete(path.topic, path.name))


@TABLE.post(PATH + "/pause", *NONE, role=Role.OPERATOR)
async def pause_schedule(at: At, path: bodies.SchedulePath, body: bodies.Nothing) -> views.Done:
    """Let a schedule send nothing until it is resumed."""
    return views.Done(done=await at.admin.schedule_pause(path.topic, path.name))


@TABLE.post(PATH + "/resume", *NONE, role=Role.OPERATOR)
async def resume_schedule(at: At, path: bodies.SchedulePath, body: bodies.Nothing) -> views.Done:
    """Let a paused schedule go on with its next time."""
    return views.Done(done=await at.admin.schedule_resume(path.topic, path.name))


@TABLE.post(PATH + "/run", *NONE, "queue-full", role=Role.OPERATOR, status=201)
async def run_schedule(at: At, path: bodies.SchedulePath, body: bodies.Nothing) -> views.Sent:
    """Send the message of a schedule now, paused or not; its times stay as they are."""
    return views.sent_of(await at.admin.schedule_run(path.topic, path.name))
