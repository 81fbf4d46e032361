"""Find and remove objects that no message refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from rmq.errors import (
    ConfigurationError,
    DecodeError,
    InvalidValue,
    TopicNotFound,
    TopicVanished,
)
from rmq.kernel.core import codec, object_store, record
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.object_store import Reference
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.follow_ups.scripts import record_of
from rmq.kernel.topic import opening, overview, tombstones
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, InThread, RawCommand, server_ms

# Much longer than a send takes between storing its object and its message.
OLDER_MIN_MS = 3_600_000
SCAN = 500


class SweepResult(NamedTuple):
    """The number of removed objects, and their total size in bytes."""

    objects: int
    bytes: int


def sweep(context: TopicContext, older: Duration, dry_run: bool) -> Flow[SweepResult]:
    """Remove the objects of a topic that no message of any topic refers to."""
    older_ms = duration_ms(older, "older", OLDER_MIN_MS)
    stores = object_store.known_stores()
    if not stores:
        raise ConfigurationError(f"offloaded: there is no store; set {object_store.VARIABLE}")
    yield from opening.ensure_open(context, create=False)
    before_ms = (yield from server_ms("sweep")) - older_ms
    found: dict[tuple[str, str], Reference] = {}
    for store in stores:
        search = partial(store.find, context.name, context.identity, before_ms)
        for name, size in (yield InThread(search)).items():
            found[store.url, name] = Reference(store.url, name, size, b"")
    if found:
        yield from _leave_out_referred(context, found)
    orphans = list(found.values())
    if orphans and not dry_run:
        problems = yield InThread(partial(object_store.remove_all, orphans))
        orphans = [orphan for orphan, why in zip(orphans, problems, strict=True) if not why]
    return SweepResult(len(orphans), sum(orphan.size for orphan in orphans))


def _leave_out_referred(
    context: TopicContext, found: dict[tuple[str, str], Reference]
) -> Flow[None]:
    """Remove the objects from `found` that a message or a tombstone refers to.

    A tombstone names the object of a message that was removed. During the search, redrives may move
    messages between topics. So the function reads the topics twice: in order, and in reverse order.
    """
    names = yield from overview.topics(context.prefix)
    for name in (*names, *reversed(names)):
        each = TopicContext(context.prefix, name, JSON, context.sessions, {})
        try:
            yield from opening.ensure_open(each, create=False)
        except (TopicNotFound, TopicVanished):
            continue
        layout = each.settings.layout
        if layout is not None and layout.resizing is not None:
            raise InvalidValue(f"topic {name!r} is being resized; sweep when that has ended")
        for keys in each.slots:
            yield from _scan_pending(keys.pending, partial(_leave_out, found, _of_pending))
            yield from _scan(keys.records, partial(_leave_out, found, _of_record))
            match = "MATCH", tombstones.FIELD + b"*"
            yield from _scan(keys.bodies, partial(_leave_out, found, bytes), *match)


def _leave_out(
    found: dict[tuple[str, str], Reference],
    reference_in: Callable[[bytes], bytes | None],
    values: Iterable[bytes],
) -> None:
    for value in values:
        with suppress(DecodeError):
            packed = reference_in(value)
            if packed is not None:
                reference = Reference.read(packed)
                found.pop((reference.store, reference.name), None)


def _of_record(entry: bytes) -> bytes | None:
    message = record.read(entry)
    return codec.reference_of(message.codec, message.body)


def _of_pending(member: bytes) -> bytes | None:
    _, _, entry = member.split(b":", 2)  # the entry follows the name and the slot of its target
    message = record_of(entry)
    return codec.reference_of(message.codec, message.body)


def _scan_pending(key: bytes, use: Callable[[Iterable[bytes]], None]) -> Flow[None]:
    first = b"-"
    while True:
        page = yield RawCommand("sweep", "ZRANGE", key, first, "+", "BYLEX", "LIMIT", 0, SCAN)
        if not page:
            return
        use(page)
        first = b"(" + page[-1]


def _scan(key: bytes, use: Callable[[Iterable[bytes]], None], *match: str | bytes) -> Flow[None]:
    cursor = 0
    while True:
        cursor, page = yield RawCommand("sweep", "HSCAN", key, cursor, *match, "COUNT", SCAN)
        use(page.values() if isinstance(page, dict) else page[1::2])
        if not int(cursor):
            return
