"""The offsets that Spark writes into its checkpoint: the query's run, and a number for each slot.

Spark compares offsets as JSON text, so the keys have a fixed order, and an unchanged offset is
returned as it came. `held` is the number of messages of the batch that ends here. It cannot be
computed from the numbers, which have gaps where a lease has expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rmq.errors import ConfigurationError

VERSION = 1
# A file sink knows batches by number only: it drops batches of a new query whose numbers it knows.
ANEW = "a new checkpoint together with a new output path"


class Offset(NamedTuple):
    """An offset, parsed."""

    run: str
    slots: dict[int, int]
    held: dict[int, int]

    def spell(self, topic: str) -> dict[str, Any]:
        """Return the offset for the checkpoint."""
        return {
            "v": VERSION,
            "run": self.run,
            "topic": topic,
            "slots": {str(slot): self.slots[slot] for slot in sorted(self.slots)},
            "held": {str(slot): n for slot, n in sorted(self.held.items()) if n},
        }


def read(given: Any, topic: str) -> Offset:
    """Parse an offset from the checkpoint.

    Raises:
        ConfigurationError: it is no offset of this source, or of another topic.
    """
    try:
        version, run, named = given["v"], given["run"], given["topic"]
        slots = {int(slot): int(number) for slot, number in given["slots"].items()}
        held = {int(slot): int(number) for slot, number in given["held"].items()}
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ConfigurationError(
            f"checkpoint: {str(given)[:100]!r} is no offset of RMQ; give the query {ANEW}"
        ) from None
    if version != VERSION:
        raise ConfigurationError(
            f"checkpoint: it was written in format {version!r} and this RMQ reads {VERSION}; use "
            "the RMQ that wrote it"
        )
    if named != topic:
        raise ConfigurationError(
            f"checkpoint: it is of topic {named!r} and subscribe names {topic!r}; give the query "
            f"{ANEW}"
        )
    return Offset(run, slots, held)


def check_slots(offset: Offset, slots: int, topic: str) -> None:
    """Refuse a topic that was created again with other slots.

    Raises:
        ConfigurationError: it has another number of slots than the checkpoint.
    """
    if len(offset.slots) != slots:
        raise ConfigurationError(
            f"checkpoint: topic {topic!r} has {slots} slots in Redis and {len(offset.slots)} in "
            f"the checkpoint, so it was made anew; give the query {ANEW}"
        )


def check_age(offset: Offset, settled: Sequence[int], topic: str) -> None:
    """Refuse a checkpoint that is older than a settled batch.

    A sink that knows batches by number would take the next ones for replays and drop them, and
    they would be settled here.

    Raises:
        ConfigurationError: the query has settled more than ends with this offset.
    """
    ahead = sum(max(0, number - offset.slots[slot]) for slot, number in enumerate(settled))
    if ahead:
        raise ConfigurationError(
            f"checkpoint: it is an older copy; {ahead} messages of topic {topic!r} that came after "
            "it were settled by its query, or given back. Sinks would drop new batches, which have "
            "numbers they know; nothing was taken. Give the query its newest checkpoint, or "
            f"{ANEW}. With asyncProgressTrackingEnabled Spark itself leaves such a checkpoint "
            "behind: switch it off"
        )


class Share(NamedTuple):
    """A part of one slot's part of a batch.

    Attributes:
        slot: its index.
        after: the number before its first message.
        upto: the number of its last message.
        held: the number of its messages.
    """

    slot: int
    after: int
    upto: int
    held: int


def shares(after: dict[int, int], end: Offset, held: dict[int, int], pieces: int) -> list[Share]:
    """Divide a batch into at least so many parts, if it has as many messages.

    A slot whose numbers have gaps stays in one part, because it is unknown where its messages are.
    """
    total = sum(held.values())
    parts = []
    for slot, count in sorted(held.items()):
        if not count:
            continue
        first, last = after.get(slot, 0), end.slots[slot]
        cuts = min(count, -(-pieces * count // total)) if last - first == count else 1
        marks = [first + count * i // cuts for i in range(cuts)] + [last]
        parts += [Share(slot, a, b, count if cuts == 1 else b - a) for a, b in pairwise(marks)]
    return parts
