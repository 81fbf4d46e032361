"""Read the acked messages of a topic's history over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from rmq.errors import DecodeError, HistoryLost
from rmq.features.history import flows
from rmq.http_framework.message import SHOWN_MAX, Body, shown_body
from rmq.http_framework.operation import RequestContext, Table, read_cursor, write_cursor
from rmq.http_framework.problems import ApiError
from rmq.http_framework.requests import Answer, Limit, Request, Slot, TopicPath, show
from rmq.kernel.core import record

SLOTS_MAX = 100  # slots whose positions fit into a cursor
TABLE = Table("history")


class HistoryQuery(Request):
    """Selects acked messages to list.

    Attributes:
        since: Earliest time of an ack. Default: the oldest ack in the history.
        until: End of the period, which is not included. Default: no end.
        slot: Index of the only slot to read. Default: all slots.
        skip_lost: Whether to continue if the history removed messages before you read them.
    """

    since: datetime | None = None
    until: datetime | None = None
    slot: Slot | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(max_length=6000)] | None = None
    skip_lost: bool = False


class AckedMessage(Answer):
    """A message in the history, with the fields of `rmq.AckedMessage`.

    Attributes:
        unreadable: Reason why the body could not be decoded, or an empty string. A body that could
            not be decoded is shown as bytes.
    """

    id: str
    slot: int
    entry: str
    acked_at: datetime
    body: Body
    type: str | None
    group: str | None
    priority: int | None
    headers: dict[str, str]
    unreadable: str


class HistoryPage(Answer):
    """A page of the history of a topic.

    Attributes:
        cursor: Cursor with which you continue after this page. The last page also has a cursor.
        is_last: Whether the history has no further message now.
    """

    messages: list[AckedMessage]
    cursor: str
    is_last: bool


@TABLE.get("/topics/{topic}/history", "history-lost")
async def list_acked_messages(
    context: RequestContext, path: TopicPath, query: HistoryQuery
) -> HistoryPage:
    """List acked messages that the topic keeps. The oldest ack of each slot is first.

    A slot is a part of the topic. To read later acks, repeat the request with the cursor of the
    last page. One ack may contain up to 100 messages, which are always on the same page. So a page
    may have more messages than `limit`. For a topic with more than 100 slots, `slot` is required.
    RMQ does not read offloaded bodies from their store.
    """
    history = context.client.topic(path.topic).history
    after = read_cursor(query.cursor, dict[int, str]) if query.cursor else {}
    for entry in after.values():
        flows.parse_entry(entry, "cursor")
    slots = None if query.slot is None else (query.slot,)
    while True:
        try:
            page = await history.read(
                since=query.since, until=query.until, after=after, slots=slots, limit=query.limit,
                stored=True,
            )  # fmt: skip
            break
        except HistoryLost as error:
            if not query.skip_lost:
                raise
            after[error.slot] = error.removed_to
    if len(page.position) > SLOTS_MAX:
        raise ApiError("invalid", f"slot: give one of the {len(page.position)} slots", "slot")
    messages = [_shown(context, message) for message in page.messages]
    return HistoryPage(messages=messages, cursor=write_cursor(page.position), is_last=page.is_last)


def _shown(context: RequestContext, message: flows.AckedMessage) -> AckedMessage:
    try:
        body, unreadable = shown_body(context, record.read(message.record), SHOWN_MAX)
    except DecodeError as error:  # the record itself cannot be read
        body, _ = shown_body(context, message.record, SHOWN_MAX)
        return show(
            message, AckedMessage, body=body, unreadable=str(error), type=None, group=None,
            priority=None, headers={},
        )  # fmt: skip
    return show(message, AckedMessage, body=body, unreadable=unreadable)
