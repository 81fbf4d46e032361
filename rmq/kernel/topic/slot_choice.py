"""Choose the slot of a message: by its slot basis, or one slot after another.

A slot basis is a text. Messages with the same slot basis are in the same slot. The index of the
slot is the CRC-32 (ISO-HDLC, as `zlib.crc32`) of the UTF-8 bytes, modulo the number of slots.

Programs in other languages can compute the same index. tests/unit/kernel/topic/test_slot_choice.py
has test vectors.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain, cycle

from rmq.errors import InvalidType
from rmq.kernel.core.validation import utf8

# Number of successive messages without a basis that go to one slot. Over time the load is even, and
# a batch needs one script call instead of a call for each slot.
RUN_LENGTH = 100


def slot_of(basis: str | bytes, slots: int) -> int:
    """Return the slot (part of a topic) that a text, such as a group's name, selects.

    The index depends only on the basis and the number of slots.
    """
    if isinstance(basis, str):
        basis = utf8(basis, "slot_basis")
    elif not isinstance(basis, bytes):
        raise InvalidType(f"slot_basis: {type(basis).__name__}; give str or bytes")
    return zlib.crc32(basis) % slots


def slot_rotation(slots: int, start: int = 0) -> Iterator[int]:
    """Return an endless iterator over the slots (parts of a topic) for messages that select none.

    The iterator returns each slot RUN_LENGTH times before the next slot. Several threads may use
    it.
    """
    start %= slots
    return cycle(chain(range(start, slots), range(start)))
