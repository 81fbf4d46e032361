"""Which slot a message belongs to.

slot = CRC-32 (ISO-HDLC, as `zlib.crc32`) of the UTF-8 bytes of `slot_basis`, modulo the number of
slots. Any language with that CRC agrees; `tests/unit/test_slots.py` holds vectors checked against
crcmod.
"""

from __future__ import annotations

import itertools
import zlib

from rmq.errors import InvalidType

# A run of messages without a basis goes to one slot, the next run to the next: even over time, and
# one script call for a batch instead of one for each slot.
RUN_LENGTH = 100


def slot_of(basis: str | bytes, slots: int) -> int:
    """The slot of a basis: same basis, same slot, for as long as the topic lives."""
    if isinstance(basis, str):
        basis = basis.encode()
    elif not isinstance(basis, bytes):
        raise InvalidType(f"slot_basis: {type(basis).__name__}; give str or bytes")
    return zlib.crc32(basis) % slots


class SlotRotation:
    """Deals slots to messages without a basis, in turn, starting anywhere."""

    __slots__ = ("_turn", "slots")

    def __init__(self, slots: int, start: int = 0) -> None:
        self.slots = slots
        self._turn = itertools.count(start)

    def next(self) -> int:
        """The slot for the next run of messages."""
        return next(self._turn) % self.slots
