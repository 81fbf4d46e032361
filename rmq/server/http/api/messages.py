"""Messages: send, look at and change them, without taking any."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET

from rmq.core.message import Message
from rmq.core.queues import QueueName
from rmq.errors import InvalidValue
from rmq.protocol.flows.pages import Cursor, Span
from rmq.server.http.api import bodies, cursors, views
from rmq.server.http.api.disclosure import sees_bodies
from rmq.server.http.api.operation import At, Table
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import Role

TABLE = Table("messages")
NONE = "topic-not-found"
WALKED_MAX = 5000  # messages that one request with a filter looks at; its cursor goes on
BLOCK_S = 3.0  # how long a send waits for room, where the topic's overflow is "block"


class Position(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where a list of messages goes on: after so many messages of a score of a slot."""

    slot: Annotated[int, msgspec.Meta(ge=0, le=1023)]
    score: float | None = None  # None: at the beginning of the slot
    seen: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0


async def walk(
    at: At,
    topic: str,
    query: bodies.MessagesQuery | bodies.DeadQuery,
    queue: QueueName,
    fits: Callable[[Message], bool] | None = None,
) -> views.MessageList:
    """Return the messages of a queue from the query's cursor on, as they are shown."""
    found, cursor = await page_of(at, topic, query, queue, fits)
    return views.MessageList(messages=[shown(at, each) for each in found], cursor=cursor)


def shown(at: At, message: Message, most: int | None = views.SHOWN_MAX) -> views.StoredMessage:
    """Return a message as it is shown; of a body that is hidden nothing is decoded."""
    return views.message_of(message, most if sees_bodies(at.principal) else 0)


async def page_of(
    at: At,
    topic: str,
    query: bodies.MessagesQuery | bodies.DeadQuery | bodies.LeasesQuery,
    queue: QueueName,
    fits: Callable[[Message], bool] | None = None,
) -> tuple[list[Message], str | None]:
    """Return messages from the query's cursor on, by slot and score, and where they go on."""
    settings = await at.admin.settings(topic)
    slots = settings.layout.most if settings.layout else settings.slots
    first = query.slot or 0
    if first >= slots:
        raise ApiError("invalid", f"slot: {first}; the topic has {slots}", "slot")
    last = first if query.slot is not None else slots - 1
    position = cursors.read(query.cursor, Position) if query.cursor else Position(first)
    if not first <= position.slot <= last:
        raise ApiError("invalid", "cursor: give it with the query that it came from", "cursor")
    found: list[Message] = []
    walked = 0
    while True:
        cursor = None if position.score is None else Cursor(position.score, position.seen)
        size = bodies.LIMIT_MOST if fits else query.limit - len(found)
        page = await at.admin.page(topic, queue, Span(position.slot), cursor, raw=True, limit=size)
        for message in page.messages:
            seen = position.seen + 1 if message.score == position.score else 1
            position = Position(position.slot, message.score, seen)
            walked += 1
            if fits is None or fits(message):
                found.append(message)
                if len(found) == query.limit:
                    return found, cursors.write(position)
        if page.cursor is None:
            if position.slot == last:
                return found, None
            position = Position(position.slot + 1)
        if walked >= WALKED_MAX:
            return found, cursors.write(position)


@TABLE.get("/topics/{topic}/messages", NONE, "conflict")
async def list_messages(
    at: At, path: bodies.TopicPath, query: bodies.MessagesQuery
) -> views.MessageList:
    """List the messages of a queue, slot by slot, in the order of their scores.

    A message that stays where it is, is listed once. One that moves meanwhile may be listed twice
    or not at all. The order in which waiting messages are taken is that of `peek`.
    """
    return await walk(at, path.topic, query, query.queue)


