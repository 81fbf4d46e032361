"""Every key of a topic, read at one moment behind RMQ's back, and what must hold of it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import redis

from rmq.kernel.core import record
from rmq.kernel.core.ids import ids_of
from rmq.kernel.core.keys import TYPES, SlotKeys, batches_key, topic_key, topics_key

PLACES = ("store", "prepare", "dead")
STEPS_NAME = 14  # bytes of the names of steps and waits in `bodies`: a member and `s` or `w`


class Violation(AssertionError):
    """A promise was broken."""


def claim(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


def _with_ids(flat: list[bytes], keys: SlotKeys) -> list[bytes]:
    """A flat reply of pairs with ids for the members, which are first in each pair."""
    return [keys.id_of(part) if at % 2 == 0 else part for at, part in enumerate(flat)]


class Look:
    """A slot at one moment. Members are shown as ids."""

    def __init__(self, replies: list[list[bytes]], keys: SlotKeys) -> None:
        replies = [
            *(_with_ids(flat, keys) for flat in replies[:5]), *replies[5:8],
            *(ids_of(members, keys.middle) for members in replies[8:]),
        ]  # fmt: skip
        pairs = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies[:8]]
        self.store, self.prepare, self.dead = (
            {id: float(score) for id, score in part.items()} for part in pairs[:3]
        )
        self.records, self.failures, merge, self.slot, self.bodies = pairs[3:]
        self.merge = {key: (keys.id_of(held[:13]), int(held[13:])) for key, held in merge.items()}
        self.settled = set(replies[8]) | set(replies[9])
        self.tombstones = {
            int(name[5:]): self.bodies.pop(name)
            for name in list(self.bodies)
            if name.startswith(b"gone:")
        }
        self.steps, self.waits = (
            {
                keys.id_of(name[:-1]): self.bodies.pop(name)
                for name in list(self.bodies)
                if len(name) == STEPS_NAME and name.endswith(part)
            }
            for part in (b"s", b"w")
        )
        self.references = {
            id: record.read(entry).body[1:]
            for id, entry in self.records.items()
            if entry[0] & (record.MERGES | record.COLLECTS) == 0
        }
        self.referred = self._resolve_large()
        if b"holder" in self.slot:
            self.slot[b"holder"] = keys.id_of(self.slot[b"holder"])
        self.requests = {keys.id_of(name[1:]) for name in self.slot if name[:1] == b"~"}
        for field in list(self.slot):
            if field in (b"waiting", b"blocked", b"swept") or field.startswith(b"@"):
                del self.slot[field]

    def _resolve_large(self) -> set[bytes]:
        """Put large bodies into their records; return the names by which records refer to them."""
        names = set()
        for id, entry in self.records.items():
            if entry[0] & 12 == 8:
                name = id[:8] + id[11:] + entry[-8:]
                names.add(name)
                if name in self.bodies:
                    plain = bytes((entry[0] & ~8,)) + entry[1:-12]
                    self.records[id] = plain + self.bodies[name]
        return names

    def state(self) -> tuple[Any, ...]:
        """All of it but the answers kept for replay, for "this changed nothing"."""
        return (
            self.store, self.prepare, self.dead, self.records, self.failures, self.merge, self.slot,
            self.settled, self.bodies, self.tombstones, self.steps, self.waits,
        )  # fmt: skip


# One script, so that it is one moment; and unlike MULTI it is served at maxmemory.
_LOOK = """
local seen = {}
for i = 1, #KEYS, 10 do
  for j = 0, 2 do
    seen[#seen + 1] = redis.call('ZRANGE', KEYS[i + j], 0, -1, 'WITHSCORES')
  end
  for j = 3, 7 do
    seen[#seen + 1] = redis.call('HGETALL', KEYS[i + j])
  end
  for j = 8, 9 do
    seen[#seen + 1] = redis.call('SMEMBERS', KEYS[i + j])
  end
end
return seen
"""
_READ = (*PLACES, "records", "failures", "merge", "slot", "bodies", "settled0", "settled1")


def look(raw: redis.Redis, keys: list[SlotKeys]) -> list[Look]:
    """All slots at one moment."""
    names = [getattr(one, name) for one in keys for name in _READ]
    flat: Any = raw.eval(_LOOK, len(names), *names)
    return [Look(flat[10 * n : 10 * n + 10], of_slot) for n, of_slot in enumerate(keys)]


def check_shape(seen: Look, slot: int, most_deliveries: int) -> None:
    """Check what holds for a slot whatever was done to it."""
    homes = [set(getattr(seen, place)) for place in PLACES]
    claim(sum(map(len, homes)) == len(set().union(*homes)), f"slot {slot}: a message in two queues")
    live = set().union(*homes)
    records = set(seen.records)
    claim(records >= live, f"slot {slot}: {len(live - records)} queued without a record")
    claim(records <= live, f"slot {slot}: {len(records - live)} records of nobody")
    lost, unused = seen.referred - set(seen.bodies), set(seen.bodies) - seen.referred
    claim(not lost, f"slot {slot}: {len(lost)} records without their large bodies")
    claim(not unused, f"slot {slot}: {len(unused)} large bodies of nobody")
    claim(set(seen.steps) | set(seen.waits) <= live, f"slot {slot}: steps or waits of nobody")
    for field, wanted in (
        (b"steps", len(seen.steps)),
        (b"waited", len(seen.waits)),
        (b"suspended", sum(wait.startswith(b"w") for wait in seen.waits.values())),
        (b"large", len(seen.steps) + len(seen.waits) + len(seen.referred)),
    ):
        counted = int(seen.slot.get(field, 0))
        claim(counted == wanted, f"slot {slot}: {counted} {field.decode()} of {wanted}")
    claim(set(seen.failures) <= live, f"slot {slot}: a failure of nobody")
    claim(seen.requests <= set(seen.prepare), f"slot {slot}: a request for what is not in flight")
    counted = int(seen.slot.get(b"cancelling", 0))
    claim(counted == len(seen.requests), f"slot {slot}: {counted} of {len(seen.requests)} requests")
    for score in seen.store.values():
        claim(math.isfinite(score), f"store score {score}")
        whole = math.floor(score)
        in_family = whole >= 1 or (whole < 0 and b"groups" in seen.slot)
        claim(in_family, f"store score {score!r} is in no family")
        if 0 <= whole <= 16:
            claim(whole <= most_deliveries - 1, f"{whole} deliveries left of {most_deliveries}")
    for score in seen.prepare.values():
        claim(math.isfinite(score), f"receipt {score}")
        claim(0 <= score % 1000 < most_deliveries, f"receipt {score!r}: too many retries remain")
    for score in seen.dead.values():
        claim(math.isfinite(score) and score % 1 == 0, f"death {score}")
    for entry in seen.failures.values():
        claim(entry[1] <= most_deliveries <= 17, f"{entry[1]} deliveries of {most_deliveries}")
    for waiting, _ in seen.merge.values():
        claim(waiting in seen.store, f"slot {slot}: the merge index names one that does not wait")


def check_tombstones(before: Look, seen: Look, slot: int) -> None:
    """Check that a body in a store is released with its record, and not before."""
    count = int(seen.slot.get(b"offloaded", 0))
    claim(set(seen.tombstones) == set(range(1, count + 1)), f"slot {slot}: numbers of tombstones")
    new = [
        seen.tombstones[number] for number in sorted(set(seen.tombstones) - set(before.tombstones))
    ]
    left = [ref for id, ref in before.references.items() if seen.references.get(id) != ref]
    claim(all(new.count(ref) == 1 for ref in left), f"slot {slot}: an object is not released once")
    stay = set(seen.references.values())
    claim(not stay & set(new), f"slot {slot}: an object was released before its message")


def check_keys(
    raw: redis.Redis,
    topic: str,
    slots: list[SlotKeys],
    prefix: str = "rmq",
    others: Sequence[str] = (),
) -> None:
    """No key under the prefix but those that rmq/kernel/core/keys.py spells.

    The keys of other topics, in `others`, and of events are not checked.
    """
    ours = {topic_key(prefix, topic), topics_key(prefix), batches_key(prefix)}
    ours |= {topic_key(prefix, other) for other in others}
    of_others = tuple(f"{prefix}:{{{name}_".encode() for name in others)
    of_others += (f"{prefix}:{{events:".encode(),)
    stems = [name for name in SlotKeys.__slots__ if name.endswith("_stem")]
    own = [name for name in SlotKeys.__slots__ if name in TYPES]
    for one in slots:
        ours |= {getattr(one, name) for name in own}
    for key in raw.scan_iter(match=prefix + ":*", count=1000):
        known = (
            key in ours
            or key.startswith(of_others)
            or any(key.startswith(tuple(getattr(one, name) for name in stems)) for one in slots)
        )
        claim(known, f"a stray key: {key!r}")
