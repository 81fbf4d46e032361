"""List, pause, resume, release and purge the groups of a topic."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from rmq.errors import DecodeError, InvalidValue
from rmq.features.groups import scripts
from rmq.features.groups.scripts import GroupState
from rmq.kernel.core import record
from rmq.kernel.core.groups import GROUP_MARK, check_group, group_in
from rmq.kernel.core.ids import Id
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.validation import check_int
from rmq.kernel.topic import opening, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.reading import ScoreRange, SlotReader
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.steps import Flow, Progress, pipeline

# Maximum number of groups that a list examines; Redis returns about 30 000 per second.
SCAN = 100_000
PURGED = 100  # maximum number of messages that a call deletes
Sort = Literal["held", "oldest", "out", "stopped", "name"]
_NEVER = datetime.max.replace(tzinfo=UTC)
_SORTS: dict[str, Callable[[GroupState], Any]] = {
    "held": lambda state: (-state.held, state.group),
    "oldest": lambda state: (state.oldest or _NEVER, state.group),
    "out": lambda state: (-state.out, state.group),
    "stopped": lambda state: (not (state.paused or state.is_held), -state.held, state.group),
    "name": lambda state: (state.group,),
}


class GroupPage(NamedTuple):
    """A page of the sorted groups of a topic.

    Attributes:
        groups: The groups.
        looked_at: Number of groups that were examined.
        complete: Whether all groups of the topic were examined.
    """

    groups: list[GroupState]
    looked_at: int
    complete: bool


def groups(context: TopicContext, sort: Sort, limit: int, skip: int, scan: int) -> Flow[GroupPage]:
    """Return a page of the sorted groups of a topic."""
    if sort not in _SORTS:
        raise InvalidValue(f"sort: {sort!r:.80}; give {', '.join(_SORTS)}")
    check_int(limit, "limit", 1, 10_000)
    check_int(skip, "skip", 0, 1_000_000)
    check_int(scan, "scan", 1, 10_000_000)
    yield from _open(context)
    best: dict[str, GroupState] = {}
    counts: dict[int, int] = {}
    cursors = {keys.index: b"0" for keys in context.slots}
    while cursors and sum(counts.values()) < scan:
        pages = yield from pipeline(
            [scripts.groups(context.slots[slot], cursor) for slot, cursor in cursors.items()]
        )
        for slot, page in zip(list(cursors), pages, strict=True):
            counts[slot] = (0 if page.is_first else counts[slot]) + len(page.groups)
            best |= {f"{slot}/{state.group}": state for state in page.groups}
            cursors[slot] = page.cursor
        cursors = {slot: cursor for slot, cursor in cursors.items() if cursor != b"0"}
        ordered = heapq.nsmallest(
            skip + limit, best.items(), key=lambda item: _SORTS[sort](item[1])
        )
        best = dict(ordered)
    return GroupPage(list(best.values())[skip:], sum(counts.values()), not cursors)


def group(context: TopicContext, name: str, id: Id | None) -> Flow[GroupState | None]:
    """Return the state of a group, or None if it has no admitted message and is not stopped.

    If `id` names a message, `ahead` of the result counts the held messages before this message.
    """
    yield from _open(context)
    check_group(name)
    yield from opening.follow_ids(context, (id,))
    message_id = None if id is None else context.check_id(id)
    slots = _slots(context, name) if message_id is None else [context.slots[message_id.slot]]
    pages = yield from pipeline([scripts.groups(keys, name=name, id=message_id) for keys in slots])
    found = [state for page in pages for state in page.groups]
    return max(
        found, key=lambda each: (each.is_held, each.paused, each.held, each.out), default=None
    )


def group_pause(context: TopicContext, name: str) -> Flow[bool]:
    """Pause a group. Return False if the group was already paused."""
    yield from _open(context)
    keys = _slots(context, name)
    return 1 in (yield from pipeline([scripts.group_pause(each, name) for each in keys]))


def group_resume(context: TopicContext, name: str, what: Literal["paused", "dead"]) -> Flow[bool]:
    """Resume a group that is paused or held by a dead letter.

    Return whether the group was stopped.
    """
    yield from _open(context)
    commands = [scripts.group_resume(context, each, name, what) for each in _slots(context, name)]
    return any((yield from pipeline(commands)))


def group_purge(
    context: TopicContext, name: str, dry_run: bool, progress: Progress | None
) -> Flow[int]:
    """Delete all waiting messages of a group. Return their number, also in a dry run."""
    yield from _open(context)
    waiting: list[tuple[SlotKeys, list[bytes]]] = []
    for keys in _slots(context, name):
        page = yield scripts.groups(keys, name=name)
        # Delete at most the number of messages that are held now, because a producer may never stop
        # sending.
        most = sum(state.held for state in page.groups)
        lanes = [ScoreRange(*each) for ranges in page.ranges for each in ranges]
        # Delete held messages first. Otherwise each deletion would make the next held message
        # available.
        ids = yield from _ids_in(keys, name, lanes, most)
        ids += yield from _ids_in(keys, name, [ScoreRange("0", "+inf")], None)
        waiting.append((keys, ids))
    count, done = sum(len(ids) for _, ids in waiting), 0
    if dry_run:
        return count
    for keys, ids in waiting:
        for at in range(0, len(ids), PURGED):
            with context.sessions.borrowed() as session:
                done += yield topic_scripts.purge(
                    context, keys, session, "store", ids=ids[at : at + PURGED]
                )
            if progress:
                progress(done, count)
    return done


def _ids_in(
    keys: SlotKeys, name: str, ranges: list[ScoreRange], most: int | None
) -> Flow[list[bytes]]:
    reader, ids = SlotReader(keys, "store", ranges), list[bytes]()
    while most is None or len(ids) < most:
        members = yield from reader.read()
        if not members:
            break
        # If a group has no more messages, its range of scores (lane) is given to another group. So
        # only the record proves to which group a message belongs.
        ids += [member.id for member in members if _group_of(member) == name]
    return ids[:most]


def _group_of(member: QueueMember) -> str | None:
    try:
        return group_in(record.read(member.record).headers.get(GROUP_MARK))
    except DecodeError:
        return None


def _open(context: TopicContext) -> Flow[None]:
    yield from opening.ensure_open(context, create=False)
    if context.settings.groups is None:
        raise InvalidValue(
            f"topic {context.name!r} has no groups; a topic gets them when it is created "
            "(rmq topic create NAME --groups order)"
        )


def _slots(context: TopicContext, name: str) -> list[SlotKeys]:
    """Return the slots that may have messages of a group.

    A resize may give the group another slot. So the result has a slot for each former number of
    slots.
    """
    check_group(name)
    numbers = context.settings.slot_numbers
    return [context.slots[at] for at in dict.fromkeys(slot_of(name, n) for n in numbers)]
