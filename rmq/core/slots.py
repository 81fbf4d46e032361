"""Choose the slot of a message.

slot = CRC-32 (ISO-HDLC, as `zlib.crc32`) of the UTF-8 bytes of `slot_basis`, modulo the number of
slots. Any language with that CRC agrees; `tests/unit/core/test_slots.py` has vectors from crcmod.
"""

from __future__ import annotations

import itertools
import zlib

from rmq.core.validation import utf8
from rmq.errors import InvalidType

# Messages without a basis go to a slot in runs of this length: the load is even over time, and a
# batch needs one script call instead of a call for each slot.
RUN_LENGTH = 100


def slot_of(basis: str | bytes, slots: int) -> int:
    """Return the slot of a basis: always the same while the topic exists."""
    if isinstance(basis, str):
        basis = utf8(basis, "slot_basis")
    elif not isinstance(basis, bytes):
        raise InvalidType(f"slot_basis: {type(basis).__name__}; give str or bytes")
    return zlib.crc32(basis) % slots


class SlotRotation:
    """Chooses slots for messages without a basis, round-robin."""

    __slots__ = ("_turn", "slots")

    def __init__(self, slots: int, start: int = 0) -> None:
        self.slots = slots
        self._turn = itertools.count(start)

    def next(self) -> int:
        """Return the slot for the next RUN_LENGTH messages."""
        return next(self._turn) % self.slots
