"""A history: the events that producers, consumers and faults recorded, one JSON object per line.

The recorder belongs to the programs that use the queue, not to the queue. It records their calls
and the answers, so a history can contradict RMQ's own counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

TYPES = ("invoke", "ok", "fail", "unknown")
# Required fields of each operation, in addition to type, times and process.
REQUIRED: dict[str, tuple[str, ...]] = {
    "start": (),  # start of a run; `settings` has its seed and the settings of its topic
    "send": ("id",),
    "deliver": ("id", "receipt"),  # ok: a consumer has received it
    "handle": ("id",),  # ok: its work is done
    "ack": ("id", "receipt"),
    "nack": ("id", "receipt"),
    "release": ("id", "receipt"),
    "extend": ("id", "receipt"),
    "dead": ("id",),  # ok: it is in the DeadQueue at the end
    "drain": (),  # ok: nothing waits or is in flight
    "fault": ("name",),  # invoke: it begins; ok: it is over; fail: it did not happen
    "control": ("name",),  # ok: a broken variant was caught; fail: it was not
}


@dataclass(slots=True)
class Event:
    """An event of a history.

    Attributes:
        type: invoke, ok, fail (it did not happen) or unknown (it may have happened).
        op: Key of `REQUIRED`.
        t: Monotonic ns, one clock for all processes of a machine.
        wall: Epoch ms, by the clock that the Redis of this machine uses.
        pid: Process that recorded the event.
        id: Id of the message.
        digest: Digest of the body.
        receipt: Receipt of the delivery.
        attempt: Number of the delivery, from 1.
        due: Due time, epoch ms; 0 for a message that is due when it is sent.
        priority: Priority; 0 for none.
        slot: Index of the slot; -1 if unknown.
        level: Durability that the send reached.
        since: Start of the call that received the message, monotonic ns.
        until: End of the lease, epoch ms.
        producer: Name of the producer; with `number` it identifies the message without its id.
        number: Producer's number of the message; -1 for none.
        name: Name of a fault or a control.
        target: Process that a fault hits; 0 for Redis, or the line to it.
        reason: Reason of a failure, or of a dead letter.
        settings: Settings of the run.
    """

    type: str
    op: str
    t: int
    wall: int
    pid: int
    id: str = ""
    digest: str = ""
    receipt: str = ""
    attempt: int = 0
    due: int = 0
    priority: int = 0
    slot: int = -1
    level: str = ""
    since: int = 0
    until: int = 0
    producer: str = ""
    number: int = -1
    name: str = ""
    target: int = 0
    reason: str = ""
    settings: dict[str, Any] | None = None


_ALWAYS = ("type", "op", "t", "wall", "pid")
_KINDS = {
    one.name: {"str": str, "int": int, "dict[str, Any] | None": dict}[str(one.type)]
    for one in fields(Event)
}
_KIND_WORDS = {str: "a text", int: "a whole number", dict: "an object"}


class HistoryError(ValueError):
    """A line that is not an event; the message names the line and the field."""


class Recorder:
    """Appends events to a file, each in one write, so that several processes can share the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._pid = os.getpid()

    def record(self, type: str, op: str, **facts: Any) -> None:
        """Append one event with the current times."""
        event = {
            "type": type, "op": op, "t": time.monotonic_ns(), "wall": time.time_ns() // 1_000_000,
            "pid": self._pid, **facts,
        }  # fmt: skip
        data = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        written = os.write(self._file, data)
        if written != len(data):
            raise OSError(f"the history takes no more: {written} of {len(data)} bytes were written")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Read the events of a file, without an unfinished last line.

    Raises:
        HistoryError: A line is not an event.
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # its process was killed during the write, or is still writing
            yield parse(line, number)


def parse(line: bytes, number: int) -> Event:
    """Parse the line with this number.

    Raises:
        HistoryError: The line is not an event.
    """
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"line {number} is not JSON: {error}") from error
    if not isinstance(facts, dict):
        raise HistoryError(f"line {number} is not a JSON object")
    for name, value in facts.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise HistoryError(f"line {number}: no event has the field {name!r}")
        if type(value) is not kind:  # a bool is an int to isinstance
            raise HistoryError(
                f"line {number}: field {name!r} is {value!r}, not {_KIND_WORDS[kind]}"
            )
    op = facts.get("op", "")
    for name in _ALWAYS + REQUIRED.get(op, ()):
        if facts.get(name, "") == "":
            raise HistoryError(f"line {number}: field {name!r} is missing")
    if op not in REQUIRED:
        raise HistoryError(f"line {number}: field 'op' is {op!r}, not one of {', '.join(REQUIRED)}")
    if facts["type"] not in TYPES:
        raise HistoryError(
            f"line {number}: field 'type' is {facts['type']!r}, not one of {', '.join(TYPES)}"
        )
    return Event(**facts)
