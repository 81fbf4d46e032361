"""The slots of a topic that was resized: how many it had, and what holds new ones back.

Nothing moves when a topic is resized. Messages stay in their slots, new ones go to the slots of the
new number, and a slot whose new messages could overtake older ones elsewhere is held until those
are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, gcd

from rmq.kernel.core.validation import MOMENT_MOST_MS, check_int

RESIZES_MAX = 1000  # each adds 1 us to the stamp of the slots


@dataclass(frozen=True, slots=True)
class Resizing:
    """A resize that goes on.

    Attributes:
        since_ms: when it began.
        before: the number of slots before.
        pending: former slots that may hold older messages.
    """

    since_ms: int
    before: int
    pending: tuple[int, ...]

    def to_redis(self) -> str:
        """Return the text in the topic's hash."""
        return f"{self.since_ms} {self.before} {','.join(map(str, self.pending))}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The slots of a topic besides their number.

    Attributes:
        resizes: how often the topic was resized.
        first: the number of slots with which it was created: claims, dedup keys, merge keys and
            stubs of the outbox keep the slots that they have by this number.
        most: the largest number of slots that it has had. All of them are read.
        resizing: the resize that goes on.
        delivered_from: the slots in use number their deliveries from here on: the largest number
            in slots whose messages were awaited; 0: none were.
        dealt: how many messages waited in each slot when `max_length` was last divided; empty: it
            had none then.
        numbers: every number of slots that the topic has had. A group may have messages in the
            slot of each of them.
    """

    resizes: int
    first: int
    most: int
    resizing: Resizing | None = None
    delivered_from: int = 0
    dealt: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()

    def is_held(self, slot: int, slots: int) -> bool:
        """Return whether a slot gives nothing yet, since another one holds older messages.

        Two slots can have messages of one basis if their indexes are equal modulo what the two
        numbers of slots have in common, which is the smaller one.
        """
        if self.resizing is None or slot >= slots:
            return False
        common = gcd(self.resizing.before, slots)
        return any(
            other != slot and other % common == slot % common for other in self.resizing.pending
        )

    def part(self, slot: int, slots: int) -> Fraction:
        """Return a slot's part of what the topic has once; those of all slots make 1."""
        return self._parts_before(slot + 1, slots) - self._parts_before(slot, slots)

    def _parts_before(self, slot: int, slots: int) -> Fraction:
        """Return the parts of all slots before this one.

        New messages go by the number of slots, those with a dedup key by the first number, and old
        ones may be in every slot. Each of these numbers gets the same, divided evenly.
        """
        numbers = {slots, self.first, self.most}
        return sum(Fraction(min(slot, each), each * len(numbers)) for each in numbers) or Fraction(
            0
        )

    def share(self, count: int, slot: int, slots: int) -> int:
        """Return how many of `count` a slot has: one at least, and those of all make `count`."""
        rest = max(0, count - self.most)
        after, before = self._parts_before(slot + 1, slots), self._parts_before(slot, slots)
        return 1 + ceil(rest * after) - ceil(rest * before)

    def capacity(self, max_length: int, slot: int, slots: int) -> int:
        """Return how many messages may wait in a slot: those dealt to it, and a part of the rest.

        Rounded up, so that a slot without messages takes one. 0 is no limit.
        """
        if not max_length:
            return 0
        dealt = self.dealt[slot] if slot < len(self.dealt) else 0
        free = max_length - sum(self.dealt)
        if free < 0:  # max_length was lowered since
            return max(1, dealt * max_length // sum(self.dealt))
        return dealt + ceil(free * self.part(slot, slots)) or 1

    def to_redis(self) -> dict[str, str]:
        """Return the fields of the topic's hash; an empty one is to be removed."""
        return {
            "layout": f"{self.resizes} {self.first} {self.most} {','.join(map(str, self.numbers))}",
            "resizing": self.resizing.to_redis() if self.resizing else "",
            "delivered_from": str(self.delivered_from or ""),
            "dealt": ",".join(map(str, self.dealt)),
        }


def from_redis(stored: Mapping[str, str]) -> Layout | None:
    """Read the layout of a topic from its hash; None: it was never resized."""
    if "layout" not in stored:
        return None
    resizes, first, most, *numbers = map(int, stored["layout"].replace(",", " ").split())
    resizing = None
    if "resizing" in stored:
        since, before, pending = stored["resizing"].split(" ")
        resizing = Resizing(
            check_int(int(since), "since", 0, MOMENT_MOST_MS),
            int(before),
            tuple(int(slot) for slot in pending.split(",") if slot),
        )
    dealt = tuple(int(count) for count in stored.get("dealt", "").split(",") if count)
    delivered_from = int(stored.get("delivered_from", 0))
    return Layout(resizes, first, most, resizing, delivered_from, dealt, tuple(numbers))
