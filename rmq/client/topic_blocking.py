# Generated from rmq/client/topic.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.client.topic`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never

from rmq.client.topic import TopicBase
from rmq.features.messages import change
from rmq.features.messages.change import CancelStatus, PriorityStatus, RescheduleStatus
from rmq.features.schedules.declaration_blocking import Schedules
from rmq.features.spark.query import lease_of
from rmq.features.spark.query_blocking import Query
from rmq.features.spark.stage import discard_flow, flows_of, publish_flow
from rmq.features.spark.stage_blocking import Stage
from rmq.features.spark.stage_flows import PublishResult, StageContent
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
    """A topic, created by `Client.topic`; it reads Redis at its first call, or at `open`."""

    def __init__(self, transport: Transport, context: TopicContext, handlers: Handlers) -> None:
        super().__init__(context, handlers)
        self._transport = transport
        self._run = transport.run

    def open(self, create: bool = True) -> bool:
        """Create the topic, or compare the settings of an existing topic, as the first call does.

        Args:
            create: Whether to create a missing topic. False: a missing topic is an error.

        Returns:
            Whether this call created the topic.

        Raises:
            SettingsMismatch: The topic has other settings than this program.
            FormatMismatch: Another version of RMQ wrote the topic in another format.
            TopicNotFound: The topic is missing and `create` is False.
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
            timeout: Longest wait for room if the topic's overflow is "block"; default 30 s.

        Guarantee:
            After this returns, the message is in Redis with the requested durability. After
            OutcomeUnknown, or if the call is interrupted by Ctrl-C or a cancellation, the message
            may be stored. Then send it again with the same `dedup_key`, or with the `id` of the
            first attempt (from `new_id`): if the first attempt has arrived, this adds nothing.

        Raises:
            InvalidValue, InvalidType: An argument is not valid; nothing was sent.
            EncodeError, PayloadTooLarge: The body cannot be encoded, or is too large; nothing
                was sent.
            QueueFull: The topic is at max_length, or Redis is at maxmemory.
            TopicPaused: Sends are paused; nothing was stored.
            NotDurable: The message is stored with less durability than requested.
            Unavailable: Redis could not be reached; nothing was stored.
            OutcomeUnknown: The reply of Redis was lost, so the message may be stored.
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
        """Send messages; return one result for each, in order.

        All messages are checked and encoded before the first is sent. The messages of one slot are
        stored all or nothing, up to 1000 at a time; with a merge key up to 400.

        Raises:
            RMQError: The errors of `send`; `results` of QueueFull and TopicPaused tell which
                messages were stored.
        """
        return self._run(send_flow.send_many(self._context, messages, durability, timeout))

    def new_id(
        self, slot_basis: str | bytes | None = None, *, group: str | None = None
    ) -> MessageId:
        """Return an id for a send that may have to be repeated: pass it to every attempt.

        If the send has a slot_basis or a group, pass the same value here.
        """
        return self._run(send_flow.new_id(self._context, slot_basis, group))

    def get(self, id: Id) -> Message | None:
        """Return a message from any queue, or None if it is settled or unknown."""
        return self._run(reading.get(self._context, id))

    def cancel(self, id: Id) -> CancelStatus:
        """Cancel a waiting message: "cancelled", or "in_flight", "dead", "gone" (unchanged)."""
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
            lease: Time until an unsettled delivery is rolled back, 1 s to 12 h; None: the
                topic's setting.
            mode: "at_least_once": you settle a delivery by ack. "at_most_once": a message is
                settled before it is delivered; it is lost if the process dies in between, or if the
                reply of Redis is missing for more than a minute.
            ordered: A slot delivers its next messages only after the previous messages are settled,
                by any consumer; a failed message is delivered again before the messages after it.
                Either all consumers of a topic should be ordered, or none.

        Guarantee:
            With `ordered`, messages with the same slot_basis and priority are delivered in the
            order of sending, to any number of consumers: a message is delivered only after the
            previous message is settled, or after it in the same batch. If a consumer dies, its slot
            waits until the lease expires.
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
        """Return a reader for engines that replay batches, such as Spark; see `rmq.Query`.

        Args:
            run: Name of the query for the life of its checkpoint, 32 hex digits.
            owner: Name of the process that runs the query now; other owners are refused.
            lease: Time without a renewal after which the messages go back to the queue, 1 s
                to 12 h.
            owner_lease: Time after the owner's last call during which other owners are refused.
            exact: Whether a batch is settled only if all its messages were handed out. Then
                messages whose lease has expired can still be settled, see `Query.settle`.
        """
        leased = lease_of(run, owner, lease, owner_lease, exact)
        return Query(self._transport, self._context, leased)

    def stage(
        self, name: str | None = None, *, keep: Duration = 86_400.0, late: bool = False
    ) -> Stage:
        """Return a store for messages that are published together later; see `rmq.Stage`.

        Args:
            name: Name that is used once, 1 to 200 of A-Z a-z 0-9 . _ : -; None: a random name.
            keep: How long unpublished messages are kept after the last push, 1 s to 30 days.
            late: Whether to accept messages whose time passed more than a year ago.
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
        """Publish staged messages, and drop their stages.

        Args:
            staged: `Stage.staged` of each stage, also of stages of other topics in this Redis,
                which must exist.
            query: Name of a query that publishes its batches in turn; requires `batch`.
                Publish all its batches through one topic, which records the stages of all
                topics for each batch.
            batch: Number of the batch. A batch is published once: after an interrupted call, the
                next call publishes the stages of the first call and drops its own. If this or a
                later batch is published already, the given stages are dropped.
            timeout: Longest wait for room if the topic's overflow is "block"; default 30 s.

        Guarantee:
            Repeat an interrupted call, and it continues: each staged message is accepted once.
            Without `query`, this holds if you pass the same stages; within the topic's
            dedup_window, a message is also recognised by its id. Readers see messages as they are
            published, about 1000 of a slot at a time. Delays and time ranges of merges count from
            publishing.

        Raises:
            StageLost: A stage is not complete; nothing more was published.
            QueueFull: The topic is at max_length, or Redis is at maxmemory; publish again later.
            NotDurable: The messages are less durable than the topic requires; publish again.
        """
        return self._run(publish_flow(self._context, staged, query, batch, timeout))

    def discard(self, staged: Iterable[StageContent], *, query: str | None = None) -> None:
        """Drop unpublished stages, except the stages of a batch of `query` that has begun."""
        self._run(discard_flow(self._context, staged, query))
