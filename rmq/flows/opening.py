"""Open a topic: create it or find it, compare settings, give its slots what their scripts read.

A topic that is open is read again every FOLLOW_S seconds as it is used, so that running programs
follow `Admin.topic_set`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TypeVar

from rmq import commands, settings
from rmq.errors import QueueFull, RMQError, TopicNotFound, TopicVanished
from rmq.flows import Ask, Flow, Sleep, together
from rmq.handle import Handle
from rmq.replies import Opened
from rmq.settings import Settings

T = TypeVar("T")

SLOT_LOOKS, SLOT_PAUSE_S = 25, 0.04  # for a second; creating 1024 slots takes some 30 ms
FOLLOW_S = 30.0  # settings that are kept in the client are older by at most so much


def open(handle: Handle, create: bool = True) -> Flow[bool]:
    """Open the topic; True where this call created it.

    The topic's hash decides: whoever writes it first sets the settings. The slots follow, each with
    the topic's stamp; a client that dies between leaves them to the next one that opens the topic.

    Raises:
        TopicNotFound: it is missing, and not to be created.
        SettingsMismatch: it has other settings than this client named.
        TopicVanished: it is being deleted, or a slot belongs to another life of the topic.
    """
    wanted = Settings(**handle.asked)
    opened = yield commands.topic(handle, wanted.to_redis() if create else None)
    if opened.state < 0:
        raise TopicNotFound(
            f"topic {handle.name!r} is not in this Redis under prefix {handle.prefix!r}; "
            f"create it: rmq topic create {handle.name}"
        )
    found = settings.from_redis(handle.name, opened.kept)
    _refuse_closed(handle, opened)
    settings.compare(handle.name, handle.asked, found)
    # Others may use this handle meanwhile: for them it is ready once its slots are.
    was_ready = handle.is_ready and handle.created == opened.kept["created"].encode()
    _adopt(handle, opened, found, was_ready)
    if not create:
        yield from _await_slots(handle)
        return False  # who only looks writes nothing
    try:
        yield from give_slots(handle)
    except RMQError:
        handle.forget()
        raise
    handle.is_ready = True
    with suppress(QueueFull):  # a full Redis must not keep consumers out; the next opening lists it
        yield Ask("topics", "SADD", handle.topics_key, handle.name)
    return bool(opened.state)


def _await_slots(handle: Handle) -> Flow[None]:
    """Wait while somebody who has just created the topic gives it its slots.

    They are made in their order, so the last one stands for all. If its creator died before, the
    next one who opens the topic to use it makes them; who looks is told by what the slots answer.
    """
    for _ in range(SLOT_LOOKS):
        if (yield Ask("open", "EXISTS", handle.slots[-1].slot)):
            return
        yield Sleep(SLOT_PAUSE_S)


def _refuse_closed(handle: Handle, opened: Opened) -> None:
    """Nobody opens a topic that is being deleted: what were sent now would go with it."""
    if "deleting" in opened.kept:
        raise TopicVanished(
            f"topic {handle.name!r} is being deleted; open it again when that is done to start it "
            f"anew. If nobody deletes it any more, finish it: rmq topic delete {handle.name}"
        )


def _adopt(handle: Handle, opened: Opened, found: Settings, ready: bool) -> None:
    revision = int(opened.kept.get("revision", 0))
    handle.opened(found, _created(opened), ready, revision)


def give_slots(handle: Handle) -> Flow[int]:
    """Give every slot the settings of the handle; how many had older ones.

    Raises:
        TopicVanished: a slot belongs to another life of the topic.
    """
    values = handle.settings.for_slot()
    replies = yield from together(
        [commands.slot(keys, handle.created, values, handle.revision) for keys in handle.slots]
    )
    for keys, reply in zip(handle.slots, replies, strict=True):
        if reply == -1:
            raise TopicVanished(
                f"{keys.slot.decode()} belongs to another life of topic {handle.name!r}: its "
                "settings were deleted and its messages were not; look at what is left "
                f"({handle.prefix}:{{{handle.name}_*}}:*), then delete it: "
                f"rmq topic delete {handle.name} --force; or use another name"
            )
    return replies.count(1)


def known(handle: Handle, flow: Flow[T]) -> Flow[T]:
    """Run a flow on an open topic; where the topic is another one by now, the next call opens it.

    Raises:
        TopicVanished: as the flow; with `anew`, the handle is no longer open.
    """
    try:
        return (yield from flow)
    except TopicVanished as error:
        with suppress(RMQError):  # one slot alone does not tell: it may be gone, or left behind
            opened = yield commands.topic(handle, None)
            error.anew = opened.state >= 0 and _created(opened) != handle.created
        if error.anew:
            handle.forget()
        raise


def _created(opened: Opened) -> bytes:
    return opened.kept["created"].encode()


def ensure(handle: Handle, create: bool = True) -> Flow[None]:
    """Open the topic unless it is open; follow its settings where they were read long ago."""
    if not (handle.is_ready if create else handle.is_open):
        yield from open(handle, create)
    elif time.monotonic() - handle.read_at >= FOLLOW_S:
        yield from _follow(handle)


def _follow(handle: Handle) -> Flow[None]:
    """Read the settings of an open topic again.

    What the client named when it opened the topic is not compared: a program that runs goes on.

    Raises:
        TopicVanished: it was deleted, or created anew.
    """
    opened = yield commands.topic(handle, None)
    if opened.state < 0 or _created(opened) != handle.created:
        anew = " and created anew" if opened.state >= 0 else ""
        if anew:
            handle.forget()
        raise TopicVanished(
            f"topic {handle.name!r} has vanished: it was deleted{anew}, or Redis was flushed, and "
            "its messages went with it. Open the topic again (topic.open()) to use what is there "
            "now, or to start it anew",
            anew=bool(anew),
        )
    _refuse_closed(handle, opened)
    if int(opened.kept.get("revision", 0)) == handle.revision:
        handle.read_at = time.monotonic()
        return
    found = settings.from_redis(handle.name, opened.kept)
    _adopt(handle, opened, found, handle.is_ready)
    if handle.is_ready:
        try:
            yield from give_slots(handle)  # whoever changed it may have died before
        except RMQError:
            handle.read_at, handle.revision = 0.0, -1  # follow again at the next call
            raise
