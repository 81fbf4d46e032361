"""The hash `rmq:batches`, which lists all batches, and the batches in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.batches import scripts
from rmq.kernel.batches.ref import BatchRef
from rmq.kernel.batches.scripts import OPEN, WAITS, BatchFields
from rmq.kernel.core.keys import NAME, SLOTS_MAX, SlotKeys, batches_key
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline, RawCommand, pipeline
from rmq.kernel.transport.lua.script_loader import plain

SCANNED = 500  # fields of one HSCAN, and batches of one round trip


BEGIN = -1  # cursor before the first page


def scan(key: bytes, cursor: int) -> Command[tuple[int, list[tuple[bytes, bytes]]]]:
    """Read a page of a hash. Return the cursor of the next page (0 at the end) and the fields."""
    return Command(
        plain("HSCAN"), (key,), [max(0, cursor), "COUNT", SCANNED],
        lambda reply: (int(reply[0]), _pairs(reply[1])),
    )  # fmt: skip


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    if isinstance(reply, Mapping):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))


def parse_entry(name: str, text: bytes) -> BatchRef | None:
    """Return the place of a batch. Return None if RMQ did not write the text."""
    topic, _, slot = text.decode("utf-8", "replace").partition(" ")
    is_slot = slot.isascii() and slot.isdigit() and len(slot) <= len(str(SLOTS_MAX))
    if not is_slot or not NAME.fullmatch(topic) or not NAME.fullmatch(name):
        return None
    return BatchRef(topic, int(slot), name, "")


def listed(prefix: str) -> Flow[list[BatchRef]]:
    """Return the places of all batches, sorted by name."""
    found: dict[str, BatchRef] = {}
    cursor = BEGIN
    while cursor:
        cursor, page = yield scan(batches_key(prefix), cursor)
        for field, text in page:
            name = field.decode("utf-8", "replace")
            entry = parse_entry(name, text)
            if entry is not None:
                found[name] = entry
    return [found[name] for name in sorted(found)]


def read(prefix: str, given: Sequence[BatchRef]) -> Flow[list[BatchFields | RMQError | None]]:
    """Read batches. Return the fields of each batch, None if it does not exist, or an error.

    Raises:
        Unavailable, OutcomeUnknown: Redis cannot be reached.
    """
    replies: list[BatchFields | RMQError | None] = []
    for at in range(0, len(given), SCANNED):
        page = given[at : at + SCANNED]
        replies += yield Pipeline(
            [scripts.read_batch(each.keys(prefix), each.name) for each in page]
        )
    for reply in replies:
        if isinstance(reply, Unavailable | OutcomeUnknown):
            raise reply
    return replies


def of_topic(prefix: str, topic: str) -> Flow[tuple[list[BatchRef], list[str]]]:
    """Return all batches whose callback goes to a topic, and the names of unfinished batches."""
    given = [each for each in (yield from listed(prefix)) if each.topic == topic]
    found = yield from read(prefix, given)
    unfinished = [
        each.name
        for each, fields in zip(given, found, strict=True)
        if isinstance(fields, BatchFields) and fields.state != "d"
    ]
    return given, unfinished


def add(prefix: str, place: BatchRef) -> RawCommand:
    """Add a batch to the list, unless its name is listed."""
    text = f"{place.topic} {place.slot}"
    return RawCommand("batch_open", "HSETNX", batches_key(prefix), place.name, text)


def find(prefix: str, name: str) -> Flow[BatchRef | None]:
    """Return the place of a batch, or None if its name is not listed."""
    text = yield RawCommand("batch", "HGET", batches_key(prefix), name)
    return parse_entry(name, text or b"")


def forget(prefix: str, gone: Sequence[BatchRef]) -> Flow[None]:
    """Remove the names of batches that do not exist any more.

    A program may create such a batch at the same time. If it lists the batch after the removal
    (`open_batch` does this last), nothing is lost. If it listed the batch before the removal, this
    function finds the batch and lists it again.
    """
    for at in range(0, len(gone), SCANNED):
        names = [each.name for each in gone[at : at + SCANNED]]
        yield RawCommand("batch", "HDEL", batches_key(prefix), *names)
    found = yield from read(prefix, gone)
    for place, fields in zip(gone, found, strict=True):
        if fields is not None:
            yield add(prefix, place)


def delete(keys: SlotKeys, name: str) -> Flow[None]:
    """Delete a batch. Redis frees it in another thread."""
    yield RawCommand("batch", "UNLINK", keys.batch(name))


class OpenMember(NamedTuple):
    """A member that has not ended.

    Attributes:
        id: Its id.
        topic: Name of its topic.
        waits: Whether it is a dead letter, and the batch waits for it.
    """

    id: str
    topic: str
    waits: bool


def members_page(keys: SlotKeys, name: str, cursor: int) -> Flow[tuple[int, list[OpenMember]]]:
    """Return the cursor of the next page, and a page of open members.

    The first page has the cursor BEGIN. After the last page, the returned cursor is 0.
    """
    (after, page), fields = yield from pipeline(
        [scan(keys.batch(name), cursor), scripts.read_batch(keys, name)]
    )
    if fields is None:
        return 0, []
    found = dict[str, OpenMember]()  # HSCAN may return a field twice
    for field, value in page:
        letter = value[:1].decode("latin-1")
        if letter in OPEN + WAITS and not field.startswith(b"#"):
            id, topic = field.decode(), fields.topics[int(value[1:]) - 1]
            found[id] = OpenMember(id, topic, letter == WAITS)
    return after, list(found.values())
