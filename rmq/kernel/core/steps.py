"""Decode the steps of a message: parts of its work that are recorded, so that retries skip them.

`lua/lib/records/steps.lua` describes and writes the bytes. The data of a step are the number of a
codec in one byte, and the value as this codec encoded it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from rmq.errors import DecodeError, InvalidType, InvalidValue
from rmq.kernel.core.codec import decode
from rmq.kernel.core.score import moment

ENTRY_BYTES = 64 * 1024  # default limit for the steps of a message
ENTRY_MOST = 1024 * 1024
STEPS_MOST = 1000
NAME_BYTES = 255
BEGUN, DONE, LOST, CURSOR = b"b", b"d", b"l", b"c"
_STATES = {BEGUN: "begun", DONE: "done", LOST: "lost", CURSOR: "cursor"}
_SIZES = struct.Struct(">6sI")  # time and size of the data, after the name

State = Literal["begun", "done", "lost", "cursor"]


class Step(NamedTuple):
    """A recorded part of the work on a message, or the cursor that its handler saved.

    Attributes:
        name: Name of the step. Empty for the cursor.
        state: "begun", "done", "lost" (done, but its value could not be stored), or "cursor".
        at: Time of the change to this state, by the clock of Redis.
        data: The encoded value, or empty.
    """

    name: str
    state: State
    at: datetime
    data: bytes = b""

    @property
    def value(self) -> Any:
        """The value that the step returned, or the cursor. None if there is no value.

        Raises:
            DecodeError: The value cannot be decoded.
        """
        return decode(self.data[0], self.data[1:]) if self.data else None


def decode_steps(entry: bytes) -> Iterator[Step]:
    """Decode the steps of a message. Items after a damaged item are omitted."""
    at = 0
    while at + 2 <= len(entry):
        state, name_end = entry[at : at + 1], at + 2 + entry[at + 1]
        if state not in _STATES or name_end + _SIZES.size > len(entry):
            return
        time, size = _SIZES.unpack_from(entry, name_end)
        data_at = name_end + _SIZES.size
        name = entry[at + 2 : name_end].decode("utf-8", "replace")
        data = entry[data_at : data_at + size]
        yield Step(name, cast(State, _STATES[state]), moment(int.from_bytes(time, "big")), data)
        at = data_at + size


def check_name(name: object) -> bytes:
    """Check the name of a step, and return its bytes."""
    if not isinstance(name, str):
        raise InvalidType(f"name: {type(name).__name__}; give the name of the step as a str")
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"name: {name!r} has characters that UTF-8 cannot encode") from error
    if not 0 < len(encoded) <= NAME_BYTES:
        raise InvalidValue(
            f"name: {len(encoded)} bytes; give a step a name of 1 to {NAME_BYTES} bytes"
        )
    return encoded


def value_of(step: Step, message: object) -> Any:
    """Return the value of a step, or of the cursor, of a message.

    Raises:
        DecodeError: The value cannot be decoded. The error names the step.
    """
    try:
        return step.value
    except DecodeError as error:
        what = f"step {step.name!r}" if step.name else "the saved cursor"
        raise DecodeError(f"{what} of {message}: {error}") from error
