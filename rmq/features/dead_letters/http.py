"""Dead letters: list, group, redrive, purge and restore them; purge waiting messages."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rmq.errors import DecodeError, EncodeError
from rmq.features.dead_letters import filter as dead_letters_filter
from rmq.features.dead_letters.jobs.job import JobVerb
from rmq.features.dead_letters.reading import cursor_of
from rmq.kernel.core import codec as codecs, record
from rmq.kernel.core.access import Role
from rmq.kernel.core.message import TRASH_KEEP_S, Message, Outgoing
from rmq.kernel.topic import reading
from rmq.web.message import BLOCK_S, Failure, MessageList, StoredMessage, failure_of, shown, walk
from rmq.web.operation import RequestContext, Table, check_confirm
from rmq.web.problems import ApiError
from rmq.web.requests import (
    BY,
    LIMIT_MOST,
    Answer,
    DeadLetterConditions,
    DeadQuery,
    FilterText,
    JobText,
    LetterConditions,
    Limit,
    Line,
    MessageIdText,
    Name,
    Request,
    Seconds,
    TopicPath,
    show,
)


class ExportQuery(Request):
    """Which dead letters are exported; `cursor`: that of the last line that came."""

    filter: FilterText | None = None
    cursor: Annotated[str, Meta(max_length=100)] | None = None


class TrashQuery(DeadQuery):
    """Which letters of the trash are listed; a filter is such as: reason=failed and body.n=1."""


class GroupsQuery(Request):
    """Which dead letters are grouped, and how many groups are listed."""

    filter: FilterText | None = None
    limit: Limit = 100


class Redrive(DeadLetterConditions):
    """Dead letters to send back, or to another topic.

    Attributes:
        to: that topic.
        rate: at most so many a second.
        dry_run: count, and show some.
    """

    to: Name | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None
    dry_run: bool = False


class Restore(LetterConditions):
    """Letters of the trash to put back; `job`: those of that purge; `dry_run`: count, show some."""

    job: JobText | None = None
    dry_run: bool = False


class ImportedLetter(msgspec.Struct, kw_only=True):
    """A line of an export; fields that a send does not need are passed over.

    Attributes:
        codec: the number of one of RMQ's own codecs; for other ones use `rmq dlq import`.
        body_base64: the body as its codec wrote it; or give bodies_base64.
        bodies_base64: the same of a message that collected several.
    """

    id: MessageIdText
    codec: Annotated[int, Meta(ge=0, le=3)]
    body_base64: str | None = None
    bodies_base64: list[str] | None = None
    priority: int | None = None
    type: str | None = None
    group: str | None = None
    share_key: str | None = None
    weight: int | None = None
    headers: dict[str, str] | None = None


class Import(Request):
    """Exported dead letters to send: at most 500, and 1 MiB with the rest of the request."""

    letters: Annotated[list[ImportedLetter], Meta(max_length=LIMIT_MOST)]


class NewJob(DeadLetterConditions):
    """A redrive or purge that runs in the background; without conditions, of all dead letters.

    Attributes:
        to: of a redrive: another topic to which they go.
        rate: at most so many a second.
        keep: of a purge: for how many seconds they can be restored; 0: not at all.
        confirm: of a purge: the topic's name.
        expected: how many there are, if that was counted.
        by: who starts it, for people to read.
    """

    verb: JobVerb = "redrive"
    to: Name | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None
    keep: Seconds = TRASH_KEEP_S
    confirm: Name | None = None
    expected: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    by: Line = BY


class Purge(DeadLetterConditions, kw_only=True):
    """Messages to delete; only "dead" can be filtered, and kept in the trash.

    Attributes:
        confirm: the topic's name.
        keep: for how many seconds dead letters can be restored, 24 h if it is not given; 0: they
            are deleted for good. Waiting messages always are.
        dry_run: count, and show some.
    """

    confirm: Name
    queue: Literal["store", "dead"]
    keep: Seconds | None = None
    dry_run: bool = False


TABLE = Table("dead letters")
SAMPLE_MAX = 10  # dead letters that a dry run shows
SAMPLE_SCAN = 10_000  # that it looks at for them
# An export begins with a small page; the next have as many as make about 4 MiB.
EXPORT_FIRST, EXPORT_BYTES = 20, 4 * 1024 * 1024


@TABLE.get("/topics/{topic}/dead-letters")
async def list_dead_letters(
    context: RequestContext, path: TopicPath, query: DeadQuery
) -> MessageList:
    """List dead letters, the oldest of each slot first.

    A page may have fewer than `limit` before the last one: a request looks at 5000 dead letters.
    """
    return await _list(context, path.topic, query, "dead", dead_letters_filter.given(query.filter))


class DeadLetterGroups(Answer):
    """Dead letters by cause, the largest group first.

    Attributes:
        other: dead letters of groups that are not listed.
        total: all that were counted.
    """

    groups: list[DeadLetterGroup]
    other: int
    total: int


@TABLE.get("/topics/{topic}/dead-letters/groups")
async def list_dead_letter_groups(
    context: RequestContext, path: TopicPath, query: GroupsQuery
) -> DeadLetterGroups:
    """Count dead letters by cause: by the fingerprint of their error, the largest group first.

    All dead letters are looked at. A fingerprint can be used in a filter.
    """
    found = await context.admin.dead_letter_groups(path.topic, filter=query.filter)
    groups = [show(each, DeadLetterGroup) for each in found.groups[: query.limit]]
    other = found.total - sum(each.count for each in groups)
    return DeadLetterGroups(groups=groups, other=other, total=found.total)


class DeadLetterLine(Answer, omit_defaults=True):
    """A dead letter as `rmq dlq import` reads it; fields that are null are left out.

    Attributes:
        cursor: of another export: it continues after this line.
        codec: the number of the codec of the body; null: the record cannot be read.
        body_base64: the body as its producer's codec wrote it.
        bodies_base64: the same of a message that collected several.
    """

    id: str
    cursor: str
    slot: int
    died: datetime | None
    deliveries: int
    headers: dict[str, str]
    type: str | None = None
    group: str | None = None
    share_key: str | None = None
    weight: int | None = None
    priority: int | None = None
    failure: Failure | None = None
    codec: int | None = None
    body_base64: str | None = None
    bodies_base64: list[str] | None = None


@TABLE.get("/topics/{topic}/dead-letters/export", role=Role.ADMIN)
async def export_dead_letters(
    context: RequestContext, path: TopicPath, query: ExportQuery
) -> AsyncIterator[list[DeadLetterLine]]:
    """Write dead letters as NDJSON, with whole bodies and errors, for `rmq dlq import`.

    All of them come in one answer. Where it breaks off, `cursor` continues after its last line.
    """
    cursor, size = query.cursor, EXPORT_FIRST
    while True:
        page = await context.admin.dead_letters(
            path.topic, filter=query.filter, cursor=cursor, limit=size, raw=True
        )
        found = [line_of(message) for message in page.messages]
        yield found
        cursor = page.cursor
        if cursor is None:
            return
        bytes_each = sum(map(_bytes_of, found)) // (len(found) or 1)
        size = max(1, min(LIMIT_MOST, EXPORT_BYTES // (bytes_each + 1000)))


class Imported(Answer):
    """How many messages were sent, and how many the topic had already, in any queue."""

    stored: int
    duplicate: int


@TABLE.post("/topics/{topic}/dead-letters/import", "queue-full", role=Role.OPERATOR)
async def import_dead_letters(context: RequestContext, path: TopicPath, body: Import) -> Imported:
    """Send exported dead letters to a topic as messages to be consumed, with all their retries.

    They keep ids, types, groups, headers and priorities. One that the topic still has, in any
    queue, is a duplicate and stays as it is, so a request that is repeated adds nothing.
    """
    by_codec: dict[int, list[Outgoing]] = {}
    for index, letter in enumerate(body.letters):
        outgoing = Outgoing(
            _body_of(letter, f"letters[{index}]"), id=letter.id, priority=letter.priority,
            type=letter.type, group=letter.group, share_key=letter.share_key, weight=letter.weight,
            headers={k: v for k, v in (letter.headers or {}).items() if k[:4] != "rmq-"},
        )  # fmt: skip
        by_codec.setdefault(letter.codec, []).append(outgoing)
    counts = {"stored": 0, "duplicate": 0}
    for number, group in by_codec.items():
        topic = context.client.topic(path.topic, codec=codecs.RawCodec(number))
        await topic.open(create=False)
        for result in await topic.send_many(group, timeout=BLOCK_S):
            counts["duplicate" if result.status == "duplicate" else "stored"] += 1
    if not body.letters:
        await context.admin.settings(path.topic)  # whether there is such a topic
    return Imported(**counts)


class Redriven(Answer):
    """How many dead letters fitted, were sent, and cannot be read.

    Attributes:
        refused: how many stayed dead because of the other topic, by outcome.
        sample: of a dry run: some that fit, at most 10, of the oldest in each slot.
    """

    matched: int
    sent: int
    unreadable: int
    refused: dict[str, int]
    sample: list[StoredMessage]


@TABLE.post("/topics/{topic}/dead-letters/redrive", role=Role.OPERATOR)
async def redrive(context: RequestContext, path: TopicPath, body: Redrive) -> Redriven:
    """Send dead letters back to be consumed again, or to another topic, with all their retries.

    A request that ends before all are sent continues where it stopped when it is repeated.
    """
    done = await context.admin.redrive(
        path.topic, **body.given(), to=body.to, dry_run=body.dry_run, rate=body.rate
    )
    shown = await sample(context, path.topic, body) if body.dry_run and done.matched else []
    return show(done, Redriven, sample=shown)


class Purged(Answer):
    """How many messages were deleted, or put into the trash.

    Attributes:
        sample: of a dry run: some dead letters that fit, at most 10, of the oldest in each slot.
    """

    count: int
    sample: list[StoredMessage]


@TABLE.post("/topics/{topic}/purge", role=Role.ADMIN)
async def purge(context: RequestContext, path: TopicPath, body: Purge) -> Purged:
    """Delete waiting messages or dead letters; messages in flight are not touched.

    Dead letters can be restored for as many seconds as `keep` says, 24 hours if it is not given; 0
    deletes them for good. Waiting messages cannot be restored.
    """
    check_confirm(body.confirm, path.topic)
    count = await context.admin.purge(
        path.topic, body.queue, **body.given(), keep=body.keep, dry_run=body.dry_run
    )
    is_shown = body.dry_run and body.queue == "dead" and count
    return Purged(count=count, sample=await sample(context, path.topic, body) if is_shown else [])


@TABLE.get("/topics/{topic}/trash")
async def list_trash(context: RequestContext, path: TopicPath, query: TrashQuery) -> MessageList:
    """List the trash of a topic, in each slot the letters first that are deleted first.

    The `deadline` of a letter is when it is deleted. A filter by `age` or `died` matches none: the
    trash has no search by time of death. A page may have fewer than `limit` before the last one.
    """
    return await _list(context, path.topic, query, "trash", dead_letters_filter.given(query.filter))


class Restored(Purged):
    """How many letters were put back from the trash.

    Attributes:
        sample: of a dry run: some that fit, at most 10.
    """


@TABLE.post("/topics/{topic}/trash/restore", role=Role.OPERATOR)
async def restore(context: RequestContext, path: TopicPath, body: Restore) -> Restored:
    """Put dead letters back from the trash, with the time at which they died.

    One whose `dead_retention` is over, or would be within 24 hours, gets a later one: it stays for
    another 24 hours, or for the retention if that is shorter.
    """
    count = await context.admin.restore(
        path.topic, **body.given(), job=body.job, dry_run=body.dry_run
    )
    shown = await sample(context, path.topic, body, "trash") if body.dry_run and count else []
    return Restored(count=count, sample=shown)


# --- what they have in common --------------------------------------------------------------------


async def _list(
    context: RequestContext,
    topic: str,
    query: DeadQuery,
    queue: Literal["dead", "trash"],
    wanted: dead_letters_filter.DeadLetterFilter | None,
) -> MessageList:
    if wanted is None:
        return await walk(context, topic, query, queue)
    now_ms = (await context.admin.stats(topic))["now_ms"]
    return await walk(context, topic, query, queue, lambda message: _fits(wanted, message, now_ms))


def _fits(wanted: dead_letters_filter.DeadLetterFilter, message: Message, now_ms: int) -> bool:
    """Whether a message with its record as body fits; it is decoded where a condition needs it."""
    if wanted.needs_body and isinstance(message.body, record.Record):
        try:
            body = reading.body_of(message.body)
        except DecodeError:
            body = message.body.body
        message = replace(message, body=body)
    return wanted.matches(message, now_ms)


def _body_of(letter: ImportedLetter, name: str) -> bytes:
    """Return a body as its codec wrote it; bodies of a collecting message become one, a list."""
    if (letter.body_base64 is None) == (letter.bodies_base64 is None):
        raise ApiError("invalid", f"{name}: give one of body_base64 and bodies_base64", "letters")
    try:
        given = letter.bodies_base64 if letter.body_base64 is None else [letter.body_base64]
        pieces = [base64.b64decode(each, validate=True) for each in given or ()]
        sealed = [codecs.is_encrypted(letter.codec, piece) for piece in pieces]
        if letter.body_base64 is not None and sealed[0]:
            return pieces[0]  # its key need not be here
        if any(sealed):
            raise DecodeError(codecs.NO_ENCRYPTED_LIST)
        bodies_read = codecs.decode_all(letter.codec, pieces)
        if letter.body_base64 is not None:
            return pieces[0]
        return codecs.BY_NUMBER[letter.codec].encode(bodies_read)
    except (ValueError, DecodeError, EncodeError) as error:
        raise ApiError("invalid", f"{name}: its body cannot be read: {error}", "letters") from None


async def sample(
    context: RequestContext,
    topic: str,
    wanted: LetterConditions,
    queue: Literal["dead", "trash"] = "dead",
) -> list[StoredMessage]:
    """Return some letters that fit, the oldest of those that a bounded look finds."""
    conditions = _filter_of(wanted)
    if wanted.ids is None and queue == "dead":
        page = await context.admin.dead_letters(
            topic, filter=conditions, limit=SAMPLE_MAX, scan=SAMPLE_SCAN, raw=True
        )
        return [shown(context, message) for message in page.messages]
    if wanted.ids is None:
        first = TrashQuery(limit=SAMPLE_MAX)
        return (await _list(context, topic, first, queue, conditions)).messages
    now_ms = (await context.admin.stats(topic))["now_ms"]
    found: list[StoredMessage] = []
    for id in wanted.ids:
        message = await context.admin.get(topic, id, raw=True)
        if message is None or message.queue != queue:
            continue
        if conditions is None or _fits(conditions, message, now_ms):
            found.append(shown(context, message))
            if len(found) == SAMPLE_MAX:
                break
    return found


def _filter_of(wanted: LetterConditions) -> dead_letters_filter.DeadLetterFilter | None:
    """Return all conditions but the ids as one filter."""
    texts = []
    if wanted.reason is not None:
        texts.append(f'reason="{wanted.reason}"')
    if wanted.type is not None:
        texts.append(f'type="{wanted.type}"')  # Admin has refused types with quotes
    if isinstance(wanted, DeadLetterConditions) and wanted.older_than is not None:
        texts.append(f"age>={wanted.older_than:f}s")
    if wanted.filter is not None:
        texts.append(wanted.filter)
    return dead_letters_filter.joined([dead_letters_filter.parse(text) for text in texts])


class DeadLetterGroup(Answer):
    """Dead letters of one cause; fields as of `rmq.DeadLetterGroup`.

    Attributes:
        fingerprint: empty: of these no failure is known.
        first: when the first of them died.
        last: when the last of them died.
        example: the id of the last of them.
        error: of the example.
    """

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    example: str
    reason: str
    error: str


def line_of(message: Message) -> DeadLetterLine:
    """Return a dead letter whose body is its record as a line."""
    line = show(
        message, DeadLetterLine, cursor=cursor_of(message), failure=failure_of(message.failure),
        codec=None, body_base64=None, bodies_base64=None,
    )  # fmt: skip
    raw = message.body
    if not isinstance(raw, record.Record):
        line.body_base64 = _base64(bytes(raw))
        return line
    line.codec = raw.codec
    if raw.flags & record.COLLECTS:
        with suppress(DecodeError):
            line.bodies_base64 = [_base64(each) for each in record.collected_bodies(raw.body)]
            return line
    line.body_base64 = _base64(raw.body)
    return line


def _bytes_of(line: DeadLetterLine) -> int:
    """Return how long the bodies of a line are."""
    return len(line.body_base64 or "") + sum(map(len, line.bodies_base64 or ()))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
