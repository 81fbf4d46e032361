"""How many Redis masters of a cluster a load needs, with slots placed by Redis's hash."""

from __future__ import annotations

import functools
import math
import statistics

from redis.crc import key_slot

SPARE = 0.6  # used share of a core's time; the rest is for bursts and retries
TOPICS = 60
HASH_SLOTS = 16_384  # of Redis Cluster; each master has an equal range


@functools.cache
def _places(slots: int) -> tuple[tuple[int, ...], ...]:
    """Return the sorted hash slots of each topic's slots; names as in rmq/kernel/core/keys.py."""
    return tuple(
        tuple(sorted(key_slot(b"rmq:{topic%d_%d}:store" % (topic, n)) for n in range(slots)))
        for topic in range(TOPICS)
    )


@functools.cache
def fullest(masters: int, slots: int) -> float:
    """Return the load of the fullest master, where 1 is even: the median of several topics."""
    loads = []
    for places in _places(slots):
        counts = [0] * masters
        for place in places:
            counts[place * masters // HASH_SLOTS] += 1
        loads.append(max(counts) * masters / slots)
    return statistics.median(loads)


def _is_crowded(masters: int, slots: int, most: int) -> bool:
    """Return whether in most topics a master has more than `most` slots. Quicker than `fullest`."""
    crowded = 0
    for places in _places(slots):
        pairs = zip(places, places[most:], strict=False)
        crowded += any(a * masters // HASH_SLOTS == b * masters // HASH_SLOTS for a, b in pairs)
    return crowded > TOPICS / 2


def even(cores: float) -> int:
    """Return the number of masters for a load of `cores` whole cores, if it is spread evenly."""
    return math.ceil(cores / SPARE)


@functools.cache
def hashed(cores: float, slots: int) -> int | None:
    """Return the fewest masters of which the fullest is not overloaded; None if none suffice."""
    for masters in range(even(cores), slots + 1):
        if _is_crowded(masters, slots, math.floor(SPARE * slots / cores)):
            continue
        if cores / masters * fullest(masters, slots) <= SPARE:
            return masters
    return None
