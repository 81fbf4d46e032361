"""Read and change the list of all batches, which is the hash `rmq:batches`."""

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
    """Read one page of a hash.

    Returns:
        Cursor of the next page (0 after the last page), and the fields of this page.
    """
    return Command(
        plain("HSCAN"), (key,), [max(0, cursor), "COUNT", SCANNED],
        lambda reply: (int(reply[0]), _pairs(reply[1])),
    )  # fmt: skip


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    if isinstance(reply, Mapping):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))


def parse_entry(name: str, text: bytes) -> BatchRef | None:
    """Parse an entry of the list of batches. Return None if RMQ did not write the entry."""
    topic, _, slot = text.decode("utf-8", "replace").partition(" ")
    is_slot = slot.isascii() and slot.isdigit() and len(slot) <= len(str(SLOTS_MAX))
    if not is_slot or not NAME.fullmatch(topic) or not NAME.fullmatch(name):
        return None
    return BatchRef(topic, int(slot), name, "")


def listed(prefix: str) -> Flow[list[BatchRef]]:
    """Return all batches of the list, sorted by name."""
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
    """Read the fields of batches.

    Returns:
        For each batch: its fields, None if the batch does not exist, or the error of the read.

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
    """Return the batches whose callback goes to a topic.

    Also return the names of unfinished batches.
    """
    given = [each for each in (yield from listed(prefix)) if each.topic == topic]
    found = yield from read(prefix, given)
    unfinished = [
        each.name
        for each, fields in zip(given, found, strict=True)
        if isinstance(fields, BatchFields) and fields.state != "d"
    ]
    return given, unfinished


def add(prefix: str, place: BatchRef) -> RawCommand:
    """Add a batch to the list. If the list has a batch of this name, nothing is changed."""
    text = f"{place.topic} {place.slot}"
    return RawCommand("batch_open", "HSETNX", batches_key(prefix), place.name, text)


def find(prefix: str, name: str) -> Flow[BatchRef | None]:
    """Find a batch in the list by its name. Return None if the name is not listed."""
    text = yield RawCommand("batch", "HGET", batches_key(prefix), name)
    return parse_entry(name, text or b"")


def forget(prefix: str, gone: Sequence[BatchRef]) -> Flow[None]:
    """Remove batches that no longer exist from the list.

    A program may create a batch of the same name at the same time. `open_batch` adds the batch to
    the list as its last step. If this happens after the removal, nothing is lost. If it happens
    before the removal, this function finds the batch and adds it to the list again.
    """
    for at in range(0, len(gone), SCANNED):
        names = [each.name for each in gone[at : at + SCANNED]]
        yield RawCommand("batch", "HDEL", batches_key(prefix), *names)
    found = yield from read(prefix, gone)
    for place, fields in zip(gone, found, strict=True):
        if fields is not None:
            yield add(prefix, place)


def delete(keys: SlotKeys, name: str) -> Flow[None]:
    """Delete a batch. Redis frees the memory in another thread."""
    yield RawCommand("batch", "UNLINK", keys.batch(name))


class OpenMember(NamedTuple):
    """A member of a batch that has not ended.

    Attributes:
        id: Id of the message.
        topic: Name of the topic of the message.
        waits: Whether the message is a dead letter, and the batch waits for it.
    """

    id: str
    topic: str
    waits: bool


def members_page(keys: SlotKeys, name: str, cursor: int) -> Flow[tuple[int, list[OpenMember]]]:
    """Read one page of the members that have not ended. Begin with the cursor BEGIN.

    Returns:
        Cursor of the next page (0 after the last page), and the members.
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
