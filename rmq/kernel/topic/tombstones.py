"""Remove the objects of offloaded bodies whose messages are gone.

The script that removes such a record leaves a tombstone in the same moment
(lua/lib/records/large_bodies), which is removed after the object. So an object is never removed
before its record, and what a process that dies leaves is done by the next one. Removing twice does
no harm.
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

FIELD = b"gone:"  # of `bodies`, then a number
PAGE = 100


class Taken(NamedTuple):
    """What became of the tombstones of a slot.

    Attributes:
        removed: how many objects were removed.
        problem: why others were not; '': none is left.
        is_used: whether the slot has had offloaded bodies.
    """

    removed: int
    problem: str
    is_used: bool


def take(keys: SlotKeys) -> Flow[Taken]:
    """Remove the objects that a slot has tombstones of.

    Those whose store is away, or not known here, keep their tombstones.
    """
    removed = 0
    while True:
        newest, taken = yield RawCommand("tombstones", "HMGET", keys.slot, "offloaded", "released")
        first = int(taken or 0) + 1
        names = [FIELD + b"%d" % n for n in range(first, int(newest or 0) + 1)[:PAGE]]
        if not names:
            return Taken(removed, "", newest is not None)
        found = yield RawCommand("tombstones", "HMGET", keys.bodies, *names)
        there = {name: packed for name, packed in zip(names, found, strict=True) if packed}
        references: dict[bytes, Reference] = {}
        for name, packed in there.items():
            with suppress(DecodeError):  # it names no object
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
            return Taken(removed, problems[names[left[0]]], True)
