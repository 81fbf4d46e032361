"""Open a topic: create it or find it, compare settings, give its slots what their scripts read."""

from __future__ import annotations

from contextlib import suppress

from rmq import commands, settings
from rmq.errors import QueueFull, RMQError, TopicNotFound, TopicVanished
from rmq.flows import Ask, Flow, together
from rmq.handle import Handle
from rmq.settings import Settings


def open(handle: Handle, create: bool = True) -> Flow[bool]:
    """Open the topic; True where this call created it.

    The topic's hash decides: whoever writes it first sets the settings. The slots follow, each with
    the topic's stamp; a client that dies between leaves them to the next one that opens the topic.

    Raises:
        TopicNotFound: it is missing, and not to be created.
        SettingsMismatch: it has other settings than this client named.
        TopicVanished: a slot belongs to another life of the topic.
    """
    wanted = Settings(**handle.asked)
    opened = yield commands.topic(handle, wanted.to_redis() if create else None)
    if opened.state < 0:
        raise TopicNotFound(
            f"topic {handle.name!r} is not in this Redis under prefix {handle.prefix!r}; "
            f"create it: rmq topic create {handle.name}"
        )
    found = settings.from_redis(handle.name, opened.kept)
    settings.compare(handle.name, handle.asked, found)
    created = opened.kept["created"].encode()
    handle.opened(found, created, ready=create)
    if not create:
        return False  # who only looks writes nothing
    values = found.for_slot()
    try:
        replies = yield from together(
            [commands.slot(keys, created, values) for keys in handle.slots]
        )
    except RMQError:
        handle.forget()
        raise
    for keys, reply in zip(handle.slots, replies, strict=True):
        if reply == -1:
            handle.forget()
            raise TopicVanished(
                f"{keys.slot.decode()} belongs to an earlier life of topic {handle.name!r}: its "
                "settings were deleted and its messages were not; look at what is left, then "
                f"delete the keys {handle.prefix}:{{{handle.name}_*}}:* or use another name"
            )
    with suppress(QueueFull):  # a full Redis must not keep consumers out; the next opening lists it
        yield Ask("topics", "SADD", handle.topics_key, handle.name)
    return bool(opened.state)


def ensure(handle: Handle, create: bool = True) -> Flow[None]:
    """Open the topic unless it is open."""
    if not (handle.is_ready if create else handle.is_open):
        yield from open(handle, create)
