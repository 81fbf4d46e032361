"""Open a topic: create it or find it, compare settings, give its slots what their scripts read.

A topic that is open is read again every FOLLOW_S seconds as it is used, so that running programs
follow `Admin.topic_set`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TypeVar

from rmq.core import settings
from rmq.core.settings import Settings
from rmq.core.topic_context import TopicContext
from rmq.errors import QueueFull, RMQError, TopicNotFound, TopicVanished
from rmq.protocol import commands
from rmq.protocol.commands import TopicReply
from rmq.protocol.steps import Flow, RawCommand, Sleep, pipeline

T = TypeVar("T")

SLOT_LOOKS, SLOT_PAUSE_S = 25, 0.04  # for a second; creating 1024 slots takes some 30 ms
FOLLOW_S = 30.0  # settings that are kept in the client are older by at most so much


def open(context: TopicContext, create: bool = True) -> Flow[bool]:
    """Open the topic; True where this call created it.

    The topic's hash decides: whoever writes it first sets the settings. The slots follow, each with
    the topic's stamp; a client that dies between leaves them to the next one that opens the topic.

    Raises:
        TopicNotFound: it is missing, and not to be created.
        SettingsMismatch: it has other settings than this client named.
        TopicVanished: it is being deleted, or a slot belongs to another life of the topic.
    """
    wanted = Settings(**context.asked)
    opened = yield commands.topic(context, wanted.to_redis() if create else None)
    if opened.state < 0:
        raise TopicNotFound(
            f"topic {context.name!r} is not in this Redis under prefix {context.prefix!r}; "
            f"create it: rmq topic create {context.name}"
        )
    found = settings.from_redis(context.name, opened.kept)
    _refuse_closed(context, opened)
    settings.check_matches(context.name, context.asked, found)
    # Others may use this handle meanwhile: for them it is ready once its slots are.
    was_ready = context.is_ready and context.created == opened.kept["created"].encode()
    _adopt(context, opened, found, was_ready)
    if not create:
        yield from _await_slots(context)
        return False  # who only looks writes nothing
    try:
        yield from give_slots(context)
    except RMQError:
        context.forget()
        raise
    context.is_ready = True
    with suppress(QueueFull):  # a full Redis must not keep consumers out; the next opening lists it
        yield RawCommand("topics", "SADD", context.topics_key, context.name)
    return bool(opened.state)


def _await_slots(context: TopicContext) -> Flow[None]:
    """Wait while somebody who has just created the topic gives it its slots.

    They are made in their order, so the last one stands for all. If its creator died before, the
    next one who opens the topic to use it makes them; who looks is told by what the slots answer.
    """
    for _ in range(SLOT_LOOKS):
        if (yield RawCommand("open", "EXISTS", context.slots[-1].slot)):
            return
        yield Sleep(SLOT_PAUSE_S)


def _refuse_closed(context: TopicContext, opened: TopicReply) -> None:
    """Nobody opens a topic that is being deleted: what were sent now would go with it."""
    if "deleting" in opened.kept:
        raise TopicVanished(
            f"topic {context.name!r} is being deleted; open it again when that is done to start it "
            f"anew. If nobody deletes it any more, finish it: rmq topic delete {context.name}"
        )


def _adopt(context: TopicContext, opened: TopicReply, found: Settings, ready: bool) -> None:
    revision = int(opened.kept.get("revision", 0))
    context.opened(found, _created(opened), ready, revision)


def give_slots(context: TopicContext) -> Flow[int]:
    """Give every slot the settings of the context; how many had older ones.

    Raises:
        TopicVanished: a slot belongs to another life of the topic.
    """
    values = context.settings.for_slot()
    replies = yield from pipeline(
        [commands.slot(keys, context.created, values, context.revision) for keys in context.slots]
    )
    for keys, reply in zip(context.slots, replies, strict=True):
        if reply == -1:
            raise TopicVanished(
                f"{keys.slot.decode()} belongs to another life of topic {context.name!r}: its "
                "settings were deleted and its messages were not; look at what is left "
                f"({context.prefix}:{{{context.name}_*}}:*), then delete it: "
                f"rmq topic delete {context.name} --force; or use another name"
            )
    return replies.count(1)


def known(context: TopicContext, flow: Flow[T]) -> Flow[T]:
    """Run a flow on an open topic; where the topic is another one by now, the next call opens it.

    Raises:
        TopicVanished: as the flow; with `anew`, the context is no longer open.
    """
    try:
        return (yield from flow)
    except TopicVanished as error:
        with suppress(RMQError):  # one slot alone does not tell: it may be gone, or left behind
            opened = yield commands.topic(context, None)
            error.anew = opened.state >= 0 and _created(opened) != context.created
        if error.anew:
            context.forget()
        raise


def _created(opened: TopicReply) -> bytes:
    return opened.kept["created"].encode()


def ensure(context: TopicContext, create: bool = True) -> Flow[None]:
    """Open the topic unless it is open; follow its settings where they were read long ago."""
    if not (context.is_ready if create else context.is_open):
        yield from open(context, create)
    elif time.monotonic() - context.read_at >= FOLLOW_S:
        yield from _follow(context)


def _follow(context: TopicContext) -> Flow[None]:
    """Read the settings of an open topic again.

    What the client named when it opened the topic is not compared: a program that runs goes on.

    Raises:
        TopicVanished: it was deleted, or created anew.
    """
    opened = yield commands.topic(context, None)
    if opened.state < 0 or _created(opened) != context.created:
        anew = " and created anew" if opened.state >= 0 else ""
        if anew:
            context.forget()
        raise TopicVanished(
            f"topic {context.name!r} has vanished: it was deleted{anew}, or Redis was flushed, and "
            "its messages went with it. Open the topic again (topic.open()) to use what is there "
            "now, or to start it anew",
            anew=bool(anew),
        )
    _refuse_closed(context, opened)
    if int(opened.kept.get("revision", 0)) == context.revision:
        context.read_at = time.monotonic()
        return
    found = settings.from_redis(context.name, opened.kept)
    _adopt(context, opened, found, context.is_ready)
    if context.is_ready:
        try:
            yield from give_slots(context)  # whoever changed it may have died before
        except RMQError:
            context.read_at, context.revision = 0.0, -1  # follow again at the next call
            raise
