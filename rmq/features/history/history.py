"""Read the history of a topic: `AsyncTopic.history`.

`make fmt` writes the blocking class from this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from rmq.features.history import flows
from rmq.features.history.flows import HistoryPage, HistoryState, Position
from rmq.kernel.core.validation import Moment
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.asyncio import AsyncTransport


class AsyncTopicHistory:
    """Reads the acked messages that a topic keeps if it has the setting `history`.

    Reading changes nothing, and does not affect consumers. Any number of readers can read the whole
    history. A position maps the index of each slot to the last entry that was read in the slot, as
    text. You can store a position as JSON. When you load it, convert the indexes to numbers again.
    """

    def __init__(self, transport: AsyncTransport, context: TopicContext) -> None:
        self._run = transport.run
        self._context = context

    async def read(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        after: Mapping[int, str] | None = None,
        upto: Mapping[int, str] | None = None,
        slots: Iterable[int] | None = None,
        limit: int = 1000,
        stored: bool = False,
    ) -> HistoryPage:
        """Return a page of acked messages.

        Args:
            since: Earliest time of an ack to read, as an aware datetime or epoch ms. Default: read
                from the oldest ack that is kept. The time is ignored for slots that `after` names.
            until: Time at which to stop; later acks are not read. Default: no end.
            after: Position at which to continue: `position` of an earlier page. Slots that are not
                in this position are read from `since`, by default from their beginning.
            upto: Position at which to stop, for the slots in this position.
            slots: Indexes of the slots to read. Default: all slots that the topic has ever had.
            limit: Maximum number of messages, 1 to 10 000. A page also ends after about 16 MiB.
            stored: Whether to leave offloaded bodies in their store. If False, bodies are read if
                this process has access to the store.

        Guarantee:
            If you read each page from the position of the previous page, each message of the
            history is returned once. This is also true while messages are acked, and after a
            resize. A page has the messages of a slot in the order of their acks. If the new master
            of a failover had not received an ack, its message is missing.

        Raises:
            HistoryLost: Messages after the position `after` were removed before they were read. To
                continue after the gap, put `removed_to` of the error into the position.
            ConfigurationError: The topic keeps no history.
            TopicNotFound: The topic does not exist.
        """
        return await self._run(
            flows.read(self._context, since, until, after, upto, slots, limit, stored)
        )

    async def position(
        self,
        at: Literal["oldest", "newest"] | Moment = "newest",
        *,
        slots: Iterable[int] | None = None,
    ) -> Position:
        """Return a position in the history, for `read`.

        Args:
            at: "oldest" (before all messages that are kept), "newest" (after all messages that were
                acked so far), or a time. A time means the position before the first message acked
                at this time or later.
            slots: Indexes of the slots. Default: all slots that the topic has ever had.

        Raises:
            ConfigurationError: The topic keeps no history.
            TopicNotFound: The topic does not exist.
        """
        return await self._run(flows.position(self._context, at, slots))

    async def state(self) -> HistoryState | None:
        """Return the size and the oldest ack of the history, or None if no history is kept."""
        return await self._run(flows.state(self._context))
