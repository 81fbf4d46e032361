"""Read the headers that name the batch of a member or of a callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmq.kernel.batches.scripts import COUNTS_BYTES, counts_of
from rmq.kernel.core.keys import SlotKeys

COUNTS_MARK = "rmq-batch-counts"  # header of the callback: its counts, filled in by the script
NAME_MARK = "rmq-batch-name"  # header of the callback: name of the batch


class BatchRef(NamedTuple):
    """Identifies a batch by its topic, slot and name, and names one of its members."""

    topic: str  # topic that gets the callback
    slot: int
    name: str
    id: str  # first id of the member, in text form

    def keys(self, prefix: str) -> SlotKeys:
        """Return the keys of the slot in which the batch is stored."""
        return SlotKeys(prefix, self.topic, self.slot)


def parse_ref(text: str) -> BatchRef | None:
    """Parse the header that names the batch of a member.

    Return None if RMQ did not write the header.
    """
    parts = text.split(" ")
    if len(parts) != 4 or not parts[1].isdigit():
        return None
    return BatchRef(parts[0], int(parts[1]), parts[2], parts[3])


class BatchCounts(NamedTuple):
    """Counts how the members of a batch have ended. The callback message has these counts.

    Attributes:
        name: Name of the batch.
        is_cancelled: Whether the batch was cancelled.

    Each other attribute is a number of members. `rmq.BatchState` describes these attributes.
    """

    name: str
    is_cancelled: bool
    succeeded: int
    handed_over: int
    dead: int
    cancelled: int
    expired: int
    purged: int
    dropped: int
    lost: int


def counts_in(headers: Mapping[str, str]) -> BatchCounts | None:
    """Read the counts from the headers of a callback message. Return None for any other message."""
    text = headers.get(COUNTS_MARK, "")
    if len(text) != COUNTS_BYTES or not text.isdigit():
        return None
    counts, is_cancelled = counts_of(text)
    return BatchCounts(headers.get(NAME_MARK, ""), is_cancelled, **counts)
