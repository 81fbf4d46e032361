"""Remove bodies from the object store when their messages are gone.

When a script removes a message with a stored body, it adds a tombstone in the same step
(lua/lib/records/large_bodies). A tombstone is an entry that names the object to remove. A process
removes the object, and then deletes the tombstone. So an object is never removed before its
message.

If a process dies, another process removes the object. It is harmless to remove an object twice.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import NamedTuple

from rmq.errors import DecodeError
from rmq.kernel.core import object_store
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.object_store import Reference
from rmq.kernel.transport.flow.steps import Flow, InThread, RawCommand

FIELD = b"gone:"  # prefix of the fields of `bodies`; a number follows
PAGE = 100


class Removed(NamedTuple):
    """The result of an attempt to remove objects from the store.

    Attributes:
        removed: Number of removed objects.
        problem: Reason why some objects remain, or '' if no object remains.
        is_used: Whether the slot has ever had messages with bodies in a store.
    """

    removed: int
    problem: str
    is_used: bool


def remove_objects(keys: SlotKeys) -> Flow[Removed]:
    """Remove the objects to which the tombstones of a slot refer.

    A tombstone remains if its store is unavailable, or if this process has no access to the store.
    """
    removed = 0
    while True:
        newest, released = yield RawCommand(
            "tombstones", "HMGET", keys.slot, "offloaded", "released"
        )
        first = int(released or 0) + 1
        names = [FIELD + b"%d" % n for n in range(first, int(newest or 0) + 1)[:PAGE]]
        if not names:
            return Removed(removed, "", newest is not None)
        found = yield RawCommand("tombstones", "HMGET", keys.bodies, *names)
        there = {name: packed for name, packed in zip(names, found, strict=True) if packed}
        references: dict[bytes, Reference] = {}
        for name, packed in there.items():
            with suppress(DecodeError):  # the tombstone names no object
                references[name] = Reference.read(packed)
        remove = partial(object_store.remove_all, list(references.values()))
        problems = dict(zip(references, (yield InThread(remove)), strict=True))
        done = [name for name in there if not problems.get(name)]
        if done:
            removed += yield RawCommand("tombstones", "HDEL", keys.bodies, *done)
        left = [at for at, name in enumerate(names) if problems.get(name)]
        passed = min(left, default=len(names))
        if passed:
            yield RawCommand("tombstones", "HSET", keys.slot, "released", first - 1 + passed)
        if left:
            return Removed(removed, problems[names[left[0]]], True)
