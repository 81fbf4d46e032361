"""Messages as they are shown."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any, Literal

from rmq.core import failure as failures
from rmq.core.fingerprint import fingerprint
from rmq.core.message import Message, SendResult, SendStatus
from rmq.core.queues import QueueName
from rmq.protocol.flows.schedule import CancelStatus, PriorityStatus, RescheduleStatus
from rmq.server.http.api.views.answer import Answer

SHOWN_MAX = 64 * 1024  # bytes of a body; the rest is cut off, and `is_truncated` says so


class Body(Answer):
    """A body, as text.

    Attributes:
        kind: "json": `text` is JSON, with all digits of its numbers; "text": a string, as it is;
            "base64": bytes; "hidden": you are not shown it.
        size: bytes of the body as it is shown whole.
        is_truncated: whether `text` shows the first 64 KiB alone.
    """

    kind: Literal["json", "text", "base64", "hidden"]
    text: str
    size: int
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
    at: datetime | None
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


class Peeked(Answer):
    """Messages, in the order in which they would be taken inside a slot.

    Attributes:
        cursor: for the next page; null: this was the last one.
    """

    messages: list[StoredMessage]
    cursor: str | None


class Sent(Answer):
    """The result of a send; fields as of `rmq.SendResult`."""

    id: str
    status: SendStatus
    slot: int
    offset: int
    into: str | None
    durable: str


class Cancelled(Answer):
    """The outcome of a cancellation."""

    status: CancelStatus


class Rescheduled(Answer):
    """The outcome of a rescheduling."""

    status: RescheduleStatus


class Prioritized(Answer):
    """The outcome of a change of priority."""

    status: PriorityStatus


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
            text = _written(value)  # msgpack has bytes inside of maps, and NaN
    whole = text.encode("utf-8", "replace")  # JSON may name half of a surrogate pair
    shown = whole[:most]
    return Body(
        kind=kind,
        text=shown.decode("utf-8", "ignore"),  # the cut may be inside of a character
        size=len(whole),
        is_truncated=len(shown) < len(whole),
    )


def _written(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return "(nested too deeply to be shown)"


def message_of(message: Message, most: int | None = SHOWN_MAX) -> StoredMessage:
    """Return a message as it is shown, with so many bytes of its body; None: all."""
    return StoredMessage(
        id=str(message.id), queue=message.queue, slot=message.slot, offset=message.offset,
        body=body_of(message.body, most), type=message.type, priority=message.priority,
        due=message.due, expires=message.expires, merge_key=message.merge_key,
        headers=dict(message.headers), deliveries=message.deliveries, deadline=message.deadline,
        held_by_query=message.held_by_query, died=message.died,
        failure=failure_of(message.failure),
        unreadable=message.unreadable,
        attempts=[Attempt(**attempt._asdict()) for attempt in message.attempts],
    )  # fmt: skip


def failure_of(failure: failures.Failure | None) -> Failure | None:
    """Return a failure as it is shown."""
    if failure is None:
        return None
    return Failure(**failure._asdict(), fingerprint=fingerprint(failure))


def sent_of(result: SendResult) -> Sent:
    """Return the result of a send as it is shown."""
    into = str(result.into) if result.into else None
    return Sent(
        id=str(result.id), status=result.status, slot=result.slot, offset=result.offset, into=into,
        durable=result.durable,
    )  # fmt: skip
