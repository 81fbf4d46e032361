"""Large bodies: kept in a hash beside the records, written and read by plain commands.

The Lua of Redis hashes every byte of a string that a script is given or makes, so a body of 10 KiB
would cost 50 us on its way through three scripts and 8 by plain commands. The record of such a
message has the flag `LARGE` and ends with a reference instead of a body:

    size    4 bytes
    random  8 bytes; the body's name in the hash is the member, then these

The twin of `lua/lib/large_bodies.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_BYTES = 4096  # smaller bodies stand in their records
# So do the large ones of a call that has fewer bytes of them: commands and round trips cost more.
# Not so in a topic with limits for each key, where takes read many records.
MIN_BYTES_OF_CALL = 32768
LARGE, KIND = 8, 12  # of the first byte: a flag, and the bits in which no other record has it
RANDOM = 8
REFERENCE = 4 + RANDOM


def reference(size: int, random: bytes) -> bytes:
    """Return what a record has in place of a body of so many bytes; `random`: 8 bytes."""
    return size.to_bytes(4, "big") + random


def name_of(member: bytes, record: bytes) -> bytes:
    """Return the name of the body that a record, or the rest of one, refers to."""
    return member + record[-RANDOM:]


def size_of(record: bytes) -> int:
    """Return the size of the body that a record refers to."""
    return int.from_bytes(record[-REFERENCE:-RANDOM], "big")


def with_body(record: bytes, body: bytes) -> bytes:
    """Return the record as it would be if its body were small."""
    return bytes((record[0] & ~LARGE,)) + record[1:-REFERENCE] + body


def positions(records: Sequence[bytes]) -> list[int]:
    """Return where records that refer to large bodies are."""
    return [at for at, record in enumerate(records) if record and record[0] & KIND == LARGE]
