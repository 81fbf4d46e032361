# Generated from rmq/features/messages/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.messages.admin`."""

from __future__ import annotations

from rmq.features.messages import flows
from rmq.features.messages.flows import PeekPage
from rmq.kernel.consumer import rollback
from rmq.kernel.core.ids import Id
from rmq.kernel.core.message import Message, QueueWord
from rmq.kernel.topic import paging, reading
from rmq.kernel.topic.admin_part import AdminPart
from rmq.kernel.topic.filter import DeadLetterFilter, given
from rmq.kernel.topic.paging import Cursor, Page, Span


class MessageAdmin(AdminPart):
    """Reads the messages of a topic in any queue, and rolls back expired leases."""

    def get(self, topic: str, id: Id, *, raw: bool = False) -> Message | None:
        """Return a message from any queue, or None if the message is settled or unknown.

        Args:
            topic: Name of the topic.
            id: Id of the message.
            raw: Whether the `body` of the message is a `rmq.kernel.core.record.Record`. It has the
                bytes that Redis stores and names the codec, but is not decoded.
        """
        return self._run(reading.get(self._context(topic), id, raw))

    def peek(
        self, topic: str, limit: int = 10, queue: QueueWord = "store", slot: int | None = None
    ) -> list[Message]:
        """Return messages without receiving them.

        Args:
            topic: Name of the topic.
            limit: Maximum number of messages.
            queue: "store" (in delivery order), "prepare" or "dead" (oldest first).
            slot: Index of the slot (part of the topic) to read. Default: all slots.
        """
        return self._run(flows.peek(self._context(topic), limit, queue, slot))

    def peek_page(
        self,
        topic: str,
        queue: QueueWord = "store",
        *,
        slot: int | None = None,
        cursor: str | None = None,
        limit: int = 100,
        type: str | None = None,
        group: str | None = None,
        filter: DeadLetterFilter | str | None = None,
        scan: int = flows.SCAN,
        raw: bool = False,
    ) -> PeekPage:
        """Return a page of the messages that `peek` shows, from a queue of any length.

        Args:
            topic: Name of the topic.
            queue: "store" or "waiting", "prepare" or "in_flight", "dead".
            slot: Index of the slot (part of the topic) to read. Default: all slots, one after
                another.
            cursor: Cursor that the previous page returned. Default: start at the beginning.
            limit: Maximum number of messages, 1 to 1000.
            type: Type of the messages. Default: any type.
            group: Group of the messages. Default: any group.
            filter: Filter that the messages must match, for example `body contains "Smith"`.
                docs/dead-letters.md describes filters.
            scan: Maximum number of messages to examine, 1 to 1 000 000. With a type, a group or a
                filter, a page may have fewer messages than `limit` although more messages follow.
                Continue as long as a page returns a cursor.
            raw: As in `get`.

        Guarantee:
            A message that keeps its position is on exactly one page. A message that moves between
            two calls may be on two pages or on none. The time of the first page decides whether a
            message is due.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue: `cursor` is not from this queue.
            InvalidFilter: The text is not a valid filter.
        """
        context = self._context(topic)
        return self._run(
            flows.page(context, queue, slot, cursor, limit, type, group, given(filter), scan, raw)
        )

    def spans(self, topic: str, queue: QueueWord, slot: int, pieces: int = 1) -> list[Span]:
        """Divide a queue of a slot (part of a topic) into pieces of about the same size.

        `page` reads one piece.

        Args:
            topic: Name of the topic.
            queue: "store" or "waiting", "prepare" or "in_flight", "dead".
            slot: Index of the slot.
            pieces: Number of pieces, 1 to 10 000. A small queue has fewer pieces.
        """
        return self._run(paging.spans(self._context(topic), queue, slot, pieces))

    def page(
        self,
        topic: str,
        queue: QueueWord,
        span: Span,
        cursor: Cursor | None = None,
        *,
        raw: bool = False,
        limit: int = paging.PAGE,
    ) -> Page:
        """Return the next messages of a piece of a queue without receiving them.

        A page has at most 1000 messages and 4 MiB.

        Args:
            topic: Name of the topic.
            queue: "store" or "waiting", "prepare" or "in_flight", "dead".
            span: Piece of the queue, from `spans`.
            cursor: Cursor that the previous page returned. Default: start at the beginning.
            raw: As in `get`.
            limit: Maximum number of messages, 1 to 1000.

        Guarantee:
            A message that keeps its position is on exactly one page. A message that moves between
            two calls may be on two pages or on none.
        """
        return self._run(paging.page(self._context(topic), queue, span, cursor, raw, limit))

    def rollback(self, topic: str) -> int:
        """Roll back every expired lease now. Return the number of leases."""
        return self._run(rollback.rollback_topic(self._context(topic)))
