"""The types of answers, and the functions that make them of what Admin returns."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any, Literal

import msgspec

from rmq.core import fingerprint, job, pause
from rmq.core.history import Sample
from rmq.core.job import JobState
from rmq.core.message import Message, SendResult, SendStatus, moment
from rmq.core.queues import QueueName
from rmq.core.settings import Settings
from rmq.core.worker_status import WorkerStatus
from rmq.protocol.flows.query_admin import HeldQuery, Sink
from rmq.protocol.flows.recurring import ScheduleState
from rmq.protocol.flows.schedule import CancelStatus, PriorityStatus, RescheduleStatus
from rmq.server.service import ServiceStatus

SHOWN_MAX = 64 * 1024  # bytes of a body; the rest is cut off, and `is_truncated` says so


class Answer(msgspec.Struct, kw_only=True):
    """The body of an answer."""


# --- topics --------------------------------------------------------------------------------------


class TopicList(Answer):
    """Names of topics, sorted.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    topics: list[str]
    cursor: str | None


class Paused(Answer):
    """A pause of a topic: since when, by whom, and why."""

    since: datetime
    by: str
    why: str


class Resizing(Answer):
    """A resize that goes on.

    Attributes:
        before: the number of slots before.
        pending: how many slots of before may still hold messages that newer ones await.
    """

    since: datetime
    before: int
    pending: int


class Topic(Answer):
    """A topic.

    Attributes:
        settings: by name; durations in seconds, 0: off.
        paused: null: it delivers.
        sends_paused: null: it takes messages.
        resizing: null: no resize goes on.
    """

    name: str
    settings: dict[str, int | float | str]
    paused: Paused | None
    sends_paused: Paused | None
    resizing: Resizing | None


class Resumed(Answer):
    """The pause that was ended, that of receive where both were; null: there was none."""

    was: Paused | None


class Resized(Answer):
    """How far a resize has come.

    Attributes:
        before: the number of slots before.
        after: the number of slots asked for.
        waiting: messages that waited in slots of before whose end newer messages await.
        in_flight: messages that were in flight there.
        pending: how many slots of before may still hold messages that newer ones await; 0: done.
    """

    before: int
    after: int
    waiting: int
    in_flight: int
    pending: int
    dry_run: bool


class Stats(Answer):
    """The counts of a topic over all slots; lua/stats.lua lists their names."""

    topic: str
    counts: dict[str, int]


class SlotStats(Answer):
    """The counts of each slot of a topic."""

    topic: str
    slots: list[dict[str, int]]


class History(Answer):
    """The figures of a topic over time, oldest first, as servers have kept them."""

    topic: str
    samples: list[Sample]


class Deleted(Answer):
    """The counts of a topic when it was deleted, or now, in a dry run."""

    waiting: int
    in_flight: int
    dead: int
    other_keys: int
    dry_run: bool


class Count(Answer):
    """How many messages."""

    count: int


class Done(Answer):
    """Whether there was something to do."""

    done: bool


# --- messages ------------------------------------------------------------------------------------


class Body(Answer):
    """A body, as text.

    Attributes:
        kind: "json": `text` is JSON, with all digits of its numbers; "text": a string, as it is;
            "base64": bytes; "hidden": you are not shown it.
        size: bytes of the body as it is shown whole.
        is_truncated: whether `text` shows the first 64 KiB alone.
    """

    kind: Literal["json", "text", "base64", "hidden"]
    text: str
    size: int
    is_truncated: bool


class Failure(Answer):
    """The last failure of a message; those of one cause have one fingerprint."""

    reason: str
    deliveries: int
    error: str
    traceback: str
    fingerprint: str


class StoredMessage(Answer):
    """A message as it is stored in Redis; fields as of `rmq.Message`.

    Attributes:
        queue: "store" (waiting), "prepare" (in flight) or "dead".
        unreadable: why the body is bytes; empty: it could be decoded.
    """

    id: str
    queue: QueueName
    slot: int
    offset: int
    body: Body
    type: str | None
    priority: int | None
    due: datetime | None
    expires: datetime | None
    merge_key: str | None
    headers: dict[str, str]
    deliveries: int
    deadline: datetime | None
    held_by_query: bool
    died: datetime | None
    failure: Failure | None
    unreadable: str


class MessageList(Answer):
    """Messages.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    messages: list[StoredMessage]
    cursor: str | None


class Peeked(Answer):
    """Messages, in the order in which they would be taken inside a slot."""

    messages: list[StoredMessage]


class Sent(Answer):
    """The result of a send; fields as of `rmq.SendResult`."""

    id: str
    status: SendStatus
    slot: int
    offset: int
    into: str | None
    durable: str


class Cancelled(Answer):
    """The outcome of a cancellation."""

    status: CancelStatus


class Rescheduled(Answer):
    """The outcome of a rescheduling."""

    status: RescheduleStatus


class Prioritized(Answer):
    """The outcome of a change of priority."""

    status: PriorityStatus


class Redriven(Answer):
    """How many dead letters fitted, were sent back, and cannot be read.

    Attributes:
        sample: of a dry run: some that fit, at most 10, of the oldest in each slot.
    """

    matched: int
    sent: int
    unreadable: int
    sample: list[StoredMessage]


class Purged(Answer):
    """How many messages were deleted, or put into the trash.

    Attributes:
        sample: of a dry run: some dead letters that fit, at most 10, of the oldest in each slot.
    """

    count: int
    sample: list[StoredMessage]


# --- the rest ------------------------------------------------------------------------------------


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


class JobList(Answer):
    """Jobs, the newest first.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    jobs: list[Job]
    cursor: str | None