@TABLE.get("/topics/{topic}/peek", NONE, "conflict")
async def peek_messages(at: At, path: bodies.TopicPath, query: bodies.PeekQuery) -> views.Peeked:
    """Show the messages of a queue, page by page: waiting ones as they would be taken.

    A message that stays where it is, is shown once. A topic of more than 100 slots is shown page by
    page of a `slot` alone.
    """
    try:
        page = await at.admin.peek_page(
            path.topic,
            query.queue,
            slot=query.slot,
            cursor=query.cursor,
            limit=query.limit,
            raw=True,
        )
    except InvalidValue as error:
        if query.cursor is None or not str(error).startswith("cursor:"):
            raise
        raise ApiError("invalid", "cursor: give one that a page has returned", "cursor") from None
    messages = [shown(at, message) for message in page.messages]
    return views.Peeked(messages=messages, cursor=page.cursor)


@TABLE.post(
    "/topics/{topic}/messages", NONE, "conflict", "queue-full", role=Role.OPERATOR, status=201
)
async def send_message(at: At, path: bodies.TopicPath, body: bodies.Send) -> views.Sent:
    """Send a message to a topic that exists.

    With `id` or `dedup_key`, a request that is repeated stores nothing.
    """
    if (body.body is UNSET) == (body.body_base64 is UNSET):
        raise ApiError("invalid", "body: give one of body and body_base64", "body")
    codec, value = body.codec, body.body
    if isinstance(body.body_base64, str):
        codec, value = "bytes", _decoded(body.body_base64)  # type: ignore[assignment]
    topic = at.client.topic(path.topic, codec=codec)
    await topic.open(create=False)
    return views.sent_of(
        await topic.send(
            value, priority=body.priority, delay=body.delay, at=body.at, merge_key=body.merge_key,
            time_range=body.time_range, merge=body.merge, extend=body.extend,
            max_wait=body.max_wait, slot_basis=body.slot_basis, headers=body.headers,
            expires=body.expires, id=body.id, dedup_key=body.dedup_key,
            max_runtime=body.max_runtime, type=body.type, timeout=BLOCK_S,
        )
    )  # fmt: skip


@TABLE.get("/topics/{topic}/messages/{id}", NONE, "not-found", "conflict")
async def get_message(
    at: At, path: bodies.MessagePath, query: bodies.MessageQuery
) -> views.StoredMessage:
    """Return a message, in whichever queue it is, or in the trash."""
    message = await at.admin.get(path.topic, path.id, raw=True)
    if message is None:
        raise ApiError("not-found", "the message is settled, or never was", "id")
    return shown(at, message, None if query.whole else views.SHOWN_MAX)


@TABLE.post("/topics/{topic}/messages/{id}/cancel", NONE, "conflict", role=Role.OPERATOR)
async def cancel_message(at: At, path: bodies.MessagePath, body: bodies.Nothing) -> views.Cancelled:
    """Cancel a waiting message; any other is left as it is, and the status says where it is."""
    topic = at.client.topic(path.topic)
    await topic.open(create=False)
    return views.Cancelled(status=await topic.cancel(path.id))


@TABLE.post("/topics/{topic}/messages/{id}/reschedule", NONE, "conflict", role=Role.OPERATOR)
async def reschedule_message(
    at: At, path: bodies.MessagePath, body: bodies.Reschedule
) -> views.Rescheduled:
    """Give a waiting message another time."""
    topic = at.client.topic(path.topic)
    await topic.open(create=False)
    return views.Rescheduled(status=await topic.reschedule(path.id, at=body.at, delay=body.delay))


@TABLE.post("/topics/{topic}/messages/{id}/priority", NONE, "conflict", role=Role.OPERATOR)
async def set_message_priority(
    at: At, path: bodies.MessagePath, body: bodies.Priority
) -> views.Prioritized:
    """Give a waiting message another priority; it joins that priority as the newest."""
    topic = at.client.topic(path.topic)
    await topic.open(create=False)
    return views.Prioritized(status=await topic.set_priority(path.id, body.priority))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError("invalid", f"body_base64: {error}", "body_base64") from None
