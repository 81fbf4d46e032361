"""Schedules as they are shown."""

from __future__ import annotations

from datetime import datetime

from rmq.protocol.flows.recurring import ScheduleState
from rmq.server.http.api.views.answer import Answer
from rmq.server.http.api.views.messages import Body, body_of


class Schedule(Answer):
    """A schedule; fields as of `rmq schedule show`, durations in seconds."""

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


class ScheduleList(Answer):
    """Schedules; those that are due first come first."""

    schedules: list[Schedule]


def schedule_of(state: ScheduleState) -> Schedule:
    """Return a schedule as it is shown."""
    return Schedule(
        topic=state.topic, name=state.name,
        every=state.every.total_seconds() if state.every else None, cron=state.cron, tz=state.tz,
        jitter=state.jitter.total_seconds(), catch_up=state.catch_up,
        catch_up_limit=state.catch_up_limit, body=body_of(state.body), priority=state.priority,
        headers=dict(state.headers),
        expires=state.expires.total_seconds() if state.expires else None, type=state.type,
        paused=state.paused, next=state.next, next_due=state.next_due, last=state.last,
        sent=state.sent,
    )  # fmt: skip
