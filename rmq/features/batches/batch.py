"""The class `AsyncBatch`. The class `Batch` is generated from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, cast

from rmq.errors import InvalidType
from rmq.features.batches import flows, members
from rmq.features.batches.flows import BatchState, Definition, State
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing, SendResult, refuse_unknown
from rmq.kernel.follow_ups.encode import target_of
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow


class BatchBase:
    """Shared code of `Batch` and `AsyncBatch`.

    Args:
        run: Function that sends the commands of a generator to Redis.
        definition: Definition of the batch.
    """

    def __init__(self, run: Callable[[Flow[Any]], Any], definition: Definition) -> None:
        self._run = run
        self._definition = definition

    @property
    def name(self) -> str:
        """The name of the batch."""
        return self._definition.name

    @property
    def outside(self) -> list[MessageId]:
        """Ids of messages that could not join the batch.

        Another message, which is not in the batch, already has the same dedup key or id. So RMQ did
        not send the message of the batch.
        """
        return self._definition.outside

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _target(self, topic: Any) -> TopicContext:
        name = getattr(topic, "name", topic)
        if not isinstance(name, str):
            raise InvalidType(f"topic: {type(topic).__name__}; give a topic, or its name")
        home, own = self._definition.home, getattr(topic, "_context", None)
        # A program may declare a topic twice, with different codecs or results.
        if any(each is own for each in home.siblings):
            return cast(TopicContext, own)
        return target_of(home, name)[0]


class AsyncBatch(BatchBase):
    """A batch of messages. When all of them have ended, RMQ sends one more message: the callback.

    `async with client.batch(...) as batch:` opens the batch, and closes it at the end of the block.
    After an exception the batch stays open, so that the program can continue it. A handler calls
    `client.batch(delivery)` to get the batch of its message, and may add messages.

    Guarantee:
        RMQ sends the callback exactly once, when the batch is closed and all its messages have
        ended. A message ends when it is acked, dead, cancelled, expired, purged, dropped, or not
        found. A message that ends twice counts once. If a program opens a batch again with the same
        name and sends the same dedup keys, RMQ sends no message twice.
    """

    async def open(self) -> State:
        """Create the batch, or find an existing batch with this name. Return its state.

        Raises:
            BatchNotFound: The batch does not exist, and the caller gave no callback (`then`).
            InvalidValue: The existing batch has another callback topic, or another value of `dead`.
        """
        state: State = await self._run(flows.open_batch(self._definition))
        return state

    async def send(self, topic: Any, body: Any, **options: Any) -> SendResult:
        """Send one message in the batch.

        Args:
            topic: Topic, or its name.
            body: Body of the message.
            options: Fields of `rmq.Outgoing`. A merge key is not allowed.

        Raises:
            BatchClosed: The batch is closed, and accepts no more messages.
            BatchNotFound: The batch does not exist.
            RMQError: The same errors as `send_many` of a topic.
        """
        try:
            out = Outgoing(body, **options)
        except TypeError:
            refuse_unknown(options)
            raise
        results = await self.send_many(topic, [out])
        return results[0]

    async def send_many(self, topic: Any, messages: Iterable[Outgoing]) -> list[SendResult]:
        """Send messages in the batch. Return the result of each message, in order.

        The batch records each page of 400 messages as members, then sends the page. If the program
        dies between these steps, `rmq server` later records the unsent members as lost. If a member
        with the same dedup key has already ended, the message is not sent, and its result is
        "duplicate".

        Args:
            topic: Topic, or its name.
            messages: Messages without merge keys.

        Raises:
            BatchClosed: The batch is closed, and accepts no more messages. Earlier pages were sent.
            BatchNotFound: The batch does not exist.
            RMQError: The same errors as `send_many` of a topic.
        """
        flow = flows.send_many(self._definition, self._target(topic), messages)
        results: list[SendResult] = await self._run(flow)
        return results

    async def close(self) -> State:
        """Close the batch. RMQ sends the callback when all messages of the batch have ended.

        Returns:
            "closed", or "done" if all messages had ended, so that the callback is sent. A second
            close changes nothing.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        state: State = await self._run(flows.close_batch(self._definition))
        return state

    async def cancel(self) -> int:
        """Close the batch, and cancel its messages that wait or are in flight.

        RMQ sends the callback when all messages have ended. The callback says that the batch was
        cancelled.

        Returns:
            Number of messages that were cancelled, or whose cancellation was requested.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        changed: int = await self._run(members.cancel(self._definition))
        return changed

    async def read(self) -> BatchState:
        """Return the state of the batch.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        state: BatchState = await self._run(flows.read(self._definition))
        return state

    async def __aenter__(self) -> AsyncBatch:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
