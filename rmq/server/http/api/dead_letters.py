"""Dead letters: list, group, redrive, purge and restore them; purge waiting messages."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Literal

from rmq.core import codec as codecs, dead_letter_filter
from rmq.core.codec import RawCodec
from rmq.core.dead_letter_filter import DeadLetterFilter
from rmq.core.message import Message, Outgoing
from rmq.core.record import Record
from rmq.errors import DecodeError, EncodeError
from rmq.protocol.flows import inspect
from rmq.server.http.api import bodies, views
from rmq.server.http.api.messages import BLOCK_S, shown, walk
from rmq.server.http.api.operation import At, Table, check_confirm
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import Role

TABLE = Table("dead letters")
NONE = "topic-not-found"
SAMPLE_MAX = 10  # dead letters that a dry run shows
SAMPLE_SCAN = 10_000  # that it looks at for them
# An export begins with a small page; the next have as many as make some 4 MiB.
EXPORT_FIRST, EXPORT_BYTES = 20, 4 * 1024 * 1024


@TABLE.get("/topics/{topic}/dead-letters", NONE, "conflict")
async def list_dead_letters(
    at: At, path: bodies.TopicPath, query: bodies.DeadQuery
) -> views.MessageList:
    """List dead letters, the oldest of each slot first.

    A page may have fewer than `limit` before the last one: a request looks at 5000 dead letters.
    """
    return await _list(at, path.topic, query, "dead", dead_letter_filter.given(query.filter))


@TABLE.get("/topics/{topic}/dead-letters/groups", NONE, "conflict")
async def list_dead_letter_groups(
    at: At, path: bodies.TopicPath, query: bodies.GroupsQuery
) -> views.DeadLetterGroups:
    """Count dead letters by cause: by the fingerprint of their error, the largest group first.

    All dead letters are looked at. A fingerprint can be used in a filter.
    """
    found = await at.admin.dead_letter_groups(path.topic, filter=query.filter)
    return views.groups_of(found, query.limit)


@TABLE.get("/topics/{topic}/dead-letters/export", NONE, "conflict", role=Role.ADMIN)
async def export_dead_letters(
    at: At, path: bodies.TopicPath, query: bodies.ExportQuery
) -> AsyncIterator[list[views.DeadLetterLine]]:
    """Write dead letters as NDJSON, with whole bodies and errors, for `rmq dlq import`.

    All of them come in one answer. Where it breaks off, `cursor` goes on behind its last line.
    """
    cursor, size = query.cursor, EXPORT_FIRST
    while True:
        page = await at.admin.dead_letters(
            path.topic, filter=query.filter, cursor=cursor, limit=size, raw=True
        )
        found = [views.line_of(message) for message in page.messages]
        yield found
        cursor = page.cursor
        if cursor is None:
            return
        bytes_each = sum(len(each.body_base64 or "") for each in found) // (len(found) or 1)
        size = max(1, min(bodies.LIMIT_MOST, EXPORT_BYTES // (bytes_each + 1000)))


@TABLE.post(
    "/topics/{topic}/dead-letters/import", NONE, "conflict", "queue-full", role=Role.OPERATOR
)
async def import_dead_letters(
    at: At, path: bodies.TopicPath, body: bodies.Import
) -> views.Imported:
    """Send exported dead letters to a topic as messages to be consumed, with all their retries.

    They keep ids, types, headers and priorities. One that the topic still has, in any queue, is a
    duplicate and stays as it is, so a request that is repeated adds nothing.
    """
    by_codec: dict[int, list[Outgoing]] = {}
    for index, letter in enumerate(body.letters):
        outgoing = Outgoing(
            _body_of(letter, f"letters[{index}]"), id=letter.id, priority=letter.priority,
            type=letter.type,
            headers={k: v for k, v in (letter.headers or {}).items() if k[:4] != "rmq-"},
        )  # fmt: skip
        by_codec.setdefault(letter.codec, []).append(outgoing)
    counts = {"stored": 0, "duplicate": 0}
    for number, group in by_codec.items():
        topic = at.client.topic(path.topic, codec=RawCodec(number))
        await topic.open(create=False)
        for result in await topic.send_many(group, timeout=BLOCK_S):
            counts["duplicate" if result.status == "duplicate" else "stored"] += 1
    if not body.letters:
        await at.admin.settings(path.topic)  # whether there is such a topic
    return views.Imported(**counts)


@TABLE.post("/topics/{topic}/dead-letters/redrive", NONE, "conflict", role=Role.OPERATOR)
async def redrive(at: At, path: bodies.TopicPath, body: bodies.Redrive) -> views.Redriven:
    """Send dead letters back to be consumed again, or to another topic, with all their retries.

    A request that ends before all are sent goes on where it stopped when it is repeated.
    """
    done = await at.admin.redrive(
        path.topic, **body.given(), to=body.to, dry_run=body.dry_run, rate=body.rate
    )
    shown = await sample(at, path.topic, body) if body.dry_run and done.matched else []
    fields = done._asdict() | {"refused": dict(done.refused)}
    return views.Redriven(**fields, sample=shown)


@TABLE.post("/topics/{topic}/purge", NONE, "conflict", role=Role.ADMIN)
async def purge(at: At, path: bodies.TopicPath, body: bodies.Purge) -> views.Purged:
    """Delete waiting messages or dead letters; messages in flight are not touched.

    Dead letters can be restored for as many seconds as `keep` says, 24 hours if it is not given; 0
    deletes them for good. Waiting messages cannot be restored.
    """
    check_confirm(body.confirm, path.topic)
    count = await at.admin.purge(
        path.topic, body.queue, **body.given(), keep=body.keep, dry_run=body.dry_run
    )
    is_shown = body.dry_run and body.queue == "dead" and count
    return views.Purged(count=count, sample=await sample(at, path.topic, body) if is_shown else [])


@TABLE.get("/topics/{topic}/trash", NONE, "conflict")
async def list_trash(at: At, path: bodies.TopicPath, query: bodies.TrashQuery) -> views.MessageList:
    """List the trash of a topic, of each slot those first that go first.

    The `deadline` of a letter is when it goes for good. A filter by `age` or `died` fits none:
    the trash tells no time of death. A page may have fewer than `limit` before the last one.
    """
    return await _list(at, path.topic, query, "trash", dead_letter_filter.given(query.filter))


@TABLE.post("/topics/{topic}/trash/restore", NONE, "conflict", role=Role.OPERATOR)
async def restore(at: At, path: bodies.TopicPath, body: bodies.Restore) -> views.Restored:
    """Put dead letters back from the trash, with the time at which they died.

    One whose `dead_retention` is over, or would be within 24 hours, gets a later one: it stays for
    another 24 hours, or for the retention if that is shorter.
    """
    count = await at.admin.restore(path.topic, **body.given(), job=body.job, dry_run=body.dry_run)
    shown = await sample(at, path.topic, body, "trash") if body.dry_run and count else []
    return views.Restored(count=count, sample=shown)


# --- what they have in common --------------------------------------------------------------------


async def _list(
    at: At,
    topic: str,
    query: bodies.DeadQuery,
    queue: Literal["dead", "trash"],
    wanted: DeadLetterFilter | None,
) -> views.MessageList:
    if wanted is None:
        return await walk(at, topic, query, queue)
    now_ms = (await at.admin.stats(topic))["now_ms"]
    return await walk(at, topic, query, queue, lambda message: _fits(wanted, message, now_ms))


def _fits(wanted: DeadLetterFilter, message: Message, now_ms: int) -> bool:
    """Whether a message with its record as body fits; it is decoded where a condition needs it."""
    if wanted.needs_body and isinstance(message.body, Record):
        try:
            body = inspect.body_of(message.body)
        except DecodeError:
            body = message.body.body
        message = replace(message, body=body)
    return wanted.matches(message, now_ms)


def _body_of(letter: bodies.ImportedLetter, name: str) -> bytes:
    """Return a body as its codec wrote it; bodies of a collecting message become one, a list."""
    if (letter.body_base64 is None) == (letter.bodies_base64 is None):
        raise ApiError("invalid", f"{name}: give one of body_base64 and bodies_base64", "letters")
    try:
        given = letter.bodies_base64 if letter.body_base64 is None else [letter.body_base64]
        pieces = [base64.b64decode(each, validate=True) for each in given or ()]
        bodies_read = codecs.decode_all(letter.codec, pieces)
        if letter.body_base64 is not None:
            return pieces[0]
        return codecs.BY_NUMBER[letter.codec].encode(bodies_read)
    except (ValueError, DecodeError, EncodeError) as error:
        raise ApiError("invalid", f"{name}: its body cannot be read: {error}", "letters") from None


async def sample(
    at: At,
    topic: str,
    wanted: bodies.LetterConditions,
    queue: Literal["dead", "trash"] = "dead",
) -> list[views.StoredMessage]:
    """Return some letters that fit, the oldest of those that a bounded look finds."""
    conditions = _filter_of(wanted)
    if wanted.ids is None and queue == "dead":
        page = await at.admin.dead_letters(
            topic, filter=conditions, limit=SAMPLE_MAX, scan=SAMPLE_SCAN, raw=True
        )
        return [shown(at, message) for message in page.messages]
    if wanted.ids is None:
        first = bodies.TrashQuery(limit=SAMPLE_MAX)
        return (await _list(at, topic, first, queue, conditions)).messages
    now_ms = (await at.admin.stats(topic))["now_ms"]
    found: list[views.StoredMessage] = []
    for id in wanted.ids:
        message = await at.admin.get(topic, id, raw=True)
        if message is None or message.queue != queue:
            continue
        if conditions is None or _fits(conditions, message, now_ms):
            found.append(shown(at, message))
            if len(found) == SAMPLE_MAX:
                break
    return found


def _filter_of(wanted: bodies.LetterConditions) -> DeadLetterFilter | None:
    """Return all conditions but the ids as one filter."""
    texts = []
    if wanted.reason is not None:
        texts.append(f'reason="{wanted.reason}"')
    if wanted.type is not None:
        texts.append(f'type="{wanted.type}"')  # Admin has refused types with quotes
    if isinstance(wanted, bodies.DeadLetterConditions) and wanted.older_than is not None:
        texts.append(f"age>={wanted.older_than:f}s")
    if wanted.filter is not None:
        texts.append(wanted.filter)
    return dead_letter_filter.joined([dead_letter_filter.parse(text) for text in texts])
