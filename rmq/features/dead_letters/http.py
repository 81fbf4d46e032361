"""HTTP routes of dead letters: list, group, redrive, purge and restore them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rmq.errors import DecodeError, EncodeError
from rmq.features.dead_letters.jobs.job import JobVerb
from rmq.features.dead_letters.reading import CAUSES_SCAN, DeadLetterGroups as Found, cursor_of
from rmq.http_framework.message import (
    BLOCK_S,
    Failure,
    MessageList,
    StoredMessage,
    failure_of,
    shown,
    walk,
)
from rmq.http_framework.operation import RequestContext, Table, check_confirm
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import (
    BY,
    LIMIT_MAX,
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
from rmq.kernel.core import codec as codecs, record
from rmq.kernel.core.access import Role
from rmq.kernel.core.message import TRASH_KEEP_S, Message, Outgoing
from rmq.kernel.topic import filter as dead_letters_filter, reading


class ExportQuery(Request):
    """Selects dead letters to export.

    To continue an export, set `cursor` to the cursor of the last line that you received.
    """

    filter: FilterText | None = None
    cursor: Annotated[str, Meta(max_length=100)] | None = None


class TrashQuery(DeadQuery):
    """Selects dead letters of the trash to list.

    An example of a filter: reason=failed and body.n=1.
    """


class GroupsQuery(Request):
    """Selects dead letters to group, and limits the number of groups."""

    filter: FilterText | None = None
    limit: Limit = 100


class CausesQuery(GroupsQuery):
    """Selects dead letters to group. Limits the number of groups and of examined letters."""

    scan: Annotated[int, Meta(ge=1, le=CAUSES_SCAN)] = CAUSES_SCAN


class Redrive(DeadLetterConditions):
    """Selects dead letters to send back to their topic, or to another topic.

    Attributes:
        to: Name of the other topic.
        fresh: Whether to delete the steps of the messages, so that handlers start from the
            beginning.
        rate: Maximum number of messages per second.
        dry_run: Whether to only count the dead letters and return a sample.
    """

    to: Name | None = None
    fresh: bool = False
    rate: Annotated[float, Meta(gt=0)] | None = None
    dry_run: bool = False


class Restore(LetterConditions):
    """Selects dead letters in the trash, by conditions or by the purge whose id is in `job`."""

    job: JobText | None = None
    dry_run: bool = False


class ImportedLetter(msgspec.Struct, kw_only=True):
    """A line of an export. Fields that an import does not need are ignored.

    Attributes:
        codec: Number of a codec of RMQ. If you use your own codec, import with `rmq dlq import`.
        body_base64: Encoded body. A line has either this field or bodies_base64.
        bodies_base64: Encoded bodies of a merged message, which contains several bodies.
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
    """Exported dead letters to send: at most 500, in a request of at most 1 MiB."""

    letters: Annotated[list[ImportedLetter], Meta(max_length=LIMIT_MAX)]


class JobMatches(DeadLetterConditions):
    """Conditions of a job whose messages you want to count.

    Attributes:
        running: For a cancel, whether it also applies to messages in flight.
        since: For a replay, the earliest time of an ack. Default: the oldest ack in the history.
        until: For a replay, the end of the period, which is not included. Default: the start of the
            job.
    """

    verb: JobVerb = "redrive"
    running: bool = False
    since: datetime | None = None
    until: datetime | None = None

    def given(self) -> dict[str, Any]:
        """Return the conditions in the request as keyword arguments for `Admin`."""
        times = {"since": self.since, "until": self.until}
        return super().given() | {name: at for name, at in times.items() if at is not None}


class NewJob(JobMatches):
    """A job that runs in the background: a redrive or purge of dead letters, a cancel or a replay.

    Without conditions, a redrive or purge applies to all dead letters. A cancel then applies to all
    waiting messages, and a replay to all messages in the history.

    Attributes:
        to: For a redrive or a replay, another topic that gets the messages.
        fresh: For a redrive, whether to delete the steps of the messages.
        rate: Maximum number of messages per second.
        keep: For a purge, the seconds for which the messages can be restored. With 0, RMQ deletes
            them permanently.
        confirm: For a purge or a cancel, the name of the topic.
        expected: Number of matching messages, if you have counted them.
        by: Name of the person who starts the job, for display.
    """

    to: Name | None = None
    fresh: bool = False
    rate: Annotated[float, Meta(gt=0)] | None = None
    keep: Seconds = TRASH_KEEP_S
    confirm: Name | None = None
    expected: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    by: Line = BY


