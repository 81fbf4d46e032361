# Generated from rmq/features/history/history.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.history.history`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from rmq.features.history import flows
from rmq.features.history.flows import HistoryPage, HistoryState, Position
from rmq.kernel.core.validation import Moment
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport


class TopicHistory:
    """Reads the acked messages that a topic keeps, see the setting `history`.

    Reading changes nothing and takes nothing from consumers. Any number of readers can each read
    everything.

    A position is a map from the index of each slot to the last entry that was read there, as text.
    You can store it as JSON; the indexes are then to be turned into numbers again.
    """

    def __init__(self, transport: Transport, context: TopicContext) -> None:
        self._run = transport.run
        self._context = context

    def read(
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
            since: Time of the first acks to read: an aware datetime, or epoch ms. Default: the
                oldest ack that is kept. Ignored for slots that `after` names.
            until: Time before which the acks were. Default: no end.
            after: Position behind which to read: `position` of an earlier page. Slots that it does
                not name are read from `since`, by default from their beginning.
            upto: Position up to which to read, for the slots that it names.
            slots: Indexes of the slots to read. Default: all slots that the topic ever had.
            limit: Maximum number of messages, 1 to 10 000. A page also ends after about 16 MiB.
            stored: Whether to leave offloaded bodies in their store. Otherwise they are read, if
                this process has the store.

        Guarantee:
            If each page is read behind the position of the page before it, each message of the
            history is returned once. This is also true while messages are acked, and after a
            resize. A page has the messages of a slot in the order of their acks. After a failover
            of Redis, messages whose acks the new master had not received are missing.

        Raises:
            HistoryLost: Messages behind the position of `after` were removed before they were read.
                To continue behind the gap, put `removed_to` of the error into the position.
            ConfigurationError: The topic keeps no history.
            TopicNotFound: The topic does not exist.
        """
        return self._run(flows.read(self._context, since, until, after, upto, slots, limit, stored))

    def position(
        self,
        at: Literal["oldest", "newest"] | Moment = "newest",
        *,
        slots: Iterable[int] | None = None,
    ) -> Position:
        """Return a position in the history, for `read`.

        Args:
            at: "oldest" (before all messages that are kept), "newest" (behind all messages that
                were acked so far), or a time: before the first message that was acked then or
                later.
            slots: Indexes of the slots. Default: all slots that the topic ever had.

        Raises:
            ConfigurationError: The topic keeps no history.
            TopicNotFound: The topic does not exist.
        """
        return self._run(flows.position(self._context, at, slots))

    def state(self) -> HistoryState | None:
        """Return the size of the history and its oldest ack; None if the topic keeps no history."""
        return self._run(flows.state(self._context))
