"""Remove the objects of offloaded bodies whose messages are gone.

The script that removes such a record leaves a tombstone in the same moment (lua/lib/large_bodies),
which is removed after the object. So an object is never removed before its record, and what a
process that dies leaves is done by the next one. Removing twice does no harm.
"""

from __future__ import annotations

from functools import partial

from rmq.errors import DecodeError
from rmq.kernel.core import offloading
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.offloading import Reference
from rmq.kernel.transport.steps import Flow, InThread, RawCommand

FIELD = b"gone:"  # of `bodies`, then a number
PAGE = 100


def take(keys: SlotKeys) -> Flow[int]:
    """Remove the objects that a slot has tombstones of; return how many.

    Those whose store is away, or not known here, keep their tombstones.
    """
    removed = 0
    while True:
        newest, taken = yield RawCommand("tombstones", "HMGET", keys.slot, "offloaded", "released")
        first = int(taken or 0) + 1
        names = [FIELD + b"%d" % n for n in range(first, int(newest or 0) + 1)[:PAGE]]
        if not names:
            return removed
        found = yield RawCommand("tombstones", "HMGET", keys.bodies, *names)
        references = {
            name: reference
            for name, packed in zip(names, found, strict=True)
            if packed is not None and (reference := _reference(packed)) is not None
        }
        gone = yield InThread(partial(offloading.remove_all, list(references.values())))
        left = {name for name, is_gone in zip(references, gone, strict=True) if not is_gone}
        done = [
            name
            for name, packed in zip(names, found, strict=True)
            if packed is not None and name not in left
        ]
        if done:
            removed += yield RawCommand("tombstones", "HDEL", keys.bodies, *done)
        passed = min(map(names.index, left), default=len(names))
        if passed:
            yield RawCommand("tombstones", "HSET", keys.slot, "released", first - 1 + passed)
        if left:
            return removed


def _reference(packed: bytes) -> Reference | None:
    """Return a reference; None: it is damaged, and names no object."""
    try:
        return Reference.read(packed)
    except DecodeError:
        return None
