"""Change the number of slots of a topic while it is in use.

No message moves to another slot. First, the topic's hash gets the new number of slots. Then each
slot records its last message and gets a newer creation stamp. With the new stamp, the slot refuses
sends that use the former number of slots.

A new message may now go to another slot than older messages with the same `slot_basis`. This slot
delivers nothing until the older messages are gone. Any process can repeat every step.
docs/decisions/0041-resize.md explains why.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rmq.errors import InvalidValue, RMQError, TopicVanished
from rmq.features.topic_admin import scripts as topic_admin_scripts
from rmq.kernel.core.delivery_limits import Limits
from rmq.kernel.core.layout import RESIZES_MAX, Layout, Resizing
from rmq.kernel.core.validation import check_int
from rmq.kernel.topic import opening, scheduled, scripts as topic_scripts
from rmq.kernel.topic.capacity import change_layout as _change, waiting as _waiting
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scheduled import Listed
from rmq.kernel.transport.flow.steps import Flow, Progress, RawCommand, Sleep, pipeline, server_ms

PAGE = 100  # maximum number of records that a call reads
SLOTS_AT_ONCE = 64
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 0.5  # pause between two reads while older messages are left
ROUNDS = 200  # maximum number of pages that one call of `go_on` reads


class ResizeResult(NamedTuple):
    """The progress of a resize.

    Attributes:
        before: Former number of slots.
        after: Requested number of slots.
        waiting: Number of older messages in former slots. Newer messages wait for them.
        in_flight: Number of messages in flight in the former slots.
        pending: Number of former slots that may still contain older messages. With 0, the resize is
            finished.
    """

    before: int
    after: int
    waiting: int
    in_flight: int
    pending: int


@dataclass(slots=True)
class Passes:
    """The progress of reading the former slots, so that a process can continue later.

    Attributes:
        since_ms: Start of the resize to which the progress belongs.
        cursors: Cursor of the next page, by slot.
        given: Revision of the settings that all slots have, or -1 if it is unknown.
    """

    since_ms: int = 0
    cursors: dict[int, bytes] = field(default_factory=dict)
    given: int = -1


def topic_resize(
    context: TopicContext, slots: int, dry_run: bool, wait: bool, progress: Progress | None
) -> Flow[ResizeResult]:
    """Change the number of slots of a topic, or continue an interrupted change.

    Raises:
        TopicNotFound: The topic does not exist.
        TopicVanished: The topic is being deleted.
        InvalidValue: This number of slots is not possible. The topic was not changed.
    """
    check_int(slots, "slots", 1, 1024)
    yield from opening.open(context, create=False)
    layout, before = context.settings.layout, context.settings.slots
    resizing = layout.resizing if layout else None
    if resizing is not None:
        if slots != before:
            raise InvalidValue(
                f"slots: topic {context.name!r} is being resized from {resizing.before} to "
                f"{before} slots; let that finish first (rmq topic resize {context.name} {before})"
            )
        before = resizing.before
    elif slots != before:
        yield from _check(context, slots)
    pending = resizing.pending if resizing else _awaited(before, slots)
    counts = yield from _count(context, pending)
    if dry_run:
        return ResizeResult(before, slots, *counts, len(pending))
    if resizing is None and slots != before:
        yield from _begin(context, slots)
    yield from _give(context)
    left = yield from _await_messages(context, Passes(), wait=wait, progress=progress)
    return ResizeResult(before, slots, *counts, left)


def go_on(context: TopicContext, passes: Passes) -> Flow[int]:
    """Continue an unfinished resize, if there is one.

    Returns:
        Number of former slots that may still contain older messages. With 0, the resize is
        finished.

    Raises:
        TopicNotFound: The topic does not exist.
        TopicVanished: The topic is being deleted, or a slot has another creation stamp. In the
            second case, call `go_on` again.
    """
    yield from opening.open(context, create=False)
    if _resizing(context) is None:
        return 0
    try:
        if passes.given != context.revision:
            yield from _give(context)
        left = yield from _await_messages(context, passes, wait=False, rounds=ROUNDS)
    except TopicVanished:
        passes.given = -1  # a failover may have lost the new stamp of a slot
        raise
    passes.given = context.revision
    return left


def _awaited(before: int, after: int) -> tuple[int, ...]:
    """Return the former slots whose messages must be delivered before messages of other slots."""
    if before == after:
        return ()
    return tuple(range(after if after < before else 0, before))


def _check(context: TopicContext, slots: int) -> Flow[None]:
    settings, name = context.settings, context.name
    low, high = sorted((settings.slots, slots))
    if high % low:
        raise InvalidValue(
            f"slots: topic {name!r} has {settings.slots}; use a multiple or a divisor of that, "
            "so that each new slot has the messages of whole old ones or of a part of one"
        )
    if settings.limit != Limits():
        raise InvalidValue(
            f"slots: topic {name!r} has a limit, which its slots share; remove the limit first "
            f"(rmq topic set {name} --limit off), and set it again afterwards"
        )
    if settings.layout and settings.layout.resizes >= RESIZES_MAX:
        raise InvalidValue(f"slots: topic {name!r} was resized {RESIZES_MAX} times, the maximum")
    for keys in context.slots:
        audited, *stopped = yield RawCommand(
            "topic_resize", "HMGET", keys.slot, "audited", "groups_paused", "groups_held"
        )
        if any(int(count or 0) for count in stopped):
            raise InvalidValue(
                f"slots: topic {name!r} has groups that are paused or held by a dead letter; a "
                "resize would wait for their messages. Resume and release them first (rmq groups "
                f"ls {name} --sort stopped)"
            )
        if audited:
            raise InvalidValue(
                f"slots: topic {name!r} is audited, and numbers belong to a slot; such a topic "
                "cannot be resized"
            )


def _count(context: TopicContext, pending: Collection[int]) -> Flow[tuple[int, int]]:
    waiting = in_flight = 0
    for page in _pages(sorted(pending)):
        for stats in (yield from pipeline([topic_scripts.stats(context.slots[i]) for i in page])):
            waiting += stats["retries"] + stats["priority"] + stats["due"]
            in_flight += stats["in_flight"]
    return waiting, in_flight


def _pages(slots: Collection[int]) -> list[list[int]]:
    listed = list(slots)
    return [listed[at : at + SLOTS_AT_ONCE] for at in range(0, len(listed), SLOTS_AT_ONCE)]


def _begin(context: TopicContext, slots: int) -> Flow[None]:
    since_ms = yield from server_ms("topic_resize")
    dealt = (yield from _waiting(context)) if context.settings.max_length else ()
    while True:
        settings = context.settings
        if settings.layout and settings.layout.resizing:
            raise InvalidValue(f"slots: another client is resizing topic {context.name!r}")
        before = settings.slots
        known = replace(settings.layout or Layout(0, before, before), dealt=dealt)
        resizing = Resizing(since_ms, before, _awaited(before, slots))
        layout = replace(
            known,
            resizes=known.resizes + 1,
            most=max(known.most, slots),
            resizing=resizing,
            numbers=tuple(sorted({*settings.slot_numbers, slots})),
        )
        replace(settings, slots=slots, layout=layout)  # checks settings that depend on each other
        fields = {"slots": str(slots)} | layout.to_redis()
        if (yield from _change(context, fields)):
            return
        if context.settings.slots != before:
            raise InvalidValue(f"slots: another client has just resized topic {context.name!r}")


def _give(context: TopicContext) -> Flow[None]:
    """Write new settings and a new creation stamp to the slots.

    The slots then refuse clients with the former stamp. The list of schedules also gets the new
    stamp.
    """
    # Schedulers find an entry only if slot 0 has its stamp, so the new entry is added first.
    listed = yield from scheduled.read(context.prefix)
    mine = [each for each in listed if each.topic == context.name]
    former = [each for each in mine if each.created != context.created]
    for each in former:
        if Listed(context.name, context.created, each.generation) not in mine:
            yield from scheduled.add(context, each.generation)
    try:
        yield from opening.write_slots(context)
    except RMQError as error:
        error.add_note(
            f"topic {context.name!r} is being resized; to continue, run the same command, or let "
            "any program open the topic"
        )
        raise
    yield from scheduled.remove(context.prefix, former)


def _await_messages(
    context: TopicContext,
    passes: Passes,
    *,
    wait: bool,
    progress: Progress | None = None,
    rounds: int | None = None,
) -> Flow[int]:
    """Let slots deliver again if they no longer need to wait for older messages.

    Return how many slots may still have older messages. To find older messages, the function reads
    the records of each slot once, in pages. It reads a page again until the page has no older
    message. This is enough, because older messages never move to earlier pages. `rounds` is the
    maximum number of pages per slot, or None for no limit.
    """
    resizing = _resizing(context)
    if resizing is None:
        return 0
    since_ms, total = resizing.since_ms, len(_awaited(resizing.before, context.settings.slots))
    if passes.since_ms != since_ms:
        passes.since_ms, passes.cursors = since_ms, {}
    cursors = {slot: passes.cursors.get(slot, b"0") for slot in resizing.pending}
    passes.cursors = cursors
    pause = PAUSE_MIN_S
    while cursors and rounds != 0:
        rounds = None if rounds is None else rounds - 1
        if progress:
            progress(total - len(cursors), total)
        gone, delivered, came_on = [], 0, False
        for page in _pages(cursors):
            try:
                replies = yield from pipeline(
                    [
                        topic_admin_scripts.resize_scan(context.slots[i], cursors[i], PAGE)
                        for i in page
                    ]
                )
            except TopicVanished as error:
                if error.is_stamp and not (yield from _goes_on(context, since_ms)):
                    return 0
                raise
            for slot, reply in zip(page, replies, strict=True):
                if not reply.before:
                    came_on, cursors[slot] = True, reply.cursor
                    if reply.cursor == b"0":
                        gone.append(slot)
                        delivered = max(delivered, reply.delivered)
        if gone:
            yield from _note_gone(context, since_ms, gone, delivered)
            resizing = _resizing(context)
            if resizing is None or resizing.since_ms != since_ms:
                cursors.clear()
            for slot in set(cursors).difference(resizing.pending if resizing else ()):
                del cursors[slot]
        pause = PAUSE_MIN_S if came_on else min(PAUSE_MAX_S, pause * 1.5)
        if cursors and not came_on:
            if not wait:
                break
            yield Sleep(pause)
    if progress:
        progress(total - len(cursors), total)
    return len(cursors)


def may_wait(context: TopicContext, pages: int) -> Flow[bool]:
    """Return whether older messages may still exist. Change nothing.

    Args:
        context: Opened context of a topic that is being resized.
        pages: Maximum number of pages to read. If more pages are needed, the result is True.

    Raises:
        TopicVanished: A slot does not yet have the new number of slots.
    """
    resizing = _resizing(context)
    for slot in resizing.pending if resizing else ():
        cursor = b""
        while cursor != b"0":
            if not pages:
                return True
            page = yield topic_admin_scripts.resize_scan(context.slots[slot], cursor or b"0", PAGE)
            cursor, pages = page.cursor, pages - 1
            if page.before:
                return True
    return False


def _goes_on(context: TopicContext, since_ms: int) -> Flow[bool]:
    yield from opening.open(context, create=False)
    resizing = _resizing(context)
    return resizing is not None and resizing.since_ms == since_ms


def _resizing(context: TopicContext) -> Resizing | None:
    layout = context.settings.layout
    return layout.resizing if layout else None


def _note_gone(
    context: TopicContext, since_ms: int, gone: Collection[int], delivered: int
) -> Flow[None]:
    """Record which slots have no older messages, and let waiting slots deliver.

    `delivered` is the largest delivery number (`Delivery.fence`) in these slots. The waiting slots
    continue with larger numbers. So the delivery number keeps growing for messages with the same
    `slot_basis`.
    """
    while True:
        layout, resizing = context.settings.layout, _resizing(context)
        if layout is None or resizing is None or resizing.since_ms != since_ms:
            return  # another process has finished the resize
        left = tuple(slot for slot in resizing.pending if slot not in gone)
        changed = replace(
            layout,
            resizing=replace(resizing, pending=left) if left else None,
            delivered_from=max(layout.delivered_from, delivered),
        )
        if (yield from _change(context, changed.to_redis())):
            break
    yield from opening.write_slots(context)
