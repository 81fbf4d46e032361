"""Keep messages in order while the number of slots of a topic changes.

A resize changes the number of slots, but does not move messages. Old messages stay in their slots,
and new messages go to the new slots. A slot delivers nothing while another slot has older messages
that its messages could overtake.

A layout says which numbers of slots the topic has had, and which slots must wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, gcd

from rmq.kernel.core.validation import MOMENT_MAX_MS, check_int

RESIZES_MAX = 1000  # each adds 1 us to the stamp of the slots


@dataclass(frozen=True, slots=True)
class Resizing:
    """A resize of a topic that is in progress.

    Attributes:
        since_ms: Start of the resize, epoch ms.
        before: Number of slots before the resize.
        pending: Former slots that may have older messages.
    """

    since_ms: int
    before: int
    pending: tuple[int, ...]

    def to_redis(self) -> str:
        """Return the resize as the string that Redis stores in the topic's hash."""
        return f"{self.since_ms} {self.before} {','.join(map(str, self.pending))}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The earlier numbers of slots of a resized topic.

    The current number of slots is not part of a layout.

    Attributes:
        resizes: How often the topic was resized.
        first: Number of slots when the topic was created. This number still selects the slots of
            claims, dedup keys, merge keys and outbox stubs.
        most: Largest number of slots that the topic has ever had. Any of these slots may have
            messages.
        resizing: The resize in progress, or None.
        delivered_from: The current slots give delivery numbers above this number, so that no number
            repeats. It is the largest delivery number in former slots that had older messages, or
            0.
        dealt: How many messages waited in each slot when RMQ last divided `max_length` among the
            slots. Empty if the topic had no `max_length` at that time.
        numbers: Every number of slots that the topic has had. With each of these numbers, the name
            of a group selects a slot. The group may have messages in all the selected slots.
    """

    resizes: int
    first: int
    most: int
    resizing: Resizing | None = None
    delivered_from: int = 0
    dealt: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()

    def is_blocked(self, slot: int, slots: int) -> bool:
        """Return whether a slot of the topic must wait because another slot has older messages.

        So messages with the same `slot_basis` stay in order during a resize. Let d be the greatest
        common divisor of the old and the new number of slots. Two slots can have messages with the
        same basis if their indexes are equal modulo d.
        """
        if self.resizing is None or slot >= slots:
            return False
        common = gcd(self.resizing.before, slots)
        return any(
            other != slot and other % common == slot % common for other in self.resizing.pending
        )

    def part(self, slot: int, slots: int) -> Fraction:
        """Return a slot's part of the topic's capacity, from 0 to 1.

        The parts of all slots add up to 1.
        """
        return self._parts_before(slot + 1, slots) - self._parts_before(slot, slots)

    def _parts_before(self, slot: int, slots: int) -> Fraction:
        """Return the sum of the parts of all earlier slots of the topic.

        RMQ divides the capacity equally among the distinct numbers of slots. These are the current
        number (for new messages), the first number (for dedup keys), and the largest number (for
        old messages). All slots of a number get equal parts of its capacity.
        """
        numbers = {slots, self.first, self.most}
        return sum(Fraction(min(slot, each), each * len(numbers)) for each in numbers) or Fraction(
            0
        )

    def share(self, count: int, slot: int, slots: int) -> int:
        """Return a slot's share of a total count of the topic, at least 1.

        The shares of all slots add up to the total count.
        """
        rest = max(0, count - self.most)
        after, before = self._parts_before(slot + 1, slots), self._parts_before(slot, slots)
        return 1 + ceil(rest * after) - ceil(rest * before)

    def capacity(self, max_length: int, slot: int, slots: int) -> int:
        """Return how many messages may wait in a slot of a resized topic.

        RMQ divides the setting `max_length` among the slots, and rounds up, so that every slot has
        room for a message. If there is no limit, the result is 0.
        """
        if not max_length:
            return 0
        dealt = self.dealt[slot] if slot < len(self.dealt) else 0
        free = max_length - sum(self.dealt)
        if free < 0:  # max_length was lowered after it was divided
            return max(1, dealt * max_length // sum(self.dealt))
        return dealt + ceil(free * self.part(slot, slots)) or 1

    def to_redis(self) -> dict[str, str]:
        """Return the layout as fields of the topic's hash.

        The caller must remove fields with an empty text from the hash.
        """
        return {
            "layout": f"{self.resizes} {self.first} {self.most} {','.join(map(str, self.numbers))}",
            "resizing": self.resizing.to_redis() if self.resizing else "",
            "delivered_from": str(self.delivered_from or ""),
            "dealt": ",".join(map(str, self.dealt)),
        }


def from_redis(stored: Mapping[str, str]) -> Layout | None:
    """Read the layout of a topic from its hash. Return None if the topic was never resized."""
    if "layout" not in stored:
        return None
    resizes, first, most, *numbers = map(int, stored["layout"].replace(",", " ").split())
    resizing = None
    if "resizing" in stored:
        since, before, pending = stored["resizing"].split(" ")
        resizing = Resizing(
            check_int(int(since), "since", 0, MOMENT_MAX_MS),
            int(before),
            tuple(int(slot) for slot in pending.split(",") if slot),
        )
    dealt = tuple(int(count) for count in stored.get("dealt", "").split(",") if count)
    delivered_from = int(stored.get("delivered_from", 0))
    return Layout(resizes, first, most, resizing, delivered_from, dealt, tuple(numbers))
