"""Messages as they are shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from rmq.errors import DecodeError
from rmq.kernel.core import codec, failure as failures, record
from rmq.kernel.core.compression import CEILING
from rmq.kernel.core.message import Message, QueueName, SendStatus
from rmq.kernel.topic.paging import Cursor, Span
from rmq.web.operation import RequestContext, read_cursor, write_cursor
from rmq.web.principal import sees_bodies
from rmq.web.problems import ApiError
from rmq.web.requests import LIMIT_MOST, Answer, DeadQuery, LeasesQuery, MessagesQuery, show

WALKED_MAX = 5000  # messages that one request with a filter looks at; its cursor goes on
BLOCK_S = 3.0  # how long a send waits for room, where the topic's overflow is "block"


class Position(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where a list of messages goes on: after so many messages of a score of a slot."""

    slot: Annotated[int, msgspec.Meta(ge=0, le=1023)]
    score: float | None = None  # None: at the beginning of the slot
    seen: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0


async def walk(
    context: RequestContext,
    topic: str,
    query: MessagesQuery | DeadQuery,
    queue: QueueName,
    fits: Callable[[Message], bool] | None = None,
) -> MessageList:
    """Return the messages of a queue from the query's cursor on, as they are shown."""
    found, cursor = await page_of(context, topic, query, queue, fits)
    return MessageList(messages=[shown(context, each) for each in found], cursor=cursor)


SHOWN_MAX = 64 * 1024  # bytes of a body; the rest is cut off, and `is_truncated` says so


def shown(context: RequestContext, message: Message, most: int | None = SHOWN_MAX) -> StoredMessage:
    """Return a message as it is shown; of a body that is hidden nothing is decoded.

    Args:
        context: of who asks.
        message: with its record as its body.
        most: bytes of its body that are shown; None: all.
    """
    if not sees_bodies(context.principal):
        body, unreadable = Body(kind="hidden", text=HIDDEN, size=None, is_truncated=False), ""
    elif isinstance(message.body, record.Record):
        body, unreadable = body_of_record(message.body, most)
    else:  # the record cannot be read
        body, unreadable = body_of(message.body, most), message.unreadable
    failure = failure_of(message.failure)
    return show(message, StoredMessage, body=body, unreadable=unreadable, failure=failure)


async def page_of(
    context: RequestContext,
    topic: str,
    query: MessagesQuery | DeadQuery | LeasesQuery,
    queue: QueueName,
    fits: Callable[[Message], bool] | None = None,
) -> tuple[list[Message], str | None]:
    """Return messages from the query's cursor on, by slot and score, and where they go on."""
    settings = await context.admin.settings(topic)
    slots = settings.layout.most if settings.layout else settings.slots
    first = query.slot or 0
    if first >= slots:
        raise ApiError("invalid", f"slot: {first}; the topic has {slots}", "slot")
    last = first if query.slot is not None else slots - 1
    position = read_cursor(query.cursor, Position) if query.cursor else Position(first)
    if not first <= position.slot <= last:
        raise ApiError("invalid", "cursor: give it with the query that it came from", "cursor")
    found: list[Message] = []
    walked = 0
    while True:
        cursor = None if position.score is None else Cursor(position.score, position.seen)
        size = LIMIT_MOST if fits else query.limit - len(found)
        page = await context.admin.page(
            topic, queue, Span(position.slot), cursor, raw=True, limit=size
        )
        for message in page.messages:
            seen = position.seen + 1 if message.score == position.score else 1
            position = Position(position.slot, message.score, seen)
            walked += 1
            if fits is None or fits(message):
                found.append(message)
                if len(found) == query.limit:
                    return found, write_cursor(position)
        if page.cursor is None:
            if position.slot == last:
                return found, None
            position = Position(position.slot + 1)
        if walked >= WALKED_MAX:
            return found, write_cursor(position)


# Bytes of a body that are decoded: values of Python take up to 30 times as much. Larger ones are
# shown as they are stored.
DECODED_MAX = 1024 * 1024
HIDDEN = "(hidden)"


class Body(Answer):
    """A body, as text.

    Attributes:
        kind: "json": `text` is JSON, with all digits of its numbers; "text": a string, as it is;
            "base64": bytes; "hidden": you are not shown it.
        size: bytes of the body as it is shown whole, or of one that is cut, as it is stored; null:
            not known, since the rest of a compressed one was not decompressed.
        is_truncated: whether `text` shows the beginning alone.
    """

    kind: Literal["json", "text", "base64", "hidden"]
    text: str
    size: int | None
    is_truncated: bool


