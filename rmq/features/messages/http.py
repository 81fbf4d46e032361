"""HTTP routes of messages: send, show and change them."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from rmq.errors import InvalidValue, NotFinished, ResultNotFound
from rmq.features.messages.change import CancelStatus, PriorityStatus, RescheduleStatus
from rmq.http_framework.message import (
    BLOCK_S,
    SHOWN_MAX,
    MessageList,
    Peeked,
    ResultState,
    Sent,
    StoredMessage,
    shown,
    shown_result,
    walk,
)
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import (
    Answer,
    MessageIdText,
    MessagesQuery,
    PeekQuery,
    Request,
    Seconds,
    TopicPath,
    show,
)
from rmq.kernel.core.access import Role


class MessagePath(TopicPath):
    """A message of a topic."""

    id: MessageIdText


class MessageQuery(Request):
    """Options for reading a message.

    With `whole`, the response has the whole body, up to 16 MiB.
    """

    whole: bool = False


class Send(Request):
    """A message to send, with the same fields as `rmq.Outgoing`.

    Attributes:
        body: Body as JSON. Pass this field or body_base64.
        body_base64: Body as bytes, which consumers get unchanged.
        codec: Codec for a JSON body.
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
    keep_result: Seconds | None = None


class Reschedule(Request):
    """New due time of a message: a `delay` in seconds, or a time `at`."""

    delay: Seconds | None = None
    at: datetime | None = None


class Priority(Request):
    """A priority from 17 to 1 048 575. RMQ delivers messages with larger priorities first."""

    priority: int


TABLE = Table("messages")


@TABLE.get("/topics/{topic}/messages")
async def list_messages(
    context: RequestContext, path: TopicPath, query: MessagesQuery
) -> MessageList:
    """List the messages of a queue, slot by slot. Each slot is sorted by score.

    A slot is a part of the topic. A message that keeps its score is listed once. A message that
    moves between two requests may be listed twice or not at all. For the delivery order of waiting
    messages, use `peek`.
    """
    return await walk(context, path.topic, query, query.queue)


@TABLE.get("/topics/{topic}/peek")
async def peek_messages(context: RequestContext, path: TopicPath, query: PeekQuery) -> Peeked:
    """Show the messages of a queue in pages. Waiting messages are in delivery order.

    A message that keeps its position is shown once. For a topic with more than 100 slots (parts),
    `slot` is required. A request examines at most 10 000 messages. So with a `type`, a `group` or a
    `filter`, a page may have fewer messages than `limit` although more messages follow.
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
            filter=query.filter,
            raw=True,
        )
    except InvalidValue as error:
        if query.cursor is None or not str(error).startswith("cursor:"):
            raise
        raise ApiError("invalid", "cursor: use a cursor that a page returned", "cursor") from None
    messages = [shown(context, message) for message in page.messages]
    return Peeked(messages=messages, cursor=page.cursor)


@TABLE.post("/topics/{topic}/messages", "queue-full", role=Role.PRODUCER, status=201)
async def send_message(context: RequestContext, path: TopicPath, body: Send) -> Sent:
    """Send a message to an existing topic.

    You can repeat a request that has an `id`, a `dedup_key` or the header Idempotency-Key. The
    repeated request stores nothing, and its `status` is "duplicate". RMQ uses the header as the
    `dedup_key`.
    """
    key = context.headers.get("Idempotency-Key")
    if key is not None and body.dedup_key is not None:
        raise ApiError("invalid", "dedup_key: the header Idempotency-Key has one", "dedup_key")
    if (body.body is UNSET) == (body.body_base64 is UNSET):
        raise ApiError("invalid", "body: send either body or body_base64", "body")
    codec, value = body.codec, body.body
    if isinstance(body.body_base64, str):
        codec, value = "bytes", _decoded(body.body_base64)  # type: ignore[assignment]
    topic = context.client.topic(path.topic, codec=codec)
    await topic.open(create=False)
    result = await topic.send(
        value, priority=body.priority, delay=body.delay, at=body.at, merge_key=body.merge_key,
        time_range=body.time_range, merge=body.merge, extend=body.extend, max_wait=body.max_wait,
        slot_basis=body.slot_basis, headers=body.headers, expires=body.expires, id=body.id,
        dedup_key=body.dedup_key if key is None else key, max_runtime=body.max_runtime,
        type=body.type, group=body.group,
        share_key=body.share_key, weight=body.weight, keep_result=body.keep_result,
        timeout=BLOCK_S,
    )  # fmt: skip
    return show(result, Sent)


@TABLE.get("/topics/{topic}/messages/{id}", "not-found")
async def get_message(
    context: RequestContext, path: MessagePath, query: MessageQuery
) -> StoredMessage:
    """Return a message from any queue or from the trash."""
    message = await context.admin.get(path.topic, path.id, raw=True)
    if message is None:
        raise ApiError("not-found", "the message is settled or unknown", "id")
    return shown(context, message, None if query.whole else SHOWN_MAX)


class ResultQuery(Request):
    """Options for reading a result. `wait` is the longest wait for the result, 0 to 30 s."""

    wait: Annotated[float, Meta(ge=0, le=30)] = 0


@TABLE.get("/topics/{topic}/messages/{id}/result", "not-found")
async def get_result(context: RequestContext, path: MessagePath, query: ResultQuery) -> ResultState:
    """Return the state, the progress and the outcome of a message.

    With `wait`, the server waits until the message ends, but at most for this time. If the message
    has not ended, the response has no `outcome`.
    """
    handle = context.client.topic(path.topic).result(path.id)
    if query.wait:
        with suppress(NotFinished, ResultNotFound):
            await handle.wait(query.wait)
    state = await handle.read()
    if state.place == "gone" and state.outcome is None:
        raise ApiError("not-found", "the message is unknown, or its result is not kept", "id")
    return shown_result(context, state)


class Cancel(Request):
    """Options of a cancellation. With `running`, RMQ also cancels a message in flight."""

    running: bool = False


class Cancelled(Answer):
    """The outcome of a cancellation."""

    status: CancelStatus


@TABLE.post("/topics/{topic}/messages/{id}/cancel", role=Role.OPERATOR)
async def cancel_message(context: RequestContext, path: MessagePath, body: Cancel) -> Cancelled:
    """Cancel a waiting message, or request the cancellation of a message in flight.

    RMQ does not change a message in another state. The response names the state.
    """
    topic = context.client.topic(path.topic)
    await topic.open(create=False)
    return Cancelled(status=await topic.cancel(path.id, running=body.running))


class Rescheduled(Answer):
    """The outcome of a rescheduling."""

    status: RescheduleStatus


@TABLE.post("/topics/{topic}/messages/{id}/reschedule", role=Role.OPERATOR)
async def reschedule_message(
    context: RequestContext, path: MessagePath, body: Reschedule
) -> Rescheduled:
    """Give a waiting message another due time."""
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
    """Give a waiting message another priority.

    The message then waits behind all messages that already have this priority.
    """
    topic = context.client.topic(path.topic)
    await topic.open(create=False)
    return Prioritized(status=await topic.set_priority(path.id, body.priority))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError("invalid", f"body_base64: {error}", "body_base64") from None