class Purge(DeadLetterConditions, kw_only=True):
    """Messages to delete. You can use conditions and the trash only with the queue "dead".

    Attributes:
        confirm: Name of the topic.
        keep: Seconds for which dead letters can be restored. Default: 24 hours. With 0, RMQ deletes
            them permanently. RMQ always deletes waiting messages permanently.
        dry_run: Whether to only count the messages and return a sample.
    """

    confirm: Name
    queue: Literal["store", "dead"]
    keep: Seconds | None = None
    dry_run: bool = False


TABLE = Table("dead letters")
SAMPLE_MAX = 10  # dead letters in the sample of a dry run
SAMPLE_SCAN = 10_000  # dead letters that are examined for the sample
# An export starts with a small page; the size of later pages is about 4 MiB.
EXPORT_FIRST, EXPORT_BYTES = 20, 4 * 1024 * 1024


@TABLE.get("/topics/{topic}/dead-letters")
async def list_dead_letters(
    context: RequestContext, path: TopicPath, query: DeadQuery
) -> MessageList:
    """List dead letters, oldest first in each slot (part of the topic).

    A request examines at most 5000 dead letters. So a page may have fewer than `limit` letters
    although more letters follow.
    """
    return await _list(context, path.topic, query, "dead", dead_letters_filter.given(query.filter))


class DeadLetterGroups(Answer):
    """Dead letters by cause, largest group first.

    Attributes:
        other: Number of dead letters in groups that are not listed.
        total: Number of all counted dead letters.
        unread: Number of dead letters that were not read, because there are too many.
    """

    groups: list[DeadLetterGroup]
    other: int
    total: int
    unread: int


@TABLE.get("/topics/{topic}/dead-letters/groups")
async def list_dead_letter_groups(
    context: RequestContext, path: TopicPath, query: GroupsQuery
) -> DeadLetterGroups:
    """Count dead letters by cause (the fingerprint of their error), largest group first.

    RMQ reads all dead letters of the topic. You can use a fingerprint in a filter.
    """
    found = await context.admin.dead_letter_groups(path.topic, filter=query.filter)
    return _shown(found, query.limit)


@TABLE.get("/dead-letters/causes")
async def list_dead_letter_causes(context: RequestContext, query: CausesQuery) -> DeadLetterGroups:
    """Count the dead letters of all topics by cause, largest group first.

    Each group has the number of its dead letters in each topic.
    """
    found = await context.admin.dead_letter_causes(filter=query.filter, scan=query.scan)
    return _shown(found, query.limit)


def _shown(found: Found, limit: int) -> DeadLetterGroups:
    groups = [show(each, DeadLetterGroup) for each in found.groups[:limit]]
    other = found.total - sum(each.count for each in groups)
    return DeadLetterGroups(groups=groups, other=other, total=found.total, unread=found.unread)


class DeadLetterLine(Answer, omit_defaults=True):
    """A dead letter in the format that `rmq dlq import` reads. Null fields are omitted.

    Attributes:
        cursor: Cursor with which an export continues after this line.
        codec: Number of the codec of the body, or null if the record is unreadable.
        body_base64: Body as the producer encoded it.
        bodies_base64: Encoded bodies of a merged message, which contains several bodies.
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

    The response contains all matching dead letters. If the connection breaks, send the request
    again with the `cursor` of the last line that you received.
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
        size = max(1, min(LIMIT_MAX, EXPORT_BYTES // (bytes_each + 1000)))


class Imported(Answer):
    """Number of sent messages, and number of messages that the topic already had."""

    stored: int
    duplicate: int


@TABLE.post("/topics/{topic}/dead-letters/import", "queue-full", role=Role.OPERATOR)
async def import_dead_letters(context: RequestContext, path: TopicPath, body: Import) -> Imported:
    """Send exported dead letters to a topic, with the full number of retries.

    The messages keep ids, types, groups, headers and priorities. If the topic still has a message
    with the same id, RMQ counts the line as a duplicate and sends nothing. So you can repeat a
    request.
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
        await context.admin.settings(path.topic)  # raises if the topic does not exist
    return Imported(**counts)


class Redriven(Answer):
    """The result of a redrive: how many dead letters matched, were sent back, or were unreadable.

    Attributes:
        refused: Number of letters that the other topic refused, by outcome. Refused letters stay
            dead.
        sample: Matching letters of a dry run: the oldest of each slot, at most 10.
    """

    matched: int
    sent: int
    unreadable: int
    refused: dict[str, int]
    sample: list[StoredMessage]


@TABLE.post("/topics/{topic}/dead-letters/redrive", role=Role.OPERATOR)
async def redrive(context: RequestContext, path: TopicPath, body: Redrive) -> Redriven:
    """Send dead letters back to their topic or to another topic, with the full number of retries.

    If the request ends before RMQ has sent all dead letters, repeat the request. RMQ then sends the
    remaining letters.
    """
    done = await context.admin.redrive(
        path.topic, **body.given(), to=body.to, fresh=body.fresh, dry_run=body.dry_run,
        rate=body.rate,
    )  # fmt: skip
    shown = await sample(context, path.topic, body) if body.dry_run and done.matched else []
    return show(done, Redriven, sample=shown)