class Failure(Answer):
    """The last failure of a message; those of one cause have one fingerprint."""

    reason: str
    deliveries: int
    error: str
    traceback: str
    fingerprint: str


class Attempt(Answer):
    """An attempt to handle a message that failed, its redrive or its expiry: see `rmq.Attempt`."""

    number: int | None
    at: datetime
    reason: str
    error: str
    traceback: str
    worker: str


class StoredMessage(Answer):
    """A message as it is stored in Redis; fields as of `rmq.Message`.

    Attributes:
        queue: "store" (waiting), "prepare" (in flight) or "dead".
        unreadable: why the body is bytes; empty: it could be decoded.
        attempts: those that failed, the newest first.
    """

    id: str
    queue: QueueName
    slot: int
    offset: int
    body: Body
    type: str | None
    group: str | None
    share_key: str | None
    weight: int | None
    held: bool
    priority: int | None
    due: datetime | None
    expires: datetime | None
    merge_key: str | None
    headers: dict[str, str]
    deliveries: int
    deadline: datetime | None
    held_by_query: bool
    died: datetime | None
    failure: Failure | None
    unreadable: str
    attempts: list[Attempt]


class MessageList(Answer):
    """Messages.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    messages: list[StoredMessage]
    cursor: str | None


class Peeked(MessageList):
    """Messages, in the order in which they would be taken inside a slot.

    Attributes:
        cursor: for the next page; null: this was the last one.
    """


class Sent(Answer):
    """The result of a send; fields as of `rmq.SendResult`."""

    id: str
    status: SendStatus
    slot: int
    offset: int
    into: str | None
    durable: str


def body_of(value: Any, most: int | None = SHOWN_MAX) -> Body:
    """Return a decoded body as it is shown: so many bytes of it at most; None: all."""
    if isinstance(value, bytes):
        shown = value[:most]
        text = base64.b64encode(shown).decode()
        return Body(kind="base64", text=text, size=len(value), is_truncated=len(shown) < len(value))
    kind: Literal["json", "text"] = "text"
    if isinstance(value, str):
        text = value
    else:
        try:
            text, kind = json.dumps(value, ensure_ascii=False, allow_nan=False), "json"
        except (TypeError, ValueError, RecursionError):
            text = _written(value)  # msgpack has bytes inside of maps, and NaN; others have objects
    whole = text.encode("utf-8", "replace")  # JSON may name half of a surrogate pair
    shown = whole[:most]
    return Body(
        kind=kind,
        text=shown.decode("utf-8", "ignore"),  # the cut may be inside of a character
        size=len(whole),
        is_truncated=len(shown) < len(whole),
    )


def body_of_record(entry: record.Record, most: int | None) -> tuple[Body, str]:
    """Return the body of a record as it is shown, and why it cannot be decoded; empty: it can.

    No more is decompressed than is shown: so many bytes; None: all.
    """
    try:
        if entry.codec == codec.JSON.number and entry.body[:1] == b'"':  # decoded it is no larger
            return body_of(codec.decode(entry.codec, entry.body), most), ""
        parts, is_whole = record.beginning_of(entry, CEILING if most is None else most)
        data = b", ".join(data for _, data in parts)
        codecs = {number for number, _ in parts}
        collects = bool(entry.flags & record.COLLECTS)
        if is_whole and len(data) <= DECODED_MAX:
            values = [codec.decode(number, data) for number, data in parts]
            return body_of(values if collects else values[0], most), ""
        if is_json := codecs == {codec.JSON.number}:
            data = b"[%b]" % data if collects else data
            if is_whole:
                msgspec.json.decode(data, type=msgspec.Raw)  # whether it is
    except (DecodeError, msgspec.DecodeError, RecursionError) as error:
        return body_of(entry.body, most), str(error)
    body = body_of(data.decode("utf-8", "replace") if is_json else data, most)
    body.kind = "json" if is_json else "base64"
    if not is_whole:
        body.is_truncated = True
        body.size = None if entry.codec == codec.COMPRESSED.number else len(entry.body)
    is_decoded = is_json or codecs == {codec.BYTES.number}
    return body, "" if is_decoded else "shown as it is stored: it is too large to be decoded here"


def _written(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return "(nested too deeply to be shown)"
    except Exception as error:  # of an object that a codec of a user made
        return f"({type(value).__name__}; it cannot be shown: {type(error).__name__})"


def failure_of(failure: failures.Failure | None) -> Failure | None:
    """Return a failure as it is shown."""
    if failure is None:
        return None
    return show(failure, Failure, fingerprint=failures.fingerprint(failure))
