"""Open a topic: create or find it, compare settings, give its slots what their scripts read.

The settings of an open topic are read again every 30 s of use (`FOLLOW_S` of `context`), so that
running programs follow `Admin.topic_set`.

Here too: the warning of a Redis that may evict keys, which removes messages without an error.
`INFO` is enough, so that no right to `CONFIG` is needed. Where a user has no right to `INFO`
either, nothing is said. The policy is asked for when a topic is created and when a worker starts.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from copy import copy
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
from rmq.kernel.core.keys import SLOTS_MAX
from rmq.kernel.core.settings import Settings
from rmq.kernel.topic import scripts
from rmq.kernel.topic.context import FOLLOW_S, TopicContext
from rmq.kernel.topic.scripts import TopicReply
from rmq.kernel.transport.flow.steps import (
    Flow,
    Pipeline,
    RawCommand,
    Sleep,
    is_master_away,
    raise_first_error,
)

log = logging.getLogger("rmq")

SAFE_POLICY = "noeviction"
_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)


def advice(policy: str | None) -> str | None:
    """Return what to do about a policy; None if it evicts nothing, or is not known."""
    if policy is None or policy == SAFE_POLICY:
        return None
    return (
        f"the maxmemory-policy of this Redis is {policy}: when its memory is full, it removes keys "
        "of RMQ, and the messages in them are lost. Set it: CONFIG SET maxmemory-policy "
        f"{SAFE_POLICY}, and in its configuration file"
    )


def warn() -> Flow[None]:
    """Log a warning if Redis may evict keys; of a Redis Cluster one node is asked."""
    with suppress(RMQError):
        info: bytes = yield RawCommand("info", "INFO", "memory")
        found = _POLICY.search(info)
        warning = advice(found[1].decode() if found else None)
        if warning:
            log.warning("%s", warning)


RESIZES_IN_CALL = 10  # that a call follows
AWAY_S = 1.0  # settings are read again so much later if the master of their key is away
SLOT_LOOKS, SLOT_PAUSE_S = 25, 0.04  # for a second; creating 1024 slots takes about 30 ms


def open(context: TopicContext, create: bool = True) -> Flow[bool]:
    """Open the topic; return whether this call created it.

    The settings are those of the first client that wrote the topic's hash. The slots follow, each
    with the topic's stamp; if a client dies in between, the next one that opens the topic goes on.

    Raises:
        TopicNotFound: it is missing, and not to be created.
        InvalidValue: it is to be created, and its name looks like that of another topic's slot.
        SettingsMismatch: it has other settings than this client named.
        FormatMismatch: another version of RMQ wrote it.
        TopicVanished: it is being deleted, or a slot belongs to another life of the topic.
    """
    wanted = Settings(**context.requested)
    reply = yield scripts.topic(context, None)
    if reply.state < 0:
        if not create:
            raise not_found(context)
        yield from _refuse_lookalike(context)
        reply = yield scripts.topic(context, wanted.to_redis())
    kept = settings.from_redis(context.name, reply.kept)
    _refuse_deleting(context, reply)
    settings.check_matches(context.name, context.requested, kept)
    if not create:
        was_ready = context.is_ready and context.created == kept.slot_stamp(_created(reply))
        adopt(context, reply, kept, was_ready)
        yield from _await_slots(context)
        return False  # a caller that only reads writes nothing
    try:
        yield from _give_and_adopt(context, reply, kept)
    except RMQError:
        context.forget()
        raise
    # A full Redis, or one of many masters that is away, must not keep consumers out; the next
    # opening lists it.
    away = () if reply.state else (Unavailable, OutcomeUnknown)
    with suppress(QueueFull, *away):
        yield RawCommand("topics", "SADD", context.topics_key, context.name)
    if reply.state:
        yield from warn()
    return bool(reply.state)


def not_found(context: TopicContext) -> TopicNotFound:
    """Return the error of a topic that is missing."""
    return TopicNotFound(
        f"topic {context.name!r} is not in this Redis under prefix {context.prefix!r}; "
        f"create it: rmq topic create {context.name}"
    )


def _refuse_lookalike(context: TopicContext) -> Flow[None]:
    """Refuse to create `orders_1` beside `orders`, or the reverse.

    The keys of the one would be among those of the slots of the other, by which the rights of a
    Redis user are given (docs/decisions/0057-names-that-look-like-slots.md).
    """
    base, _, slot = context.name.rpartition("_")
    others = [f"{context.name}_{index}" for index in range(SLOTS_MAX)]
    if base and slot in map(str, range(SLOTS_MAX)):
        others.append(base)
    listed = yield RawCommand("topics", "SMISMEMBER", context.topics_key, *others)
    if 1 in listed:
        other = others[listed.index(1)]
        raise InvalidValue(
            f"topic {context.name!r} cannot be created beside {other!r}: it would look like one "
            "of the slots of a topic, and Redis users of the one would have rights to the other; "
            "choose another name, as with - or . before the number"
        )


def _await_slots(context: TopicContext) -> Flow[None]:
    """Wait while the client that has just created the topic creates its slots.

    They are created in order, so the last one stands for all. If that client died, the next one
    that opens the topic for use creates them; a caller that only reads gets errors of the slots.
    """
    for _ in range(SLOT_LOOKS):
        if (yield RawCommand("open", "EXISTS", context.slots[-1].slot)):
            return
        yield Sleep(SLOT_PAUSE_S)


def _refuse_deleting(context: TopicContext, reply: TopicReply) -> None:
    """Refuse a topic that is being deleted: messages sent now would go with it."""
    if "deleting" in reply.kept:
        raise TopicVanished(
            f"topic {context.name!r} is being deleted; open it again when that is done to start it "
            f"again. If no program is deleting it, finish it: rmq topic delete {context.name}"
        )


def _give_and_adopt(context: TopicContext, reply: TopicReply, kept: Settings) -> Flow[None]:
    """Give the slots the topic's settings, and then use them.

    Other threads use this context meanwhile as it was. So nothing is sent by a new number of slots
    before every slot refuses what is sent by the former number.
    """
    prepared = copy(context)
    adopt(prepared, reply, kept)
    is_resizing = kept.layout is not None and kept.layout.resizing is not None
    have_all = yield from give_slots(prepared, spare_away=not is_resizing)
    adopt(context, reply, kept, True)
    if not have_all:  # again soon, and whatever the revision is then
        context.revision, context.read_at = -1, time.monotonic() - FOLLOW_S + AWAY_S


def adopt(context: TopicContext, reply: TopicReply, kept: Settings, is_ready: bool = False) -> None:
    """Take note of the settings, stamp and revision of a topic. `is_ready`: of all its slots."""
    context.mark_open(kept, _created(reply), is_ready, _revision(reply))


def give_slots(context: TopicContext, spare_away: bool = False) -> Flow[bool]:
    """Write the settings of the context to every slot; return whether each has them now.

    Args:
        context: of the topic.
        spare_away: leave out slots of a cluster whose masters are away, if all the others had these
            settings already: then those slots have them, too, unless somebody died half-way.

    Raises:
        TopicVanished: a slot belongs to another life of the topic.
    """
    settings_of = context.settings.for_slot
    calls = [
        scripts.slot(context, keys, context.created, settings_of(keys.index), context.revision)
        for keys in context.slots
    ]
    for call in calls:
        call.fails_fast = spare_away
    replies = yield Pipeline(calls)
    are_away = [is_master_away(reply) for reply in replies]
    if any(are_away) and (all(are_away) or 1 in replies):
        return (yield from give_slots(context))
    raise_first_error([reply for reply in replies if not is_master_away(reply)])
    for keys, reply in zip(context.slots, replies, strict=True):
        if reply == -1:
            raise TopicVanished(
                f"{keys.slot.decode()} belongs to another life of topic {context.name!r}: its "
                "settings were deleted and its messages were not; look at what is left "
                f"({context.prefix}:{{{context.name}_*}}:*), then delete it: "
                f"rmq topic delete {context.name} --force; or use another name",
                is_stamp=True,
            )
    return not any(are_away)


def forget_if_recreated(context: TopicContext, error: TopicVanished) -> Flow[bool]:
    """Follow a resize, or let the next call open a topic again that was created anew.

    The error of one slot does not tell: the topic may be gone, or this slot alone. `error.anew`
    says afterwards whether it was created anew.

    Returns:
        Whether the topic was resized: nothing of it is gone, and the refused call can be made
        again.

    Raises:
        Unavailable, OutcomeUnknown: Redis did not answer, and the topic may have been resized.
    """
    try:
        for is_last in (False, True):
            reply = yield scripts.topic(context, None)
            error.anew = reply.state >= 0 and _created(reply) != context.identity
            is_resized = reply.state >= 0 and not error.anew and "layout" in reply.kept
            if not is_resized or not error.is_stamp or "deleting" in reply.kept:
                break
            kept = settings.from_redis(context.name, reply.kept)
            try:
                yield from _give_and_adopt(context, reply, kept)
            except TopicVanished:
                if is_last:
                    raise
                continue  # it was resized again between the two steps
            return True
    except (Unavailable, OutcomeUnknown):
        if error.is_stamp:
            raise
    except RMQError:
        pass
    if error.anew:
        context.forget()
    return False


def follow_resize(context: TopicContext, error: TopicVanished, times: int) -> Flow[int]:
    """Follow a resize, so that a refused call is made again, or raise the error.

    Args:
        context: of the topic.
        error: of the call.
        times: how often the call has followed one; returned with one more.
    """
    is_resized = yield from forget_if_recreated(context, error)
    if not is_resized or times >= RESIZES_IN_CALL:
        raise error
    return times + 1


def paused_error(
    context: TopicContext, consequence: str, results: list[Any] | None = None
) -> Flow[TopicPaused]:
    """Return the error of a send while sends are paused: by whom, since when, and why."""
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


def ensure_open(context: TopicContext, create: bool = True) -> Flow[None]:
    """Open the topic unless it is open; read its settings again if they are old."""
    try:
        yield from _ensure_open(context, create)
    except TopicVanished as error:
        if not error.is_stamp:
            raise
        yield from _ensure_open(context, create)  # it may have been resized between two steps


def _ensure_open(context: TopicContext, create: bool) -> Flow[None]:
    if not (context.is_ready if create else context.is_open):
        yield from open(context, create)
    elif context.is_old():
        yield from _follow(context)


def _follow(context: TopicContext) -> Flow[None]:
    """Read the settings of an open topic again.

    The settings that the client named when it opened the topic are not compared: a running program
    goes on.

    Raises:
        TopicVanished: it was deleted, or created anew.
    """
    command = scripts.topic(context, None)
    command.fails_fast = True
    try:
        reply = yield command
    except StorageError as error:
        if not is_master_away(error):
            raise
        context.read_at = time.monotonic() - FOLLOW_S + AWAY_S  # its slots may be served
        return
    if reply.state < 0 or _created(reply) != context.identity:
        anew = " and created again" if reply.state >= 0 else ""
        if anew:
            context.forget()
        raise TopicVanished(
            f"topic {context.name!r} has vanished: it was deleted{anew}, or Redis was flushed, and "
            "its messages went with it. Open the topic again (topic.open()) to use what is there "
            "now, or to start it again",
            anew=bool(anew),
        )
    _refuse_deleting(context, reply)
    if _revision(reply) == context.revision:
        context.read_at = time.monotonic()
        return
    kept = settings.from_redis(context.name, reply.kept)
    if context.is_ready:
        yield from _give_and_adopt(context, reply, kept)  # who changed it may have died before
    else:
        adopt(context, reply, kept)
