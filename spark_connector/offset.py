"""What Spark writes into its checkpoint: which query it is, and how far each slot has come.

Spark compares offsets as JSON text, so the keys have one order, and an offset that is nothing new
is handed back as it came. `held` is how many messages the batch has that ends here: numbers of a
query have gaps where a lease once ran out, so it cannot be told from the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rmq.errors import ConfigurationError

VERSION = 1
# A file sink knows batches by their number alone, and drops those of a new query that it knows.
ANEW = "a new checkpoint together with a new output path"


class Offset(NamedTuple):
    """An offset, read."""

    run: str
    slots: dict[int, int]
    held: dict[int, int]

    def spell(self, topic: str) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "v": VERSION,
            "run": self.run,
            "topic": topic,
            "slots": {str(slot): self.slots[slot] for slot in sorted(self.slots)},
            "held": {str(slot): n for slot, n in sorted(self.held.items()) if n},
        }


def read(given: Any, topic: str) -> Offset:
    """An offset from the checkpoint.

    Raises:
        ConfigurationError: it is no offset of this source, or of another topic.
    """
    try:
        version, run, found = given["v"], given["run"], given["topic"]
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
    if found != topic:
        raise ConfigurationError(
            f"checkpoint: it is of topic {found!r} and subscribe names {topic!r}; give the query "
            f"{ANEW}"
        )
    return Offset(run, slots, held)


def check_slots(offset: Offset, slots: int, topic: str) -> None:
    """Refuse a topic that was made anew with other slots.

    Raises:
        ConfigurationError: it has another number of slots than the checkpoint.
    """
    if len(offset.slots) != slots:
        raise ConfigurationError(
            f"checkpoint: topic {topic!r} has {slots} slots in Redis and {len(offset.slots)} in "
            f"the checkpoint, so it was made anew; give the query {ANEW}"
        )


def check_age(offset: Offset, settled: Sequence[int], topic: str) -> None:
    """Refuse a checkpoint that does not know of batches that were settled.

    A sink that knows batches by their number would take its next ones for replays, drop them, and
    they would be settled here.

    Raises:
        ConfigurationError: the query has settled more than ends with this offset.
    """
    ahead = sum(max(0, one - offset.slots[slot]) for slot, one in enumerate(settled))
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
        after: numbers after this one.
        upto: up to this one.
        held: how many messages that is.
    """

    slot: int
    after: int
    upto: int
    held: int


def shares(after: dict[int, int], end: Offset, held: dict[int, int], pieces: int) -> list[Share]:
    """A batch in at least so many parts, as far as it has messages.

    A slot whose numbers have gaps stays in one part: where the messages lie in it is not known.
    """
    total = sum(held.values())
    found = []
    for slot, count in sorted(held.items()):
        if not count:
            continue
        first, last = after.get(slot, 0), end.slots[slot]
        cuts = min(count, -(-pieces * count // total)) if last - first == count else 1
        marks = [first + count * i // cuts for i in range(cuts)] + [last]
        found += [Share(slot, a, b, count if cuts == 1 else b - a) for a, b in pairwise(marks)]
    return found