class JobOutcome(Answer):
    """The outcome of a job for a message: gone: somebody else had taken it away."""

    id: str
    outcome: Literal["done", "gone", "unreadable"]


class JobOutcomes(Answer):
    """What became of the last messages of a job, the newest first."""

    outcomes: list[JobOutcome]


class QueryList(Answer):
    """Queries that hold messages of a topic."""

    queries: list[HeldQuery]


class SinkList(Answer):
    """The last batch that each query has published to a topic."""

    sinks: list[Sink]


class Claim(Answer):
    """The claim on a business key."""

    state: Literal["consuming", "consumed"]
    message_id: str
    delivery: int
    since: datetime
    left_s: float | None


class WorkerList(Answer):
    """Worker processes, as they last reported."""

    workers: list[WorkerStatus]


class ServiceList(Answer):
    """The services of the server that answers."""

    services: list[ServiceStatus]


class About(Answer):
    """The server that answers, and its Redis."""

    version: str
    server: str
    leads: bool
    redis_version: str


# --- how they are made ---------------------------------------------------------------------------


def body_of(value: Any) -> Body:
    """Return a decoded body as it is shown."""
    if isinstance(value, bytes):
        shown = value[:SHOWN_MAX]
        text = base64.b64encode(shown).decode()
        return Body(kind="base64", text=text, size=len(value), is_truncated=len(shown) < len(value))
    kind: Literal["json", "text"] = "text"
    if isinstance(value, str):
        text = value
    else:
        try:
            text, kind = json.dumps(value, ensure_ascii=False, allow_nan=False), "json"
        except (TypeError, ValueError, RecursionError):
            text = _written(value)  # msgpack has bytes inside of maps, and NaN
    whole = text.encode("utf-8", "replace")  # JSON may name half of a surrogate pair
    shown = whole[:SHOWN_MAX]
    return Body(
        kind=kind,
        text=shown.decode("utf-8", "ignore"),  # the cut may be inside of a character
        size=len(whole),
        is_truncated=len(shown) < len(whole),
    )


def _written(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return "(nested too deeply to be shown)"


def message_of(message: Message) -> StoredMessage:
    """Return a message as it is shown."""
    failure = message.failure
    return StoredMessage(
        id=str(message.id), queue=message.place, slot=message.slot, offset=message.offset,
        body=body_of(message.body), type=message.type, priority=message.priority, due=message.due,
        expires=message.expires, merge_key=message.merge_key, headers=dict(message.headers),
        deliveries=message.deliveries, deadline=message.deadline,
        held_by_query=message.held_by_query, died=message.died,
        failure=(
            Failure(**failure._asdict(), fingerprint=fingerprint.fingerprint(failure))
            if failure
            else None
        ),
        unreadable=message.unreadable,
    )  # fmt: skip


def sent_of(result: SendResult) -> Sent:
    """Return the result of a send as it is shown."""
    into = str(result.into) if result.into else None
    return Sent(
        id=str(result.id), status=result.status, slot=result.slot, offset=result.offset, into=into,
        durable=result.durable,
    )  # fmt: skip


def paused_of(paused: pause.Pause | None) -> Paused | None:
    """Return a pause as it is shown."""
    return Paused(since=paused.since, by=paused.by, why=paused.why) if paused else None


def topic_of(name: str, settings: Settings) -> Topic:
    """Return a topic as it is shown."""
    resizing = settings.layout.resizing if settings.layout else None
    return Topic(
        name=name, settings=settings.shown(), paused=paused_of(settings.paused),
        sends_paused=paused_of(settings.sends_paused),
        resizing=(
            Resizing(
                since=moment(resizing.since_ms), before=resizing.before,
                pending=len(resizing.pending),
            )
            if resizing
            else None
        ),
    )  # fmt: skip


def job_of(found: job.Job) -> Job:
    """Return a job as it is shown."""
    return Job(
        id=found.id, topic=found.topic, verb=found.verb, conditions=found.conditions,
        rate=found.rate, keep=found.keep_ms / 1000, by=found.by, state=found.state,
        began=found.began, ended=found.ended, expected=found.expected, examined=found.examined,
        done=found.done, gone=found.gone, unreadable=found.unreadable, runner=found.runner,
    )  # fmt: skip


def outcome_of(found: job.JobOutcome) -> JobOutcome:
    """Return the outcome of a job for a message as it is shown."""
    return JobOutcome(id=str(found.id), outcome=found.outcome)  # type: ignore[arg-type]


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