class Purged(Answer):
    """Number of messages that were deleted or moved to the trash.

    Attributes:
        sample: Matching letters of a dry run: the oldest of each slot, at most 10.
    """

    count: int
    sample: list[StoredMessage]


@TABLE.post("/topics/{topic}/purge", role=Role.ADMIN)
async def purge(context: RequestContext, path: TopicPath, body: Purge) -> Purged:
    """Delete waiting messages or dead letters. Messages in flight are not deleted.

    You can restore dead letters for `keep` seconds, by default 24 hours. If `keep` is 0, RMQ
    deletes them permanently. You cannot restore waiting messages.
    """
    check_confirm(body.confirm, path.topic)
    count = await context.admin.purge(
        path.topic, body.queue, **body.given(), keep=body.keep, dry_run=body.dry_run
    )
    is_shown = body.dry_run and body.queue == "dead" and count
    return Purged(count=count, sample=await sample(context, path.topic, body) if is_shown else [])


@TABLE.get("/topics/{topic}/trash")
async def list_trash(context: RequestContext, path: TopicPath, query: TrashQuery) -> MessageList:
    """List the trash of a topic. In each slot (part of the topic), the next to expire is first.

    The `deadline` of a letter is the time at which RMQ deletes it. You cannot search the trash by
    time of death, so a filter by `age` or `died` matches nothing. A page may have fewer than
    `limit` letters although more letters follow.
    """
    return await _list(context, path.topic, query, "trash", dead_letters_filter.given(query.filter))


class Restored(Purged):
    """Number of letters that were restored from the trash.

    Attributes:
        sample: Matching letters of a dry run, at most 10.
    """


@TABLE.post("/topics/{topic}/trash/restore", role=Role.OPERATOR)
async def restore(context: RequestContext, path: TopicPath, body: Restore) -> Restored:
    """Restore dead letters from the trash. They keep the time at which they died.

    If the `dead_retention` of a letter ends within 24 hours, RMQ gives the letter a later time of
    death. The letter then stays for another 24 hours, or for the `dead_retention` if this time is
    shorter.
    """
    count = await context.admin.restore(
        path.topic, **body.given(), job=body.job, dry_run=body.dry_run
    )
    shown = await sample(context, path.topic, body, "trash") if body.dry_run and count else []
    return Restored(count=count, sample=shown)


# --- shared functions ---------------------------------------------------------------------------


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
    if wanted.needs_body and isinstance(message.body, record.Record):
        try:
            body = reading.body_of(message.body)
        except DecodeError:
            body = message.body.body
        message = replace(message, body=body)
    return wanted.matches(message, now_ms)


def _body_of(letter: ImportedLetter, name: str) -> bytes:
    if (letter.body_base64 is None) == (letter.bodies_base64 is None):
        raise ApiError("invalid", f"{name}: give one of body_base64 and bodies_base64", "letters")
    try:
        given = letter.bodies_base64 if letter.body_base64 is None else [letter.body_base64]
        pieces = [base64.b64decode(each, validate=True) for each in given or ()]
        sealed = [codecs.is_encrypted(letter.codec, piece) for piece in pieces]
        if letter.body_base64 is not None and sealed[0]:
            return pieces[0]  # this program may lack the key
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
    """Return examples of matching dead letters, oldest first. The search is limited."""
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
    texts = []
    if wanted.reason is not None:
        texts.append(f'reason="{wanted.reason}"')
    if wanted.type is not None:
        texts.append(f'type="{wanted.type}"')  # Admin refuses types that contain quotes
    if isinstance(wanted, DeadLetterConditions) and wanted.older_than is not None:
        texts.append(f"age>={wanted.older_than:f}s")
    if wanted.filter is not None:
        texts.append(wanted.filter)
    return dead_letters_filter.joined([dead_letters_filter.parse(text) for text in texts])


class DeadLetterGroup(Answer):
    """Dead letters with the same cause, with the fields of `rmq.DeadLetterGroup`.

    Attributes:
        fingerprint: Fingerprint of the error, or an empty text if no failure is stored.
        first: Time at which the first of these letters died.
        last: Time at which the last of these letters died.
        example: Id of the last dead letter.
        error: Error of the example.
        topics: Number of the dead letters of each topic.
    """

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    example: str
    reason: str
    error: str
    topics: dict[str, int]


def line_of(message: Message) -> DeadLetterLine:
    """Convert a dead letter to a line of an export. The letter must be read with `raw=True`."""
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
    return len(line.body_base64 or "") + sum(map(len, line.bodies_base64 or ()))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
