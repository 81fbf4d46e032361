"""List topics, read and change their settings, pause, resume and delete them.

To continue an interrupted change or deletion, call the function again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rmq.errors import RMQError, SettingsMismatch, TopicNotEmpty, TopicNotFound, TopicVanished
from rmq.features.topic_admin import scripts
from rmq.kernel.batches import registry
from rmq.kernel.core import settings
from rmq.kernel.core.keys import TYPES, SlotKeys, job_key, job_log_key, sink_key
from rmq.kernel.core.pause import Pause, Verb
from rmq.kernel.core.settings import Settings
from rmq.kernel.topic import opening, scheduled, scripts as topic_scripts, tombstones
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scripts import TopicReply
from rmq.kernel.transport.flow.steps import Flow, Progress, RawCommand, pipeline

SLOTS_AT_ONCE = 64  # slots that are changed or deleted in one round trip
SCANNED = 1000  # keys per SCAN call
COUNT_MAX = 2**53 - 1  # larger than the number of messages in any slot
DELETION = "topic_delete"  # recorded as the author of the pause of sends during a deletion
_OF_TOPIC = ("sink", "topic", "topics", "history", "job", "joblog")
_SLOT_LEVEL = [kind for kind in TYPES if kind not in _OF_TOPIC]


class DeleteResult(NamedTuple):
    """The message counts of a deleted topic, or of a topic in a dry run.

    Attributes:
        waiting: Number of waiting messages, including delayed messages.
        in_flight: Number of messages under a lease.
        dead: Number of dead letters.
        other_keys: Number of deleted keys of queries, stages, claims, sinks, schedules, batches and
            replay sessions. It is 0 in a dry run.
        batches: Number of batches that are not done and whose callback goes to the topic.
    """

    waiting: int
    in_flight: int
    dead: int
    other_keys: int = 0
    batches: int = 0

    @property
    def messages(self) -> int:
        """Number of all messages."""
        return self.waiting + self.in_flight + self.dead


def topic_settings(context: TopicContext) -> Flow[Settings]:
    """Return the settings of a topic."""
    yield from opening.open(context, create=False)
    return context.settings


def topic_set(
    context: TopicContext, asked: dict[str, Any], unless_changed: Settings | None = None
) -> Flow[Settings]:
    """Change settings of a topic. Return all its settings.

    `unless_changed` has the settings that the caller has read. If the topic has changed since then,
    the call changes nothing.

    The function first changes the topic's hash, then each slot. After an interruption, repeat the
    call. A client that opens the topic, or reads its settings again, also changes the remaining
    slots.

    Raises:
        TopicNotFound: The topic does not exist.
        TopicVanished: The topic is being deleted.
        InvalidValue: A limit is too small for the topic's slots, or `dead_to` names a topic that
            cannot get the copies.
        SettingsMismatch: The settings differ from `unless_changed`.
    """
    yield from opening.open(context, create=False)
    asked = yield from opening.with_dead_to(context, asked)
    values = settings.to_redis(asked)
    replace(context.settings, **asked)  # checks settings that depend on each other
    revision = None if unless_changed is None else context.revision
    if unless_changed in (None, context.settings):
        changed = yield scripts.topic_set(context, context.identity, values, revision)
        if changed.state != -2:
            return (yield from _give_changed(context, changed))
    raise SettingsMismatch(
        f"topic {context.name!r} was changed meanwhile; nothing was done. Read its settings again"
    )


def topic_pause(
    context: TopicContext, by: str, why: str, verbs: Sequence[Verb] = ("receive",)
) -> Flow[Pause]:
    """Stop deliveries of a topic, or sends to it. Return the pause.

    If the topic is already paused, it keeps its first pause, and the call returns this pause. After
    an interruption, a repeated call continues the change, as with `topic_set`.

    Raises:
        TopicNotFound: The topic does not exist.
        TopicVanished: The topic is being deleted.
    """
    yield from opening.open(context, create=False)
    for verb in verbs:
        changed = yield scripts.topic_pause(context, context.identity, by, why, verb)
    kept = yield from _give_changed(context, changed)
    pause = _pause_of(kept, verbs[0])
    assert pause is not None
    return pause


def _pause_of(kept: Settings, verb: Verb) -> Pause | None:
    return kept.paused if verb == "receive" else kept.sends_paused


def topic_resume(context: TopicContext, verbs: Sequence[Verb] = ("receive",)) -> Flow[Pause | None]:
    """End pauses of a topic. Return the pause that ended, or None.

    After an interruption, a repeated call continues the change, as with `topic_set`.

    Raises:
        TopicNotFound: The topic does not exist.
        TopicVanished: The topic is being deleted.
    """
    yield from opening.open(context, create=False)
    before, ended = context.settings, list[Pause | None]()
    for verb in verbs:
        changed = yield scripts.topic_resume(context, context.identity, verb)
        ended += [_pause_of(before, verb)] if changed.state > 0 else []
    yield from _give_changed(context, changed)
    return next(filter(None, ended), None)


def _give_changed(context: TopicContext, changed: TopicReply) -> Flow[Settings]:
    """Use the changed settings in this process, and write them to the slots of the topic."""
    if changed.state < 0:
        raise TopicVanished(f"topic {context.name!r} was deleted meanwhile; nothing was changed")
    kept = settings.from_redis(context.name, changed.kept)
    opening.adopt(context, changed, kept)
    try:
        yield from opening.write_slots(context)
    except RMQError as error:
        error.add_note(
            f"topic {context.name!r} has the new settings, but some of its slots may not; repeat "
            "the change, or let any program open the topic"
        )
        raise
    return kept


# --- deleting ----------------------------------------------------------------------------------


def topic_delete(
    context: TopicContext, force: bool, dry_run: bool, progress: Progress | None
) -> Flow[DeleteResult]:
    """Delete a topic. Return its message counts.

    Unless the deletion is forced, RMQ first pauses sends, and checks that all slots are empty. Then
    RMQ marks the topic, so that no client can open it. Each slot is deleted in one step. Finally,
    RMQ deletes the keys that only a scan finds, and the topic itself. After an interruption, call
    the function again.

    Raises:
        TopicNotFound: The topic does not exist.
        TopicNotEmpty: The deletion is not forced, and the topic contains messages or has batches
            that are not done. Also raised if bodies in a store belong to the topic. The topic was
            not changed.
        FormatMismatch: Another version of RMQ wrote the topic in another format.
    """
    opened = yield topic_scripts.topic(context, None)
    if opened.state < 0:
        raise TopicNotFound(
            f"topic {context.name!r} is not in this Redis under prefix {context.prefix!r}"
        )
    kept = settings.from_redis(context.name, opened.kept)
    opening.adopt(context, opened, kept)
    held, has_objects = yield from _delete_slots(context, context.slots, None, None)
    batches, unfinished = yield from registry.of_topic(context.prefix, context.name)
    if dry_run:
        return held._replace(batches=len(unfinished))
    if unfinished and not force:
        raise _has_batches(context, unfinished)
    if has_objects:
        for keys in context.slots:
            yield from tombstones.remove_objects(keys)
        held, has_objects = yield from _delete_slots(context, context.slots, None, None)
    if has_objects and (force or not held.messages):
        raise _has_objects(context)
    if not force:
        if "deleting" in opened.kept:  # an earlier deletion was not finished
            yield from _restore(context)
        if not held.messages:
            why = "the topic is being deleted"
            paused = yield scripts.topic_pause(context, context.identity, DELETION, why, "send")
            yield from _give_changed(context, paused)
            held, has_objects = yield from _delete_slots(context, context.slots, None, None)
        if held.messages or has_objects:
            pause = context.settings.sends_paused
            # The mark is from this deletion, or from a deletion that was killed.
            if pause is not None and pause.by == DELETION:
                resumed = yield scripts.topic_resume(context, context.identity, "send")
                yield from _give_changed(context, resumed)
            if not held.messages:
                raise _has_objects(context)
            raise _not_empty(context, held, "they are kept, and so is the topic")
    if not (yield scripts.topic_close(context, context.identity, True)):
        raise TopicNotFound(f"topic {context.name!r} was deleted meanwhile by another client")
    most = COUNT_MAX if force else 0
    held, has_objects = yield from _delete_slots(context, context.slots, most, progress)
    if has_objects and (force or not held.messages):
        yield from _restore(context)
        raise _has_objects(context)
    if held.messages and not force:
        yield from _restore(context)
        raise _not_empty(
            context, held, "they were restored meanwhile and are kept; other slots start empty"
        )
    context.forget()
    others = yield from _delete_other_keys(context)
    yield from scheduled.remove_topic(context)
    yield RawCommand("topic_delete", "SREM", context.topics_key, context.name)
    yield RawCommand("topic_delete", "UNLINK", context.key, context.history_key)
    yield from registry.forget(context.prefix, batches)
    return held._replace(other_keys=others, batches=len(unfinished))


def _restore(context: TopicContext) -> Flow[None]:
    """Undo a deletion that has started: remove its mark, and create the deleted slots again."""
    yield from opening.write_slots(context)
    yield scripts.topic_close(context, context.identity, False)


def _not_empty(context: TopicContext, held: DeleteResult, consequence: str) -> TopicNotEmpty:
    return TopicNotEmpty(
        f"topic {context.name!r} holds {held.waiting} waiting messages, {held.in_flight} in flight "
        f"and {held.dead} dead letters; {consequence}. Consume or purge them, or force the deletion"
    )


def _has_batches(context: TopicContext, batches: Sequence[str]) -> TopicNotEmpty:
    return TopicNotEmpty(
        f"topic {context.name!r} gets the callback of {len(batches)} batches that are not done, "
        f"such as {batches[0]!r}; nothing was changed. Close or cancel them (rmq batch cancel), "
        "and handle their callbacks, or force the deletion"
    )


def _has_objects(context: TopicContext) -> TopicNotEmpty:
    return TopicNotEmpty(
        f"objects in a store belong to messages of topic {context.name!r}, or to messages that are "
        "gone; they would stay there. Consume or purge the messages, also in the trash; when a "
        "consumer or `rmq server` with the store has removed the objects, delete the topic"
    )


def _delete_slots(
    context: TopicContext, slots: Sequence[SlotKeys], most: int | None, progress: Progress | None
) -> Flow[tuple[DeleteResult, bool]]:
    """Delete slots, but stop at a slot with more than `most` messages. Return the message counts.

    If `most` is None, the function only counts the messages. The result also says whether stored
    objects (offloaded bodies) belong to a slot. The function does not delete such a slot.
    """
    waiting = in_flight = dead = 0
    has_objects = False
    for at in range(0, len(slots), SLOTS_AT_ONCE):
        page = slots[at : at + SLOTS_AT_ONCE]
        replies = yield from pipeline(
            [topic_scripts.slot_delete(keys, context.created, most) for keys in page]
        )
        for reply in replies:
            has_objects |= reply.state == -2
            if most is None or most or reply.state in (0, -2):
                waiting += reply.waiting
                in_flight += reply.in_flight
                dead += reply.dead
        if progress:
            progress(at + len(page), len(slots))
        if most == 0 and (waiting + in_flight + dead or has_objects):
            break
    return DeleteResult(waiting, in_flight, dead), has_objects


def _delete_other_keys(context: TopicContext) -> Flow[int]:
    """Delete keys of queries, stages, claims, schedules, sinks and so on. Return their number.

    The keys have no index. So the function uses SCAN to read the names of all keys of the database.
    """
    name = re.escape(context.name)
    stem = re.escape(context.prefix)
    of_slot = re.compile(
        rf"{stem}:\{{{name}_\d+\}}:({'|'.join(_SLOT_LEVEL)})(:.*)?".encode(), re.DOTALL
    )
    of_topic = (
        sink_key(context.prefix, context.name, ""), job_key(context.prefix, context.name + "."),
        job_log_key(context.prefix, context.name + "."),
    )  # fmt: skip
    deleted, cursor = 0, b"0"
    while True:
        cursor, page = yield RawCommand(
            "topic_delete", "SCAN", cursor,
            "MATCH", f"{context.prefix}:{{{context.name}*", "COUNT", SCANNED,
        )  # fmt: skip
        keys = [key for key in page if of_slot.fullmatch(key) or key.startswith(of_topic)]
        if keys:
            deleted += yield RawCommand("topic_delete", "UNLINK", *keys)
        if cursor == b"0":
            return deleted
