"""Convert messages for the HTTP API and the console."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from rmq.errors import DecodeError
from rmq.http_framework.operation import RequestContext, read_cursor, write_cursor
from rmq.http_framework.principal import sees_bodies
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import (
    LIMIT_MAX,
    Answer,
    DeadQuery,
    LeasesQuery,
    MessagesQuery,
    show,
)
from rmq.kernel.core import codec, failure as failures, record, steps
from rmq.kernel.core.body_limits import BODY_CEILING
from rmq.kernel.core.message import Message, QueueName, SendStatus
from rmq.kernel.results import outcome as results
from rmq.kernel.results.outcome import OutcomeName, Place
from rmq.kernel.topic.paging import Cursor, Span

WALKED_MAX = 5000  # messages that one filtered request reads; its cursor continues after them
BLOCK_S = 3.0  # how long a send to a full topic waits if the topic's overflow is "block"


class Position(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Position in a list of messages. A cursor contains it."""

    slot: Annotated[int, msgspec.Meta(ge=0, le=1023)]
    score: float | None = None  # None: the beginning of the slot
    seen: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0


async def walk(
    context: RequestContext,
    topic: str,
    query: MessagesQuery | DeadQuery,
    queue: QueueName,
    fits: Callable[[Message], bool] | None = None,
) -> MessageList:
    """Return one page of a queue's messages for display."""
    found, cursor = await page_of(context, topic, query, queue, fits)
    return MessageList(messages=[shown(context, each) for each in found], cursor=cursor)


SHOWN_MAX = 64 * 1024  # bytes of a body; the rest is cut off, and `is_truncated` is true


def shown(context: RequestContext, message: Message, most: int | None = SHOWN_MAX) -> StoredMessage:
    """Convert a message for display. If the user may not see the body, do not decode the body.

    Args:
        context: Context of the request.
        message: Message whose `body` is the record from Redis, not decoded yet.
        most: Maximum number of body bytes to show, or None for the whole body.
    """
    body, unreadable = shown_body(context, message.body, most, message.unreadable)
    failure = failure_of(message.failure)
    shown_steps = [_shown_step(context, step, most) for step in message.steps]
    return show(
        message, StoredMessage, body=body, unreadable=unreadable, failure=failure, steps=shown_steps
    )


def shown_body(
    context: RequestContext, body: Any, most: int | None, unreadable: str = ""
) -> tuple[Body, str]:
    """Convert the body of a record for display. Return also why it was not decoded, or "".

    If the record itself cannot be read, `body` is its bytes, and `unreadable` is the reason.
    """
    if not sees_bodies(context.principal):
        return hidden_body(), ""
    if isinstance(body, record.Record):
        return body_of_record(body, most)
    return body_of(body, most), unreadable


def _shown_step(context: RequestContext, step: steps.Step, most: int | None) -> Step:
    value = None
    if step.data:
        try:
            seen = sees_bodies(context.principal)
            value = body_of(step.value, most) if seen else hidden_body()
        except DecodeError:
            value = body_of(step.data[1:], most)
    return show(step, Step, value=value)


def shown_result(context: RequestContext, state: results.ResultState) -> ResultState:
    """Convert the state of a message for display. Hide the value if the user may not see it."""
    outcome = None
    if state.outcome is not None:
        value = None
        if state.outcome.value is not None:
            is_seen = sees_bodies(context.principal)
            value = body_of(state.outcome.value, None) if is_seen else hidden_body()
        failure = failure_of(state.outcome.failure)
        outcome = show(state.outcome, MessageOutcome, value=value, failure=failure)
    return show(state, ResultState, outcome=outcome)


async def page_of(
    context: RequestContext,
    topic: str,
    query: MessagesQuery | DeadQuery | LeasesQuery,
    queue: QueueName,
    fits: Callable[[Message], bool] | None = None,
) -> tuple[list[Message], str | None]:
    """Return the messages after the query's cursor, and the next cursor.

    The messages are sorted by slot (part of the topic), and by score in each slot.
    """
    settings = await context.admin.settings(topic)
    slots = settings.layout.most if settings.layout else settings.slots
    first = query.slot or 0
    if first >= slots:
        raise ApiError("invalid", f"slot: {first}; the topic has {slots}", "slot")
    last = first if query.slot is not None else slots - 1
    position = read_cursor(query.cursor, Position) if query.cursor else Position(first)
    if not first <= position.slot <= last:
        raise ApiError("invalid", "cursor: use the query that returned it", "cursor")
    found: list[Message] = []
    walked = 0
    while True:
        cursor = None if position.score is None else Cursor(position.score, position.seen)
        size = LIMIT_MAX if fits else query.limit - len(found)
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


# Size in bytes of the largest body that is decoded, because Python values need up to 30 times as
# much memory. A larger body is shown as it is stored.
DECODED_MAX = 1024 * 1024
HIDDEN = "(hidden)"


class Body(Answer):
    """The body of a message as text.

    Attributes:
        kind: Form of `text`: "json" (JSON, with all digits of its numbers), "text" (an unchanged
            string), "base64" (bytes), or "hidden" (you may not see the body).
        size: Number of bytes of the complete body. If `text` has only the beginning, the number of
            bytes of the stored body. The value is null if the body is compressed and was not
            decompressed completely.
        is_truncated: Whether `text` has only the beginning of the body.
    """

    kind: Literal["json", "text", "base64", "hidden"]
    text: str
    size: int | None
    is_truncated: bool


