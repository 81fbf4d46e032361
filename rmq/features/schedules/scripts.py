"""The Lua scripts of schedules: set, read, pause, resume, delete and send."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Command, script_call

SetStatus = Literal["created", "updated", "unchanged", "full", "stale"]

STALE = -2  # `DueReply.wait_ms` if the topic was created again since the caller opened it
PAUSED = -2  # the reply of schedule_send while sends are paused


class DueSchedule(NamedTuple):
    """A schedule that is due."""

    name: str
    definition: bytes
    revision: bytes
    next_ms: int


class DueReply(NamedTuple):
    """Reply of the script `schedule_due`."""

    now_ms: int
    wait_ms: int  # time until the next schedule is due, or -1 if there is none
    due: list[DueSchedule]


class ScheduleRow(NamedTuple):
    """A stored schedule."""

    name: str
    due_ms: int | None  # None if the schedule is paused or has no further time
    definition: bytes
    revision: bytes
    next_ms: int | None
    last_ms: int | None
    sent: int


class SchedulesReply(NamedTuple):
    """Reply of the script `schedules`."""

    now_ms: int
    generation: bytes
    rows: list[ScheduleRow]


def _number(text: bytes) -> int | None:
    return int(text) if text else None


def _due_reply(reply: list[Any]) -> DueReply:
    due = [
        DueSchedule(reply[i].decode(), reply[i + 1], reply[i + 2], int(reply[i + 3]))
        for i in range(2, len(reply), 4)
    ]
    return DueReply(reply[0], reply[1], due)


def _schedules_reply(reply: list[Any]) -> SchedulesReply:
    rows = [
        ScheduleRow(
            name.decode(), None if float(due) == float("inf") else int(float(due)), definition,
            revision, _number(next_ms), _number(last_ms), int(sent),
        )
        for name, due, definition, revision, next_ms, last_ms, sent in (
            reply[i : i + 7] for i in range(2, len(reply), 7)
        )
    ]  # fmt: skip
    return SchedulesReply(reply[0], reply[1], rows)


def schedule_set(
    keys: SlotKeys,
    name: str,
    definition: bytes,
    timing: str,
    next_ms: int,
    due_ms: int,
    most: int,
    generation: bytes,
) -> Command[SetStatus]:
    """Store a schedule if it is missing or its definition differs."""
    return script_call("schedule_set", keys, [
        clock.now_us, keys.created, name, definition, timing, next_ms, due_ms, most,
        generation,
    ], lambda reply: reply.decode())  # fmt: skip


def schedule_due(keys: SlotKeys, generation: bytes, limit: int = 100) -> Command[DueReply]:
    """Read the schedules that are due."""
    return script_call(
        "schedule_due", keys, [clock.now_us, limit, keys.created, generation], _due_reply
    )


def schedules(
    keys: SlotKeys, name: str = "", offset: int = 0, limit: int = 100
) -> Command[SchedulesReply]:
    """Read a schedule, or a page of all schedules."""
    return script_call("schedules", keys, [clock.now_us, name, offset, limit], _schedules_reply)


def schedule_send(
    context: TopicContext,
    keys: SlotKeys,
    schedule: tuple[str, bytes, int],
    following: tuple[int, int] | None,
    time_ms: int | None = None,
    message: tuple[bytes, bytes, bytes] | None = None,
) -> Command[int]:
    """Send the message of a due time, or skip missed times. Then set the schedule's next time.

    Return 1 (done), -1 (the topic is full) or PAUSED.

    `schedule` has the name, the revision and the next time that the caller has read. `following`
    has the new next time and its due time. `message` has the id of the message and its record in
    two parts: the first four bytes and the rest.
    """
    sending: tuple[Any, ...] = (b"", b"", b"", b"")
    if message is not None:
        sending = (time_ms, member_of(message[0]), message[1], message[2])
    return script_call("schedule_send", keys, [
        clock.now_us, context.channel, keys.index, keys.created, *schedule,
        *(following or (b"", b"")), *sending,
    ], int)  # fmt: skip


def schedule_pause(keys: SlotKeys, name: str) -> Command[int]:
    """Pause a schedule. Return 1 (done), 0 (already paused) or -1 (the schedule does not exist)."""
    return script_call("schedule_pause", keys, [keys.created, name], int)


def schedule_resume(
    keys: SlotKeys, name: str, revision: bytes, next_ms: int, due_ms: int
) -> Command[int]:
    """Resume a schedule. Return 1 (done), 0 (it was not paused), -1 (missing) or -2 (changed)."""
    return script_call(
        "schedule_resume", keys, [clock.now_us, keys.created, name, revision, next_ms, due_ms], int
    )


def schedule_delete(keys: SlotKeys, name: str) -> Command[bool]:
    """Delete a schedule. Return whether it existed."""
    return script_call("schedule_delete", keys, [keys.created, name], bool)
