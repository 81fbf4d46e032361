"""Change the settings of a topic, and delete topics.

Both end in steps that may be interrupted; run again, they go on where they stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rmq import commands, settings, topic_commands
from rmq.errors import RMQError, TopicNotEmpty, TopicNotFound, TopicVanished
from rmq.flows import Ask, Flow, opening, together
from rmq.handle import Handle
from rmq.keys import TYPES, SlotKeys, sink_key
from rmq.settings import Settings

SLOTS_AT_ONCE = 64  # slots that are changed or deleted in one round trip
SCANNED = 1000  # keys that one SCAN looks at
MOST = 2**53 - 1  # as many messages as a slot may hold
_SLOT_LEVEL = [kind for kind in TYPES if kind not in ("sink", "topic", "topics")]

Progress = Callable[[int, int], None]


class Deleted(NamedTuple):
    """What a topic held when it was deleted, or holds, in a dry run.

    Attributes:
        waiting: messages that waited, those due later too.
        in_flight: messages that consumers had.
        dead: dead letters.
        other_keys: keys that were left of queries, stages, claims, sinks and repeated commands;
            0 in a dry run.
    """

    waiting: int
    in_flight: int
    dead: int
    other_keys: int = 0

    @property
    def messages(self) -> int:
        """All of them."""
        return self.waiting + self.in_flight + self.dead


def topic_set(handle: Handle, asked: dict[str, Any]) -> Flow[Settings]:
    """Change settings of a topic; those it has then.

    The topic's hash is changed first, then each slot. Whoever stops between, the slots are given
    the rest by this call made again, or by the next client that opens the topic or follows it.

    Raises:
        TopicNotFound: there is no such topic.
        TopicVanished: it is being deleted.
    """
    values = settings.spelled(asked)
    yield from opening.open(handle, create=False)
    changed = yield topic_commands.topic_set(handle, handle.created, values)
    if changed.state < 0:
        raise TopicVanished(f"topic {handle.name!r} was deleted meanwhile; nothing was changed")
    found = settings.from_redis(handle.name, changed.kept)
    handle.opened(found, handle.created, False, int(changed.kept.get("revision", 0)))
    try:
        yield from opening.give_slots(handle)
    except RMQError as error:
        error.add_note(
            f"topic {handle.name!r} has the new settings and some of its slots may not; make the "
            "same change again, or let any program open the topic"
        )
        raise
    return found


# --- deleting ----------------------------------------------------------------------------------


def topic_delete(
    handle: Handle, force: bool, dry_run: bool, progress: Progress | None
) -> Flow[Deleted]:
    """Delete a topic; what it held.

    It is marked first, so that nobody opens it any more. Then each slot goes in one step, then keys
    that are known by their names only, then the topic itself. Stopped half-way, run it again.

    Raises:
        TopicNotFound: there is no such topic.
        TopicNotEmpty: it holds messages, and this is not forced; it stands as it was.
    """
    opened = yield commands.topic(handle, None)
    if opened.state < 0:
        raise TopicNotFound(
            f"topic {handle.name!r} is not in this Redis under prefix {handle.prefix!r}"
        )
    created = opened.kept["created"].encode()
    found = settings.from_redis(handle.name, opened.kept)
    handle.opened(found, created, False, int(opened.kept.get("revision", 0)))
    held = yield from _slots(handle, handle.slots, None, None)
    if dry_run:
        return held
    if held.messages and not force:
        if "deleting" in opened.kept:  # somebody began and did not finish
            yield from _restore(handle)
        raise _not_empty(handle, held, "they are kept, and the topic stands")
    if not (yield topic_commands.topic_close(handle, created, True)):
        raise TopicNotFound(f"topic {handle.name!r} was deleted meanwhile, by somebody else")
    held = yield from _slots(handle, handle.slots, MOST if force else 0, progress)
    if held.messages and not force:
        yield from _restore(handle)
        raise _not_empty(handle, held, "they came meanwhile and are kept, and the topic stands")
    handle.forget()
    others = yield from _delete_the_rest(handle)
    yield Ask("topic_delete", "SREM", handle.topics_key, handle.name)
    yield Ask("topic_delete", "UNLINK", handle.key)
    return held._replace(other_keys=others)


def _restore(handle: Handle) -> Flow[None]:
    """Open a topic again whose deletion has begun; slots that are gone come back empty."""
    yield from opening.give_slots(handle)
    yield topic_commands.topic_close(handle, handle.created, False)


def _not_empty(handle: Handle, held: Deleted, fate: str) -> TopicNotEmpty:
    return TopicNotEmpty(
        f"topic {handle.name!r} holds {held.waiting} waiting messages, {held.in_flight} in flight "
        f"and {held.dead} dead letters; {fate}. Consume or purge them, or force the deletion"
    )


def _slots(
    handle: Handle, slots: Sequence[SlotKeys], most: int | None, progress: Progress | None
) -> Flow[Deleted]:
    """Delete slots, or count what they hold (`most` None). Stops where a slot is left."""
    waiting = in_flight = dead = 0
    for at in range(0, len(slots), SLOTS_AT_ONCE):
        page = slots[at : at + SLOTS_AT_ONCE]
        replies = yield from together(
            [topic_commands.slot_delete(keys, handle.created, most) for keys in page]
        )
        for reply in replies:
            if most is None or most or reply.state == 0:
                waiting += reply.waiting
                in_flight += reply.in_flight
                dead += reply.dead
        if progress:
            progress(at + len(page), len(slots))
        if most == 0 and waiting + in_flight + dead:
            break
    return Deleted(waiting, in_flight, dead)


def _delete_the_rest(handle: Handle) -> Flow[int]:
    """Delete keys of queries, stages, claims, lanes and sinks; how many.

    Nothing lists them, so SCAN walks all keys of the database, as `Admin.sinks` does.
    """
    name = re.escape(handle.name)
    stem = re.escape(handle.prefix)
    mine = re.compile(
        rf"{stem}:\{{{name}_\d+\}}:({'|'.join(_SLOT_LEVEL)})(:.*)?".encode(), re.DOTALL
    )
    sinks = sink_key(handle.prefix, handle.name, "")
    gone, cursor = 0, b"0"
    while True:
        cursor, page = yield Ask(
            "topic_delete", "SCAN", cursor,
            "MATCH", f"{handle.prefix}:{{{handle.name}*", "COUNT", SCANNED,
        )  # fmt: skip
        keys = [key for key in page if mine.fullmatch(key) or key.startswith(sinks)]
        if keys:
            gone += yield Ask("topic_delete", "UNLINK", *keys)
        if cursor == b"0":
            return gone