def hidden_body() -> Body:
    """Return the text that replaces a body if the user or program may not see it."""
    return Body(kind="hidden", text=HIDDEN, size=None, is_truncated=False)


class Failure(Answer):
    """The last failure of a message. Failures with the same cause have the same fingerprint."""

    reason: str
    deliveries: int
    error: str
    traceback: str
    fingerprint: str


class Attempt(Answer):
    """A failed attempt to handle a message, a redrive or an expiry. See `rmq.Attempt`."""

    number: int | None
    at: datetime
    reason: str
    error: str
    traceback: str
    worker: str


class Step(Answer):
    """A finished part of a handler's work, the position that the handler saved, or an event.

    See `rmq.Step`.
    """

    name: str
    state: steps.State
    at: datetime
    value: Body | None


class StoredMessage(Answer):
    """A message that Redis stores, with the fields of `rmq.Message`.

    Attributes:
        queue: "store" (waiting), "prepare" (in flight) or "dead".
        unreadable: Why RMQ could not decode the body, or an empty string. If RMQ could not decode
            the body, `body` has its bytes.
        attempts: Failed attempts, newest first.
        steps: Steps of the work, the saved cursor and the events. The list is empty if you list
            several messages.
        waits_for: Key of the event for which the message waits, or null. It is also null if you
            list several messages.
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
    steps: list[Step]
    waits_for: str | None


class Progress(Answer):
    """The progress that a handler has reported, with the fields of `rmq.Progress`."""

    fraction: float
    text: str
    at: datetime
    attempt: int
    worker: str


class MessageOutcome(Answer):
    """How a message has ended, with the fields of `rmq.MessageOutcome`.

    Attributes:
        value: Value that the handler returned, or null if it returned no value.
        error: Type and message of the last error, or an empty string.
    """

    id: str
    outcome: OutcomeName
    ended: datetime
    value: Body | None
    missing_value: str
    attempts: int
    worker: str
    started: datetime | None
    failure: Failure | None
    error: str
    kept_until: datetime | None


class ResultState(Answer):
    """The state of a message, with the fields of `rmq.ResultState`."""

    id: str
    place: Place
    keeps: bool
    progress: Progress | None
    outcome: MessageOutcome | None


class MessageList(Answer):
    """A page of messages."""

    messages: list[StoredMessage]
    cursor: str | None


class Peeked(MessageList):
    """Messages of each slot (part of the topic), in the order of their delivery."""


class Sent(Answer):
    """The result of a send, with the fields of `rmq.SendResult`."""

    id: str
    status: SendStatus
    slot: int
    offset: int
    into: str | None
    durable: str


def body_of(value: Any, most: int | None = SHOWN_MAX) -> Body:
    """Convert a decoded body for display.

    `most` is the maximum number of bytes to show, or None.
    """
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
            text = _written(value)  # a map with bytes, NaN, or any object of a user's codec
    whole = text.encode("utf-8", "replace")  # JSON may contain half of a surrogate pair
    shown = whole[:most]
    return Body(
        kind=kind,
        text=shown.decode("utf-8", "ignore"),  # the cut may be inside a character
        size=len(whole),
        is_truncated=len(shown) < len(whole),
    )


def body_of_record(entry: record.Record, most: int | None) -> tuple[Body, str]:
    """Convert the record of a message to its body for display.

    Also return why the body could not be decoded, or "". `most` is the maximum number of bytes to
    show, or None for no limit. The function decompresses only these bytes.
    """
    try:
        if entry.codec == codec.JSON.number and entry.body[:1] == b'"':  # decoding keeps its size
            return body_of(codec.decode(entry.codec, entry.body), most), ""
        parts, is_whole = record.beginning_of(entry, BODY_CEILING if most is None else most)
        data = b", ".join(data for _, data in parts)
        codecs = {number for number, _ in parts}
        collects = bool(entry.flags & record.COLLECTS)
        if is_whole and len(data) <= DECODED_MAX:
            values = [codec.decode(number, data) for number, data in parts]
            return body_of(values if collects else values[0], most), ""
        if is_json := codecs == {codec.JSON.number}:
            data = b"[%b]" % data if collects else data
            if is_whole:
                msgspec.json.decode(data, type=msgspec.Raw)  # raises if the body is not JSON
    except (DecodeError, msgspec.DecodeError, RecursionError) as error:
        return body_of(entry.body, most), str(error)
    body = body_of(data.decode("utf-8", "replace") if is_json else data, most)
    body.kind = "json" if is_json else "base64"
    if not is_whole:
        body.is_truncated = True
        body.size = None if entry.codec == codec.COMPRESSED.number else len(entry.body)
    is_decoded = is_json or codecs == {codec.BYTES.number}
    return body, "" if is_decoded else "shown as stored: the body is too large to be decoded here"


def _written(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return "(too deeply nested to be shown)"
    except Exception as error:  # raised by the `repr` of an object that a user's codec returned
        return f"({type(value).__name__}; it cannot be shown: {type(error).__name__})"


def failure_of(failure: failures.Failure | None) -> Failure | None:
    """Convert a failure for display."""
    if failure is None:
        return None
    return show(failure, Failure, fingerprint=failures.fingerprint(failure))
