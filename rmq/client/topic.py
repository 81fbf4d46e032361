"""A topic: send, read, cancel, reschedule and consume messages.

`make fmt` writes the blocking class from this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Never, NoReturn, TypeVar, overload

from rmq.errors import InvalidType
from rmq.features.history.history import AsyncTopicHistory
from rmq.features.messages import change
from rmq.features.messages.change import CancelStatus, PriorityStatus, RescheduleStatus
from rmq.features.schedules.declaration import AsyncSchedules
from rmq.features.spark.query import AsyncQuery, lease_of
from rmq.features.spark.stage import AsyncStage, discard_flow, flows_of, publish_flow
from rmq.features.spark.stage_flows import PublishResult, StageContent
from rmq.kernel.consumer.consumer import AsyncConsumer
from rmq.kernel.consumer.flows import Mode
from rmq.kernel.core.ids import Id, MessageId
from rmq.kernel.core.message import (
    Merge,
    Message,
    Outgoing,
    Receipt,
    SendResult,
    refuse_unknown,
)
from rmq.kernel.core.retry import RetryPolicy
from rmq.kernel.core.settings import Durability, Settings
from rmq.kernel.core.validation import Duration, Moment
from rmq.kernel.handlers.handler import Handler, Handlers, RetryOption, Rule, caller_locals
from rmq.kernel.producer import send as send_flow
from rmq.kernel.results import flows as results_flow
from rmq.kernel.results.handle import AsyncResultHandle
from rmq.kernel.results.outcome import ResultState
from rmq.kernel.topic import opening, reading
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.asyncio import AsyncTransport

F = TypeVar("F", bound=Callable[..., Any])


class TopicBase:
    """The name, the settings and the handlers of a topic."""

    def __init__(self, context: TopicContext, handlers: Handlers) -> None:
        self._context = context
        self._handlers = handlers

    def __reduce__(self) -> NoReturn:
        raise InvalidType("a topic cannot be pickled, because it has connections; pass its name")

    @property
    def name(self) -> str:
        """Name of the topic, without the prefix of its keys."""
        return self._context.name

    @property
    def settings(self) -> Settings:
        """Settings of the topic in Redis. They are available after `open()` or the first call."""
        return self._context.settings

    @overload
    def handler(self, function: F, /) -> F: ...

    @overload
    def handler(
        self,
        /,
        *,
        concurrency: int | None = ...,
        prefetch: int | None = ...,
        batch: int | None = ...,
        linger: Duration = ...,
        ordered: bool = ...,
        lease: Duration | None = ...,
        max_runtime: Duration | None = ...,
        retry: RetryOption | None = ...,
        on_error: Mapping[type[Exception], Rule] | None = ...,
        body: Any = ...,
        type: str | Sequence[str] | None = ...,
    ) -> Callable[[F], F]: ...

    def handler(
        self,
        function: Any = None,
        /,
        *,
        concurrency: int | None = None,
        prefetch: int | None = None,
        batch: int | None = None,
        linger: Duration = 0,
        ordered: bool = False,
        lease: Duration | None = None,
        max_runtime: Duration | None = None,
        retry: RetryOption | None = None,
        on_error: Mapping[type[Exception], Rule] | None = None,
        body: Any = None,
        type: str | Sequence[str] | None = None,
    ) -> Any:
        """Register a function as a handler of messages, and return the function. Workers run it.

        Use `@topic.handler`, or with options `@topic.handler(concurrency=16)`. A topic may have a
        handler for each type of message, and a handler without `type` for all other messages.
        Durations are in seconds or a timedelta.

        Args:
            concurrency: Maximum number of runs at a time. A plain function runs in threads (default
                8), and an async function runs in tasks (default 100).
            prefetch: Maximum number of deliveries that a worker has at a time, including running
                deliveries. By default, a worker has the running deliveries, and as many others as
                it can start within 0.2 s. The default is at most 1000, or two deliveries for each
                thread or task if this number is larger.
            batch: Maximum number of deliveries of a run, 1 to 1000. The function then gets a list
                of deliveries.
            linger: How long a batch that is not full waits for more messages, up to 60 s.
            ordered: Whether each slot (part) of the topic delivers its messages in strict order,
                across all workers.
            lease: Time after which a worker without a heartbeat loses its messages. Default: the
                topic's setting.
            max_runtime: Time limit of a run. A run that takes longer counts as failed. Default: no
                limit.
            retry: Delay before a retry: "immediate", rmq.Exponential, rmq.Levels, or a function of
                (delivery, error) that returns seconds. Default: the topic's setting.
            on_error: Rules by exception type: rmq.Retry, rmq.Reject, rmq.Snooze, or a retry policy.
            body: Type of the body, if an annotation cannot express the type.
            type: Type or types of the messages. Default: all types without a handler. All handlers
                of a topic must have the same `ordered` and `lease`.

        Raises:
            InvalidType, InvalidValue: The signature or an option is not valid, or the topic already
                has a handler for this type.
        """

        def register(function: F, depth: int = 2) -> F:
            self._handlers.add(
                Handler(
                    self._context, function, concurrency=concurrency, prefetch=prefetch,
                    batch=batch, linger=linger, ordered=ordered, lease=lease,
                    max_runtime=max_runtime, retry=retry, on_error=on_error, body=body, type=type,
                    local_names=caller_locals(depth),
                )
            )  # fmt: skip
            return function

        return register if function is None else register(function, 3)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class AsyncTopic(TopicBase, AsyncSchedules):
    """A topic, as `AsyncClient.topic` returns it. The first call, or `open`, opens it in Redis."""

    def __init__(
        self, transport: AsyncTransport, context: TopicContext, handlers: Handlers
    ) -> None:
        super().__init__(context, handlers)
        self._transport = transport
        self._run = transport.run

    async def open(self, create: bool = True) -> bool:
        """Create the topic.

        If the topic exists, compare its settings with the settings of this program.

        The first call on a topic does the same.

        Args:
            create: Whether to create a missing topic. If False, a missing topic is an error.

        Returns:
            Whether this call created the topic.

        Raises:
            SettingsMismatch: The topic has other settings than this program.
            FormatMismatch: Another version of RMQ wrote the topic in another format.
            TopicNotFound: The topic is missing and `create` is False.
        """
        return await self._run(opening.open(self._context, create))

    async def send(
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
        keep_result: Duration | None = None,
        durability: Durability | str | None = None,
        timeout: Duration | None = None,
        **unknown: Never,
    ) -> SendResult:
        """Send one message.

        `rmq.Outgoing` describes the arguments that are not listed here.

        Args:
            durability: "memory", rmq.Replicated(...) or rmq.Fsync(...). Default: the topic's
                setting.
            timeout: Longest wait for room if the topic's overflow is "block", in seconds or as a
                timedelta. Default: 30 s.

        Guarantee:
            After this call returns, the message is in Redis with the requested durability. If the
                call raises OutcomeUnknown, or Ctrl-C or a cancellation interrupts it, the message
                may be stored. Then send the message again with the same `dedup_key`, or with the
                same `id` (from `new_id`). If Redis has already stored the message, the second
                attempt adds no message.

        Raises:
            InvalidValue, InvalidType: An argument is not valid. No message was sent.
            EncodeError, PayloadTooLarge: The body cannot be encoded, or is too large. No message
                was sent.
            QueueFull: The topic is at max_length, or Redis is at maxmemory.
            TopicPaused: Sends are paused. No message was stored.
            NotDurable: The message is stored with less durability than requested.
            Unavailable: Redis could not be reached. No message was stored.
            OutcomeUnknown: The reply of Redis was lost, so the message may be stored.
        """
        if unknown:
            refuse_unknown(unknown)
        out = Outgoing(
            body, priority, delay, at, merge_key, time_range, merge, extend, max_wait, slot_basis,
            headers, expires, id, dedup_key, retry, max_runtime, type,
            group, share_key, weight, keep_result,
        )  # fmt: skip
        return await self._run(send_flow.send(self._context, out, durability, timeout))

    async def send_many(
        self,
        messages: Iterable[Outgoing],
        *,
        durability: Durability | str | None = None,
        timeout: Duration | None = None,
    ) -> Sequence[SendResult]:
        """Send messages. Return one result for each message, in order.

        All messages are checked and encoded before the first message is sent. The messages of one
        slot (part) of the topic are stored in batches of up to 1000 messages, or 400 if they have
        merge keys. Each batch is stored completely or not at all.

        Raises:
            RMQError: Any error that `send` raises. The `results` of QueueFull and TopicPaused show
                which messages were stored.
        """
        return await self._run(send_flow.send_many(self._context, messages, durability, timeout))

    async def new_id(
        self, slot_basis: str | bytes | None = None, *, group: str | None = None
    ) -> MessageId:
        """Return a new message id.

        If you may have to repeat a send, pass this id to every attempt. If the send has a
        `slot_basis` or a `group`, pass the same value to `new_id`.
        """
        return await self._run(send_flow.new_id(self._context, slot_basis, group))

    async def get(self, id: Id) -> Message | None:
        """Return a message from any queue, or None if it is settled or unknown."""
        return await self._run(reading.get(self._context, id))

    @cached_property
    def history(self) -> AsyncTopicHistory:
        """The reader of acked messages, if the topic's setting `history` keeps them."""
        return AsyncTopicHistory(self._transport, self._context)

    def result(self, id: Id) -> AsyncResultHandle:
        """Return a handle, with which you can read or await the result of a message.

        This call reads nothing from Redis.

        Args:
            id: Id of the message: `message_id` in the result of the send.

        Raises:
            InvalidValue: The id belongs to a message of another topic.
        """
        id = results_flow.check_id(self._context, id)
        return AsyncResultHandle(self._transport, self._context, id)

    async def results(self, ids: Iterable[Id]) -> list[ResultState]:
        """Return the state, the progress and the outcome of each message, in the order of the ids.

        The call does not wait for messages to end. It sends one command for each slot, or several
        commands if the replies exceed 1 MiB.
        """
        return await self._run(results_flow.read(self._context, ids))

    async def cancel(self, id: Id | Receipt, *, running: bool = False) -> CancelStatus:
        """Cancel a waiting message. With `running`, also cancel a message in flight.

        Args:
            id: Id of the message, or a receipt. With a receipt, only the delivery with this receipt
                can be cancelled.
            running: Whether to ask the consumer to cancel the current delivery.

        Returns:
            The status. "cancelled" means that the message was waiting and is now deleted.
                "requested" means that the message is in flight, and ends as cancelled unless its
                consumer acks it. "already_requested" means that an earlier call has requested this
                cancellation. "old_delivery" means that the receipt does not belong to the current
                delivery. With "in_flight" (without `running`), "in_query" (a query has the
                message), "dead" and "gone", the message was not changed.
        """
        return await self._run(change.cancel(self._context, id, running))

    async def reschedule(
        self, id: Id, *, at: Moment | None = None, delay: Duration | None = None
    ) -> RescheduleStatus:
        """Change the due time of a waiting message.

        Returns:
            "rescheduled", or "in_flight", "dead" or "gone" if the message does not wait.
        """
        return await self._run(change.reschedule(self._context, id, at, delay))

    async def set_priority(self, id: Id, priority: int) -> PriorityStatus:
        """Give a waiting message another priority.

        The message then waits behind all other messages with this priority.

        Returns:
            "changed", or "unchanged" if the message already had this priority. If the message does
                not wait: "in_flight", "dead" or "gone".
        """
        return await self._run(change.set_priority(self._context, id, priority))

    def consumer(
        self,
        *,
        lease: Duration | None = None,
        mode: Mode = "at_least_once",
        ordered: bool = False,
    ) -> AsyncConsumer:
        """Return a consumer of this topic, for `async with`.

        Args:
            lease: Time until an unsettled delivery is rolled back, 1 s to 12 h, in seconds or as a
                timedelta. Default: the topic's setting.
            mode: With "at_least_once", you settle each delivery, for example by ack. With
                "at_most_once", a message is settled before it is delivered. The message is lost if
                the process dies before you have handled it, or if the reply of Redis is missing for
                more than a minute.
            ordered: Whether a slot (part) of the topic delivers its next messages only after the
                previous messages are settled, across all consumers. A failed message is delivered
                again before later messages. Either all consumers of a topic should be ordered, or
                none.

        Guarantee:
            With `ordered`, messages with the same slot_basis and priority are delivered in the
                order of sending, to any number of consumers. A message is delivered after the
                previous message is settled, or behind the previous message in the same batch. If a
                consumer dies, its slot waits until the lease expires.
        """
        return AsyncConsumer(self._transport, self._context, lease, mode, ordered)

    def query(
        self,
        run: str,
        owner: str,
        *,
        lease: Duration = 600.0,
        owner_lease: Duration = 15.0,
        exact: bool = False,
    ) -> AsyncQuery:
        """Return a reader for engines that replay batches, such as Spark. See `rmq.AsyncQuery`.

        Args:
            run: Name of the query, 32 hex digits. Keep the name as long as you keep the query's
                checkpoint.
            owner: Name of the process that runs the query now. Other owners are refused.
            lease: Time without a renewal after which the messages go back to the queue, in seconds
                or as a timedelta, 1 s to 12 h.
            owner_lease: Time after the owner's last call during which other owners are refused, in
                seconds or as a timedelta.
            exact: Whether you settle a batch only if readers have received all its messages. If
                True, you can still settle messages whose lease has expired, see
                `AsyncQuery.settle`.
        """
        leased = lease_of(run, owner, lease, owner_lease, exact)
        return AsyncQuery(self._transport, self._context, leased)

    def stage(
        self, name: str | None = None, *, keep: Duration = 86_400.0, late: bool = False
    ) -> AsyncStage:
        """Return a store for messages that you publish together later. See `rmq.AsyncStage`.

        Args:
            name: Name that is used only once, 1 to 200 characters (A-Z a-z 0-9 . _ : -). Default: a
                random name.
            keep: Time for which unpublished messages are kept after the last push, in seconds or as
                a timedelta, 1 s to 30 days.
            late: Whether to accept messages whose due time passed more than a year ago.
        """
        return AsyncStage(self._transport, flows_of(self._context, name, keep, late))

    async def publish(
        self,
        staged: Iterable[StageContent],
        *,
        query: str | None = None,
        batch: int | None = None,
        timeout: Duration | None = None,
    ) -> PublishResult:
        """Send the messages of stages to their topics, and delete the stages.

        Args:
            staged: `AsyncStage.staged` of each stage. Stages of other existing topics in this Redis
                are allowed.
            query: Name of a streaming query that publishes one batch after the other. It requires
                `batch`. Call `publish` on the same topic for all batches of the query, because this
                topic records the stages of each batch.
            batch: Number of the batch. A batch is published once. If a call was interrupted, the
                next call publishes the stages of the interrupted call, and deletes the stages that
                you pass to it. If this batch or a later batch was already published, the stages
                that you pass are deleted.
            timeout: Longest wait for room if the topic's overflow is "block", in seconds or as a
                timedelta. Default: 30 s.

        Guarantee:
            If a call is interrupted, repeat it. The repeated call continues the work, and each
                staged message is accepted once. Without `query`, pass the same stages again. Within
                the topic's `dedup_window`, RMQ also recognises a message by its id. Readers do not
                see all messages at once: about 1000 messages of a slot become visible at a time.
                The delay of a message and the time range of its merge start when the message is
                published.

        Raises:
            StageLost: A stage has lost messages. No more messages were published.
            QueueFull: The topic is at max_length, or Redis is at maxmemory. Publish again later.
            NotDurable: The messages are less durable than the topic requires. Publish again.
        """
        return await self._run(publish_flow(self._context, staged, query, batch, timeout))

    async def discard(self, staged: Iterable[StageContent], *, query: str | None = None) -> None:
        """Delete stages that were not published.

        If `publish` has begun to publish a batch for the query with the name `query`, the stages of
        this batch are not deleted.
        """
        await self._run(discard_flow(self._context, staged, query))
