"""Messages: send, look at and change them, without taking any."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from rmq.errors import InvalidValue
from rmq.features.messages.change import CancelStatus, PriorityStatus, RescheduleStatus
from rmq.kernel.core.access import Role
from rmq.web.message import (
    BLOCK_S,
    SHOWN_MAX,
    MessageList,
    Peeked,
    Sent,
    StoredMessage,
    shown,
    walk,
)
from rmq.web.operation import RequestContext, Table
from rmq.web.problems import ApiError
from rmq.web.requests import (
    Answer,
    MessageIdText,
    MessagesQuery,
    Nothing,
    PeekQuery,
    Request,
    Seconds,
    TopicPath,
    show,
)


class MessagePath(TopicPath):
    """A message of a topic."""

    id: MessageIdText


class MessageQuery(Request):
    """How a message is shown; `whole`: with all of its body, of 16 MiB at most."""

    whole: bool = False


class Send(Request):
    """A message to send; fields as of `rmq.Outgoing`.

    Attributes:
        body: any JSON; or give body_base64.
        body_base64: bytes, which consumers get as they are.
        codec: how a JSON body is written.
    """

    body: Any = UNSET
    body_base64: str | UnsetType = UNSET
    codec: Literal["json", "msgpack"] = "json"
    priority: int | None = None
    delay: Seconds | None = None
    at: datetime | None = None
    merge_key: str | None = None
    time_range: Seconds | None = None
    merge: Literal["first", "last", "collect"] = "first"
    extend: bool = False
    max_wait: Seconds | None = None
    slot_basis: str | None = None
    headers: dict[str, str] | None = None
    expires: Seconds | None = None
    id: MessageIdText | None = None
    dedup_key: str | None = None
    max_runtime: Seconds | None = None
    type: str | None = None
    group: str | None = None
    share_key: str | None = None
    weight: int | None = None


class Reschedule(Request):
    """When a message may be taken: `delay` in seconds, or `at`."""

    delay: Seconds | None = None
    at: datetime | None = None


class Priority(Request):
    """A priority: 17 to 1 048 575, larger first."""

    priority: int


TABLE = Table("messages")


@TABLE.get("/topics/{topic}/messages")
async def list_messages(
    context: RequestContext, path: TopicPath, query: MessagesQuery
) -> MessageList:
    """List the messages of a queue, slot by slot, in the order of their scores.

    A message that stays where it is, is listed once. One that moves meanwhile may be listed twice
    or not at all. The order in which waiting messages are taken is that of `peek`.
    """
    return await walk(context, path.topic, query, query.queue)


@TABLE.get("/topics/{topic}/peek")
async def peek_messages(context: RequestContext, path: TopicPath, query: PeekQuery) -> Peeked:
    """Show the messages of a queue, page by page: waiting ones as they would be taken.

    A message that stays where it is, is shown once. A topic of more than 100 slots is shown page by
    page of a `slot` alone. With a `type` or a `group`, a page may have fewer than `limit` before
    the last one.
    """
    try:
        page = await context.admin.peek_page(
            path.topic,
            query.queue,
            slot=query.slot,
            cursor=query.cursor,
            limit=query.limit,
            type=query.type,
            group=query.group,
            raw=True,
        )
    except InvalidValue as error:
        if query.cursor is None or not str(error).startswith("cursor:"):
            raise
        raise ApiError("invalid", "cursor: give one that a page has returned", "cursor") from None
    messages = [shown(context, message) for message in page.messages]
    return Peeked(messages=messages, cursor=page.cursor)


@TABLE.post("/topics/{topic}/messages", "queue-full", role=Role.OPERATOR, status=201)
async def send_message(context: RequestContext, path: TopicPath, body: Send) -> Sent:
    """Send a message to a topic that exists.

    With `id` or `dedup_key`, a request that is repeated stores nothing.
    """
    if (body.body is UNSET) == (body.body_base64 is UNSET):
        raise ApiError("invalid", "body: give one of body and body_base64", "body")
    codec, value = body.codec, body.body
    if isinstance(body.body_base64, str):
        codec, value = "bytes", _decoded(body.body_base64)  # type: ignore[assignment]
    topic = context.client.topic(path.topic, codec=codec)
    await topic.open(create=False)
    result = await topic.send(
        value, priority=body.priority, delay=body.delay, at=body.at, merge_key=body.merge_key,
        time_range=body.time_range, merge=body.merge, extend=body.extend, max_wait=body.max_wait,
        slot_basis=body.slot_basis, headers=body.headers, expires=body.expires, id=body.id,
        dedup_key=body.dedup_key, max_runtime=body.max_runtime, type=body.type, group=body.group,
        share_key=body.share_key, weight=body.weight, timeout=BLOCK_S,
    )  # fmt: skip
    return show(result, Sent)


@TABLE.get("/topics/{topic}/messages/{id}", "not-found")
async def get_message(
    context: RequestContext, path: MessagePath, query: MessageQuery
) -> StoredMessage:
    """Return a message, in whichever queue it is, or in the trash."""
    message = await context.admin.get(path.topic, path.id, raw=True)
    if message is None:
        raise ApiError("not-found", "the message is settled, or never was", "id")
    return shown(context, message, None if query.whole else SHOWN_MAX)


class Cancelled(Answer):
    """The outcome of a cancellation."""

    status: CancelStatus


@TABLE.post("/topics/{topic}/messages/{id}/cancel", role=Role.OPERATOR)
async def cancel_message(context: RequestContext, path: MessagePath, body: Nothing) -> Cancelled:
    """Cancel a waiting message; any other is left as it is, and the status says where it is."""
    topic = context.client.topic(path.topic)
    await topic.open(create=False)
    return Cancelled(status=await topic.cancel(path.id))


class Rescheduled(Answer):
    """The outcome of a rescheduling."""

    status: RescheduleStatus


@TABLE.post("/topics/{topic}/messages/{id}/reschedule", role=Role.OPERATOR)
async def reschedule_message(
    context: RequestContext, path: MessagePath, body: Reschedule
) -> Rescheduled:
    """Give a waiting message another time."""
    topic = context.client.topic(path.topic)
    await topic.open(create=False)
    return Rescheduled(status=await topic.reschedule(path.id, at=body.at, delay=body.delay))


class Prioritized(Answer):
    """The outcome of a change of priority."""

    status: PriorityStatus


@TABLE.post("/topics/{topic}/messages/{id}/priority", role=Role.OPERATOR)
async def set_message_priority(
    context: RequestContext, path: MessagePath, body: Priority
) -> Prioritized:
    """Give a waiting message another priority; it joins that priority as the newest."""
    topic = context.client.topic(path.topic)
    await topic.open(create=False)
    return Prioritized(status=await topic.set_priority(path.id, body.priority))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError("invalid", f"body_base64: {error}", "body_base64") from None
