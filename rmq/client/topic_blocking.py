# Generated from rmq/client/topic.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.client.topic`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never

from rmq.client.topic import TopicBase
from rmq.features.messages import change
from rmq.features.messages.change import CancelStatus, PriorityStatus, RescheduleStatus
from rmq.features.queries.query import lease_of
from rmq.features.queries.query_blocking import Query
from rmq.features.queries.stage import discard_flow, flows_of, publish_flow
from rmq.features.queries.stage_blocking import Stage
from rmq.features.queries.stage_flows import PublishResult, StageContent
from rmq.features.schedules.declaration_blocking import Schedules
from rmq.kernel.consumer.consumer_blocking import Consumer
from rmq.kernel.consumer.flows import Mode
from rmq.kernel.core.ids import Id, MessageId
from rmq.kernel.core.message import Merge, Message, Outgoing, SendResult, refuse_unknown
from rmq.kernel.core.retry import RetryPolicy
from rmq.kernel.core.settings import Durability
from rmq.kernel.core.validation import Duration, Moment
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.producer import send as send_flow
from rmq.kernel.topic import opening, reading
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport


class Topic(TopicBase, Schedules):
    """A topic. Made by `Client.topic`; it reads Redis at its first call, or at `open`."""

    def __init__(self, transport: Transport, context: TopicContext, handlers: Handlers) -> None:
        super().__init__(context, handlers)
        self._transport = transport
        self._run = transport.run

    def open(self, create: bool = True) -> bool:
        """Create the topic, or compare the settings of the existing one; a first call does it, too.

        Args:
            create: False: a missing topic is an error.

        Returns:
            Whether this call created it.

        Raises:
            SettingsMismatch: it has other settings than were named.
            FormatMismatch: another version of RMQ wrote it, in a format of its own.
            TopicNotFound: it is missing and `create` is False.
        """
        return self._run(opening.open(self._context, create))

    def send(
        self,
        body: Any,
        *,
        priority: int | None = None,
        delay: Duration | None = None,
        at: Moment | None = None,
        merge_key: str | None = None,
        time_range: Duration | None = None,
        merge: Merge = "first",
        extend: bool = False,
        max_wait: Duration | None = None,
        slot_basis: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Duration | None = None,
        id: Id | None = None,
        dedup_key: str | bytes | None = None,
        retry: RetryPolicy | None = None,
        max_runtime: Duration | None = None,
        type: str | None = None,
        group: str | None = None,
        share_key: str | None = None,
        weight: int | None = None,
        durability: Durability | str | None = None,
        timeout: Duration | None = None,
        **unknown: Never,
    ) -> SendResult:
        """Send one message.

        The other arguments are the fields of `rmq.Outgoing`, described there.

        Args:
            durability: "memory", rmq.Replicated(...) or rmq.Fsync(...); None: the topic's setting.
            timeout: how long to wait for room where the topic's overflow is "block"; default 30 s.

        Guarantee:
            Once this returns, the message is in Redis as durably as asked. After OutcomeUnknown it
            may be: send again with the same `dedup_key`, or with `id=` of the same attempt (make
            one with `new_id`), which adds nothing where the first attempt arrived. Where the call
            is interrupted, by Ctrl-C or a cancellation, it may be, too.

        Raises:
            InvalidValue, InvalidType: an argument cannot work; nothing was sent.
            EncodeError, PayloadTooLarge: the body cannot be written, or is too large; nothing was
                sent.
            QueueFull: the topic is at max_length, or Redis at maxmemory.
            TopicPaused: sends are paused; nothing was stored.
            NotDurable: stored, but not as durably as asked.
            Unavailable: Redis was not reached.
            OutcomeUnknown: its reply was not.
        """
        if unknown:
            refuse_unknown(unknown)
        out = Outgoing(
            body, priority, delay, at, merge_key, time_range, merge, extend, max_wait, slot_basis,
            headers, expires, id, dedup_key, retry, max_runtime, type,
            group, share_key, weight,
        )  # fmt: skip
        return self._run(send_flow.send(self._context, out, durability, timeout))

    def send_many(
        self,
        messages: Iterable[Outgoing],
        *,
        durability: Durability | str | None = None,
        timeout: Duration | None = None,
    ) -> Sequence[SendResult]:
        """Send messages; one result for each, in order.

        All are checked and encoded before the first is sent. What goes to one slot is stored all or
        nothing, up to 1000 messages at a time; of those with a merge key up to 400.

        Raises:
            RMQError: what `send` raises; `results` of QueueFull and TopicPaused tell which messages
                were stored.
        """
        return self._run(send_flow.send_many(self._context, messages, durability, timeout))

    def new_id(
        self, slot_basis: str | bytes | None = None, *, group: str | None = None
    ) -> MessageId:
        """Return an id for a send that may have to be repeated: pass it to every attempt.

        Give the slot_basis or the group of the send, if it has one.
        """
        return self._run(send_flow.new_id(self._context, slot_basis, group))

    def get(self, id: Id) -> Message | None:
        """Return one message, wherever it is; None if it is settled or never was."""
        return self._run(reading.get(self._context, id))

    def cancel(self, id: Id) -> CancelStatus:
        """Cancel a waiting message: "cancelled", or "in_flight", "dead", "gone" (untouched)."""
        return self._run(change.cancel(self._context, id))

    def reschedule(
        self, id: Id, *, at: Moment | None = None, delay: Duration | None = None
    ) -> RescheduleStatus:
        """Reschedule a waiting message: "rescheduled", or "in_flight", "dead", "gone"."""
        return self._run(change.reschedule(self._context, id, at, delay))

    def set_priority(self, id: Id, priority: int) -> PriorityStatus:
        """Give a waiting message another priority; it joins that priority as the newest.

        Returns:
            "changed", "unchanged" (it had that priority), or "in_flight", "dead", "gone".
        """
        return self._run(change.set_priority(self._context, id, priority))

    def consumer(
        self,
        *,
        lease: Duration | None = None,
        mode: Mode = "at_least_once",
        ordered: bool = False,
    ) -> Consumer:
        """Return a consumer of this topic, for `with`.

        Args:
            lease: how long a delivery may be worked on before it is rolled back, 1 s to 12 h; None:
                the topic's setting.
            mode: "at_least_once": a delivery is settled by ack; "at_most_once": it is settled
                before it is handed over. Then a message is lost where the process dies between
                the two, or the answer to the settling stays away for more than a minute.
            ordered: a slot gives out its next messages only when the ones before are settled,
                by any consumer; a failed one comes again before those behind it. Either all
                consumers of a topic should be ordered, or none.

        Guarantee:
            With `ordered`, messages of one slot_basis and one priority are handed over in the order
            of sending, by any number of consumers: the next one only when the one before is settled
            or in the same batch before it. A consumer that dies holds its slot until its lease
            expires.
        """
        return Consumer(self._transport, self._context, lease, mode, ordered)

    def query(
        self,
        run: str,
        owner: str,
        *,
        lease: Duration = 600.0,
        owner_lease: Duration = 15.0,
        exact: bool = False,
    ) -> Query:
        """Return a reader for engines that replay batches, as Spark does; see `rmq.Query`.

        Args:
            run: 32 hex digits: the name of the query for the life of its checkpoint.
            owner: the process that runs it now; other owners are refused meanwhile.
            lease: its messages go back to the queue when it is not renewed for so long, 1 s to
                12 h.
            owner_lease: how long other owners are refused after its last call.
            exact: a batch is settled only when all its messages were handed out. Then messages
                whose lease ran out before can still be settled, see `Query.settle`.
        """
        leased = lease_of(run, owner, lease, owner_lease, exact)
        return Query(self._transport, self._context, leased)

    def stage(
        self, name: str | None = None, *, keep: Duration = 86_400.0, late: bool = False
    ) -> Stage:
        """Return a place for messages that are published later, all together; see `rmq.Stage`.

        Args:
            name: 1 to 200 of A-Z a-z 0-9 . _ : -, used once; None: a random one.
            keep: how long unpublished messages stay after the last push, 1 s to 30 days.
            late: take messages whose time passed more than a year ago, too.
        """
        return Stage(self._transport, flows_of(self._context, name, keep, late))

    def publish(
        self,
        staged: Iterable[StageContent],
        *,
        query: str | None = None,
        batch: int | None = None,
        timeout: Duration | None = None,
    ) -> PublishResult:
        """Send staged messages, and drop their stages.

        Args:
            staged: of each stage, `Stage.staged`; also of stages of other topics of this
                Redis, which must exist.
            query: the query that publishes its batches in turn; give `batch` too. Publish its
                batches by one topic, where it is noted which stages of all topics are of a batch.
            batch: its number. A batch is published once: when a call was interrupted, the next one
                ends it with the stages of the first and drops its own; when it is published, or one
                after it, the stages given are dropped.
            timeout: how long to wait for room where the topic's overflow is "block"; default 30 s.

        Guarantee:
            Interrupted anywhere, and repeated, it continues: each staged message is accepted once.
            Without `query` that holds for these very stages; a message is also known by its id
            within the topic's dedup_window. Readers see messages as they are published, about 1000
            of a slot at a time. A delay, and the time range of a merge, count from publishing.

        Raises:
            StageLost: a stage is not as it was written; nothing, or nothing more, was published.
            QueueFull: the topic is at max_length, or Redis at maxmemory; publish again later.
            NotDurable: not as durable as the topic asks; publish again.
        """
        return self._run(publish_flow(self._context, staged, query, batch, timeout))

    def discard(self, staged: Iterable[StageContent], *, query: str | None = None) -> None:
        """Drop stages unpublished, except those of a batch of `query` that has begun."""
        self._run(discard_flow(self._context, staged, query))
