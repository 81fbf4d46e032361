"""Messages: look at them without taking them, and give expired leases back."""

from __future__ import annotations

from rmq.features.messages import flows
from rmq.features.messages.flows import PeekPage
from rmq.kernel.consumer import rollback
from rmq.kernel.core.ids import Id
from rmq.kernel.core.message import Message, QueueWord
from rmq.kernel.topic import paging, reading
from rmq.kernel.topic.paging import Cursor, Page, Span
from rmq.kernel.topic.verbs import AsyncAdminPart


class AsyncMessageAdmin(AsyncAdminPart):
    """Verbs on the messages of a topic, wherever they are."""

    async def get(self, topic: str, id: Id, *, raw: bool = False) -> Message | None:
        """Return one message, wherever it is; None if it is settled or never was.

        Args:
            topic: its name.
            id: its id.
            raw: the body as `rmq.kernel.core.record.Record`: with its codec, and not decoded.
        """
        return await self._run(reading.get(self._context(topic), id, raw))

    async def peek(
        self, topic: str, limit: int = 10, queue: QueueWord = "store", slot: int | None = None
    ) -> list[Message]:
        """Return messages without taking them.

        Args:
            topic: its name.
            limit: how many at most.
            queue: "store" (in the order in which they would go), "prepare" or "dead" (oldest
                first).
            slot: only this one.
        """
        return await self._run(flows.peek(self._context(topic), limit, queue, slot))

    async def peek_page(
        self,
        topic: str,
        queue: QueueWord = "store",
        *,
        slot: int | None = None,
        cursor: str | None = None,
        limit: int = 100,
        type: str | None = None,
        group: str | None = None,
        scan: int = flows.SCAN,
        raw: bool = False,
    ) -> PeekPage:
        """Return a page of what `peek` shows, however long the queue is. Takes nothing.

        Args:
            topic: its name.
            queue: "store" or "waiting", "prepare" or "in_flight", "dead".
            slot: only this one. Else all slots give messages in turn.
            cursor: of the page before; None: from the beginning.
            limit: so many messages at most, 1 to 1000.
            type: only messages of this type.
            group: only messages of this group.
            scan: how many messages are looked at, 1 to 1 000 000; with a type or a group a page may
                be short.
            raw: as in `get`.

        Guarantee:
            A message that stays where it is, is on one page; whether it is due counts as of the
            first page. One that moves meanwhile may be seen twice or not at all.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue: `cursor` is none of this queue.
        """
        context = self._context(topic)
        return await self._run(
            flows.page(context, queue, slot, cursor, limit, type, group, scan, raw)
        )

    async def spans(self, topic: str, queue: QueueWord, slot: int, pieces: int = 1) -> list[Span]:
        """Divide a queue of a slot into parts of about the same size, for `page`.

        Args:
            topic: its name.
            queue: "store" or "waiting", "prepare" or "in_flight", "dead".
            slot: its index.
            pieces: into how many parts, 1 to 10 000; a small queue has fewer.
        """
        return await self._run(paging.spans(self._context(topic), queue, slot, pieces))

    async def page(
        self,
        topic: str,
        queue: QueueWord,
        span: Span,
        cursor: Cursor | None = None,
        *,
        raw: bool = False,
        limit: int = paging.PAGE,
    ) -> Page:
        """Return the next messages of a part of a queue, up to 1000 and 4 MiB. Takes nothing.

        Args:
            topic: its name.
            queue: "store" or "waiting", "prepare" or "in_flight", "dead".
            span: one of those that `spans` gave.
            cursor: of the page before; None: from the beginning.
            raw: as in `get`.
            limit: so many messages at most, 1 to 1000.

        Guarantee:
            A message that stays where it is, is on one page. One that moves meanwhile may be seen
            twice or not at all.
        """
        return await self._run(paging.page(self._context(topic), queue, span, cursor, raw, limit))

    async def rollback(self, topic: str) -> int:
        """Roll back every expired lease; return how many. Consumers do it as they receive."""
        return await self._run(rollback.rollback_topic(self._context(topic)))
