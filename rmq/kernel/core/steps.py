"""Decode the steps of a message, which are recorded parts of its handler's work.

A retry skips these parts. `lua/lib/records/steps.lua` describes and writes the bytes. The data of a
step begin with the number of a codec, in one byte. The value follows, as this codec has encoded it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from rmq.errors import DecodeError, InvalidType, InvalidValue, PayloadTooLarge
from rmq.kernel.core.codec import Codec, Offloaded, decode
from rmq.kernel.core.score import moment

ENTRY_BYTES = 64 * 1024  # default limit for the steps of a message
ENTRY_MAX = 1024 * 1024
EVENT_BYTES = 256 * 1024  # of the encoded body of an event
STEPS_MAX = 1000
NAME_BYTES = 255
BEGUN, DONE, LOST, CURSOR, EVENT, TIMED_OUT = b"b", b"d", b"l", b"c", b"e", b"t"
_STATES = {
    BEGUN: "begun", DONE: "done", LOST: "lost", CURSOR: "cursor", EVENT: "event",
    TIMED_OUT: "timed_out",
}  # fmt: skip
_SIZES = struct.Struct(">6sI")  # time and size of the data, after the name

State = Literal["begun", "done", "lost", "cursor", "event", "timed_out"]


class Step(NamedTuple):
    """A recorded part of a handler's work (a step), the position that it saved, or an event.

    Attributes:
        name: Name of the step, or key of the event. Empty for the cursor.
        state: "begun", "done", "lost", "cursor", "event" or "timed_out". "lost" means that the step
            is done, but that its value could not be stored. "event" means that the event for which
            the message waited has arrived. "timed_out" means that the event did not arrive in time.
        at: Time of the change to this state, by the clock of Redis. For an event, time of the
            signal.
        data: The encoded value, or empty.
    """

    name: str
    state: State
    at: datetime
    data: bytes = b""

    @property
    def value(self) -> Any:
        """The value that the step returned, the saved position (cursor), or the event's body.

        If there is no value, this is None.

        Raises:
            DecodeError: The value cannot be decoded.
        """
        return decode(self.data[0], self.data[1:]) if self.data else None


class Event(NamedTuple):
    """The end of a message's wait for an event.

    Attributes:
        key: Key of the event.
        timed_out: Whether the time limit ended before the event was signalled.
        at: Time of the signal, or of the end of the time limit, by the clock of Redis.
        data: The encoded body, or empty.
    """

    key: str
    timed_out: bool
    at: datetime
    data: bytes = b""

    @property
    def body(self) -> Any:
        """The body that the caller of `signal` has passed.

        If the caller passed no body, or if the time limit ended, this is None.

        Raises:
            DecodeError: The body cannot be decoded.
        """
        return decode(self.data[0], self.data[1:]) if self.data else None


def split_events(items: Iterable[Step]) -> tuple[dict[str, Step], dict[str, Event]]:
    """Divide the recorded items of a message into two dicts: steps of its handler, and events."""
    steps, events = {}, {}
    for item in items:
        if item.state in ("event", "timed_out"):
            events[item.name] = Event(item.name, item.state == "timed_out", item.at, item.data)
        else:
            steps[item.name] = item
    return steps, events


def decode_steps(entry: bytes) -> Iterator[Step]:
    """Decode the steps of a message, up to the first damaged step."""
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
    return _check_text(name, "name", "the name of the step")


def check_event_key(key: object) -> bytes:
    """Check the key of an event, and return its bytes."""
    return _check_text(key, "key", "the key of the event")


def _check_text(text: object, field: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidType(f"{field}: {type(text).__name__}; give {what} as a str")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{field}: {text!r} has characters that UTF-8 cannot encode") from error
    if not 0 < len(encoded) <= NAME_BYTES:
        raise InvalidValue(f"{field}: {len(encoded)} bytes; {what} has 1 to {NAME_BYTES} bytes")
    return encoded


def encode_event(codec: Codec, body: object) -> bytes:
    """Encode the body of an event: the number of the codec in one byte, and the body.

    Raises:
        EncodeError: The codec cannot encode the body.
        PayloadTooLarge: The encoded body has more than EVENT_BYTES.
    """
    codec = codec.inner if isinstance(codec, Offloaded) else codec
    if body is None:
        return b""
    data = codec.encode(body)
    if len(data) > EVENT_BYTES:
        raise PayloadTooLarge(
            f"body: {len(data)} bytes; an event has at most {EVENT_BYTES}. Store the data "
            "elsewhere, and signal where they are"
        )
    return bytes((codec.number,)) + data


def value_of(step: Step, message: object) -> Any:
    """Return the value of a step, or the saved cursor of a handler.

    A step is a part of a handler's work. A cursor is a position that the handler has saved. RMQ
    records both, so that a retry continues there.

    Raises:
        DecodeError: The value cannot be decoded. The error names the step.
    """
    try:
        return step.value
    except DecodeError as error:
        what = f"step {step.name!r}" if step.name else "the saved cursor"
        raise DecodeError(f"{what} of {message}: {error}") from error
