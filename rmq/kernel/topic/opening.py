"""Open a topic: create it or read its settings, and write the settings to its slots.

After 30 s (`FOLLOW_S` of `context`), the client reads the settings of an open topic again. So
running programs follow a change by `Admin.topic_set`.

This module also warns if Redis may evict keys, because an eviction removes messages without an
error. RMQ reads the eviction policy when a topic is created and when a worker starts. It reads the
policy from `INFO`, so users need no right to `CONFIG`. Users without a right to `INFO` get no
warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

from rmq.errors import (
    InvalidValue,
    OutcomeUnknown,
    QueueFull,
    RMQError,
    StorageError,
    TopicNotFound,
    TopicPaused,
    TopicVanished,
    Unavailable,
)
from rmq.kernel.core import settings
from rmq.kernel.core.dead_to import DeadTo
from rmq.kernel.core.ids import Id, MessageId
from rmq.kernel.core.keys import SLOTS_MAX
from rmq.kernel.core.settings import Settings
from rmq.kernel.topic import scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scripts import TopicReply
from rmq.kernel.transport.flow.steps import (
    Command,
    Flow,
    Pipeline,
    RawCommand,
    Sleep,
    is_master_down,
    raise_first_error,
)
from rmq.kernel.transport.lua.script_loader import plain

log = logging.getLogger("rmq")

SAFE_POLICY = "noeviction"
_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)


def advice(policy: str | None) -> str | None:
    """Return advice about the eviction policy of Redis, or None if it is safe or unknown."""
    if policy is None or policy == SAFE_POLICY:
        return None
    return (
        f"the maxmemory-policy of this Redis is {policy}: when its memory is full, it removes keys "
        "of RMQ, and the messages in them are lost. Set it: CONFIG SET maxmemory-policy "
        f"{SAFE_POLICY}, and in its configuration file"
    )


def warn() -> Flow[None]:
    """Log a warning if Redis may evict keys. On a Redis Cluster, only one node is checked."""
    with suppress(RMQError):
        info: bytes = yield RawCommand("info", "INFO", "memory")
        found = _POLICY.search(info)
        warning = advice(found[1].decode() if found else None)
        if warning:
            log.warning("%s", warning)


RESIZES_IN_CALL = 10  # largest number of resizes that one call follows
UNREACHABLE_RETRY_S = 1.0  # delay before settings are read again if the master of their key is away
# Checks for the last slot, and the pause after each: one second in all. Creating 1024 slots takes
# about 30 ms.
SLOT_CHECKS, SLOT_PAUSE_S = 25, 0.04


def open(context: TopicContext, create: bool = True, fails_fast: bool = False) -> Flow[bool]:
    """Open the topic. Return whether this call created the topic.

    If `fails_fast` is True, the read fails immediately if a master node cannot be reached.

    The first client that writes the topic's hash chooses the settings. This client then creates the
    slots, and each slot gets the topic's creation time. If the client dies before the last slot,
    the next client that opens the topic creates the missing slots.

    Raises:
        TopicNotFound: The topic does not exist, and `create` is False.
        InvalidValue: The new name looks like a slot of another topic.
        SettingsMismatch: A setting differs from the value that this client named.
        FormatMismatch: Another version of RMQ wrote the topic.
        TopicVanished: The topic is being deleted, or a slot belongs to an earlier topic of this
            name.
    """
    try:
        return (yield from _open(context, create, fails_fast))
    except TopicVanished as error:
        if not error.is_stamp:
            raise
    return (yield from _open(context, create, fails_fast))  # it was resized between two steps


def _open(context: TopicContext, create: bool, fails_fast: bool) -> Flow[bool]:
    wanted = Settings(**context.requested)
    command = scripts.topic(context, None)
    command.fails_fast = fails_fast
    reply = yield command
    if reply.state < 0:
        if not create:
            raise not_found(context)
        yield from _refuse_lookalike(context)
        requested = yield from with_dead_to(context, context.requested)
        reply = yield scripts.topic(context, Settings(**requested).to_redis())
    kept = settings.from_redis(context.name, reply.kept)
    _refuse_deleting(context, reply)
    settings.check_matches(context.name, context.requested, kept)
    if not create:
        was_ready = context.is_ready and context.created == kept.slot_stamp(_created(reply))
        adopt(context, reply, kept, was_ready)
        yield from _await_slots(context, fails_fast)
        return False  # a caller that only reads writes nothing
    try:
        yield from _write_and_adopt(context, reply, kept)
    except RMQError:
        context.forget()
        raise
    # A full Redis, or a master that is away, must not stop consumers; the next opening lists the
    # topic.
    away = () if reply.state else (Unavailable, OutcomeUnknown)
    with suppress(QueueFull, *away):
        yield RawCommand("topics", "SADD", context.topics_key, context.name)
    if reply.state:
        yield from warn()
        declared = _declared(context, wanted.dead_to)
        if declared is not None and not declared.is_open:
            yield from open(declared)  # other programs cannot create it
    return bool(reply.state)


def _declared(context: TopicContext, dead_to: DeadTo | None) -> TopicContext | None:
    """Return the topic that the setting `dead_to` names, if this program has declared it."""
    name = dead_to and dead_to.topic
    return next((each for each in list(context.siblings) if each.name == name), None)


def with_dead_to(context: TopicContext, requested: dict[str, Any]) -> Flow[dict[str, Any]]:
    """Add the target topic's number of slots to the setting `dead_to`.

    Raises:
        InvalidValue: `dead_to` names the topic itself, or a topic with groups. Or it names a topic
            that does not exist, and this program has not declared it.
    """
    dead_to: DeadTo | None = requested.get("dead_to")
    if dead_to is None:
        return requested
    if dead_to.topic == context.name:
        raise InvalidValue("dead_to: a topic cannot name itself; give another topic")
    declared = _declared(context, dead_to)
    target = declared or TopicContext(
        context.prefix, dead_to.topic, context.codec, context.sessions, {}
    )
    reply = yield scripts.topic(target, None)
    if reply.state < 0 and declared is None:
        raise InvalidValue(
            f"dead_to: topic {target.name!r} does not exist; create it: rmq topic create "
            f"{target.name}"
        )
    found = Settings(**target.requested)
    if reply.state >= 0:
        found = settings.from_redis(target.name, reply.kept)
    if found.groups:
        raise InvalidValue(
            f"dead_to: {target.name!r} has groups, and copies of dead letters keep no order of "
            "groups; give a topic without groups"
        )
    return {**requested, "dead_to": replace(dead_to, slots=found.slots)}


def not_found(context: TopicContext) -> TopicNotFound:
    """Return the error for a missing topic."""
    return TopicNotFound(
        f"topic {context.name!r} is not in this Redis under prefix {context.prefix!r}; "
        f"create it: rmq topic create {context.name}"
    )


def _refuse_lookalike(context: TopicContext) -> Flow[None]:
    """Raise an error for a new topic `orders_1` if the topic `orders` exists, or vice versa.

    `orders_1` is also the name of a slot of `orders`. A Redis user with rights to `orders` would
    have rights to both topics (docs/decisions/0057-names-that-look-like-slots.md).
    """
    base, _, slot = context.name.rpartition("_")
    others = [f"{context.name}_{index}" for index in range(SLOTS_MAX)]
    if base and slot in map(str, range(SLOTS_MAX)):
        others.append(base)
    listed = yield RawCommand("topics", "SMISMEMBER", context.topics_key, *others)
    if 1 in listed:
        other = others[listed.index(1)]
        raise InvalidValue(
            f"topic {context.name!r} cannot be created next to {other!r}: it would look like one "
            "of the slots of a topic, and Redis users of one would have rights to the other; "
            "choose another name, as with - or . before the number"
        )


def _await_slots(context: TopicContext, fails_fast: bool) -> Flow[None]:
    """Wait until the client that creates the topic has created all slots.

    Slots are created in order, so only the last slot is checked. If the creating client died, the
    wait ends after some time. The next client that sends or receives creates the missing slots.
    """
    last = context.slots[-1].slot
    exists: Command[bool] | RawCommand = RawCommand("open", "EXISTS", last)
    if fails_fast:
        exists = Command(plain("EXISTS"), [last], (), bool, fails_fast=True)
    for _ in range(SLOT_CHECKS):
        if (yield exists):
            return
        yield Sleep(SLOT_PAUSE_S)


def _refuse_deleting(context: TopicContext, reply: TopicReply) -> None:
    """Raise an error if the topic is being deleted. New messages would be deleted with it."""
    if "deleting" in reply.kept:
        raise TopicVanished(
            f"topic {context.name!r} is being deleted; open it again when that is done to start it "
            f"again. If no program is deleting it, finish it: rmq topic delete {context.name}"
        )


def _write_and_adopt(context: TopicContext, reply: TopicReply, kept: Settings) -> Flow[None]:
    """Write the topic's new settings to its slots, and then use the settings.

    Other threads use the old settings until all slots have the new settings. So no message is sent
    with the new number of slots while a slot still accepts messages with the old number.
    """
    prepared = copy(context)
    adopt(prepared, reply, kept)
    is_resizing = kept.layout is not None and kept.layout.resizing is not None
    have_all = yield from write_slots(prepared, skip_unreachable=not is_resizing)
    adopt(context, reply, kept, True)
    if not have_all:  # write again soon, even if the revision is the same
        context.revision = -1
        context.keep_settings(UNREACHABLE_RETRY_S)


def adopt(context: TopicContext, reply: TopicReply, kept: Settings, is_ready: bool = False) -> None:
    """Use the settings of a topic that a script has returned.

    The argument `is_ready` says whether every slot has these settings.
    """
    context.open_with(kept, _created(reply), is_ready, _revision(reply))


def write_slots(context: TopicContext, skip_unreachable: bool = False) -> Flow[bool]:
    """Write the topic's settings to every slot. Return whether every slot now has them.

    Args:
        context: The topic.
        skip_unreachable: Whether to skip slots whose master node cannot be reached. A slot is
            skipped only if all other slots already had these settings. The skipped slot then also
            has the settings, unless a client died while it wrote them.

    Raises:
        TopicVanished: A slot belongs to an earlier topic of this name.
    """
    settings_of = context.settings.for_slot
    calls = [
        scripts.slot(context, keys, context.created, settings_of(keys.index), context.revision)
        for keys in context.slots
    ]
    for call in calls:
        call.fails_fast = skip_unreachable
    replies = yield Pipeline(calls)
    are_away = [is_master_down(reply) for reply in replies]
    if any(are_away) and (all(are_away) or 1 in replies):
        return (yield from write_slots(context))
    raise_first_error([reply for reply in replies if not is_master_down(reply)])
    for keys, reply in zip(context.slots, replies, strict=True):
        if reply == -1:
            raise TopicVanished(
                f"{keys.slot.decode()} belongs to an earlier topic {context.name!r}: its "
                "settings were deleted and its messages were not; look at what is left "
                f"({context.prefix}:{{{context.name}_*}}:*), then delete it: "
                f"rmq topic delete {context.name} --force; or use another name",
                is_stamp=True,
            )
    return not any(are_away)


def forget_if_recreated(context: TopicContext, error: TopicVanished) -> Flow[bool]:
    """Check whether a call was refused because the topic was resized, deleted or created again.

    The error of one slot does not show whether the whole topic is gone. So this function reads the
    topic again, and sets `error.recreated`. If the topic was created again, the next call opens the
    new topic.

    Returns:
        Whether the topic was resized. Then no message is gone, and the caller can repeat the
            refused call.

    Raises:
        Unavailable, OutcomeUnknown: Redis did not answer, and the topic may have been resized.
    """
    try:
        for is_last in (False, True):
            reply = yield scripts.topic(context, None)
            error.recreated = reply.state >= 0 and _created(reply) != context.identity
            is_resized = reply.state >= 0 and not error.recreated and "layout" in reply.kept
            if not is_resized or not error.is_stamp or "deleting" in reply.kept:
                break
            kept = settings.from_redis(context.name, reply.kept)
            try:
                yield from _write_and_adopt(context, reply, kept)
            except TopicVanished:
                if is_last:
                    raise
                continue  # the topic was resized again between the two steps
            return True
    except (Unavailable, OutcomeUnknown):
        if error.is_stamp:
            raise
    except RMQError:
        pass
    if error.recreated:
        context.forget()
    return False


def follow_resize(context: TopicContext, error: TopicVanished, times: int) -> Flow[int]:
    """Use the new slots of a resized topic, so that the caller can repeat a refused call.

    Args:
        context: The topic.
        error: Error of the refused call. It is raised if the topic was not resized.
        times: How often the topic was resized during the caller's work so far.

    Returns:
        The new value of `times`.
    """
    is_resized = yield from forget_if_recreated(context, error)
    if not is_resized or times >= RESIZES_IN_CALL:
        raise error
    return times + 1


def paused_error(
    context: TopicContext, consequence: str, results: list[Any] | None = None
) -> Flow[TopicPaused]:
    """Return the error for a send while sends to the topic are paused.

    The error says who paused the sends, when and why.
    """
    text = ""
    with suppress(RMQError):
        reply = yield scripts.topic(context, None)
        pause = settings.from_redis(context.name, reply.kept).sends_paused
        if pause is not None:
            since = pause.since.strftime("%Y-%m-%dT%H:%M:%SZ")
            text = f" since {since} by {pause.by}" + (f": {pause.why}" if pause.why else "")
    return TopicPaused(
        f"topic {context.name!r}: sends are paused{text}. {consequence} when they are resumed (rmq "
        f"topic resume {context.name} --send)",
        results,
    )


def _created(reply: TopicReply) -> bytes:
    return reply.kept["created"].encode()


def _revision(reply: TopicReply) -> int:
    return int(reply.kept.get("revision", 0))


def ensure_open(context: TopicContext, create: bool = True, fails_fast: bool = False) -> Flow[None]:
    """Open the topic if necessary. If its settings are old, read them again.

    If `fails_fast` is True, the read fails immediately if a master node cannot be reached.
    """
    try:
        yield from _ensure_open(context, create, fails_fast)
    except TopicVanished as error:
        if not error.is_stamp:
            raise
        # The topic was resized between two steps.
        yield from _ensure_open(context, create, fails_fast)


def open_for(context: TopicContext, id: Id) -> Flow[MessageId]:
    """Open an existing topic if necessary. Check the id of a message, and return the id.

    Raises:
        InvalidValue: The id belongs to another topic, or to a slot that this topic does not have.
    """
    yield from ensure_open(context, create=False)
    yield from follow_ids(context, (id,))
    return context.check_id(id)


def follow_ids(context: TopicContext, ids: Iterable[Id | None]) -> Flow[bool]:
    """Read the settings of an open topic again if an id belongs to an unknown slot.

    If another program has resized the topic, this client may get ids of new slots.

    Returns:
        Whether the settings were read again.
    """
    if not any(id is not None and context.may_have(id) for id in ids):
        return False
    try:
        yield from _follow(context)
    except TopicVanished as error:
        if not error.is_stamp:
            raise
        yield from _follow(context)  # the topic was resized between two steps
    return True


def has_slot(context: TopicContext, index: int) -> Flow[bool]:
    """Return whether an open topic has the slot with this index.

    If the slot seems to be missing, the settings are read again, because another program may have
    resized the topic.

    Raises:
        TopicVanished: The topic was deleted, or deleted and created again.
    """
    if index >= len(context.slots):
        yield from _follow(context)
    return index < len(context.slots)


def _ensure_open(context: TopicContext, create: bool, fails_fast: bool) -> Flow[None]:
    if not (context.is_ready if create else context.is_open):
        yield from open(context, create, fails_fast)
    elif context.is_old():
        yield from _follow(context)


def _follow(context: TopicContext) -> Flow[None]:
    """Read the settings of an open topic again.

    The function does not compare the settings with the settings in the program, because a change of
    the topic must not stop a running program.

    Raises:
        TopicVanished: The topic was deleted, or deleted and created again.
    """
    command = scripts.topic(context, None)
    command.fails_fast = True
    try:
        reply = yield command
    except StorageError as error:
        if not is_master_down(error):
            raise
        context.keep_settings(UNREACHABLE_RETRY_S)  # its slots may be reachable
        return
    if reply.state < 0 or _created(reply) != context.identity:
        again = " and created again" if reply.state >= 0 else ""
        if again:
            context.forget()
        raise TopicVanished(
            f"topic {context.name!r} has vanished: it was deleted{again}, or Redis was flushed, "
            "and its messages are gone. Open the topic again (topic.open()) to use what is "
            "there now, or to start it again",
            recreated=bool(again),
        )
    _refuse_deleting(context, reply)
    if _revision(reply) == context.revision:
        context.keep_settings()
        return
    kept = settings.from_redis(context.name, reply.kept)
    if context.is_ready:
        # The client that changed the settings may have died before it wrote them to all slots.
        yield from _write_and_adopt(context, reply, kept)
    else:
        adopt(context, reply, kept)
