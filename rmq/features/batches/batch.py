"""A batch that a program opens, or the batch to which a handler's message belongs.

`Batch` is generated from `AsyncBatch`.
"""

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
    """The part of a batch that blocking and async batches share.

    Args:
        run: Function that runs a flow.
        definition: The batch.
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
        """Ids that could not become members of the batch.

        A message outside of the batch has the same dedup key or id, so nothing was sent.
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
    """Messages that end together. When all of them have ended, one message is sent: the callback.

    `async with client.batch(...) as batch:` opens the batch, and closes it at the end of the block.
    After an exception the batch stays open, so that the program can continue it. The handler of a
    member gets the batch by `client.batch(delivery)`, and may add members.

    Guarantee:
        The callback is sent exactly once, when the batch is closed and all its members have ended:
        acked, dead, cancelled, expired, purged, dropped, or not found. A member that ends twice
        counts once. If a program opens a batch with a known name and sends the same dedup keys, no
        message is sent twice.
    """

    async def open(self) -> State:
        """Create the batch, or find the batch that has this name. Return its state.

        Raises:
            BatchNotFound: The batch does not exist, and no `then` was given.
            InvalidValue: The existing batch has another callback topic, or another value of `dead`.
        """
        state: State = await self._run(flows.open_batch(self._definition))
        return state

    async def send(self, topic: Any, body: Any, **options: Any) -> SendResult:
        """Send one message as a member of the batch.

        Args:
            topic: Topic, or its name.
            body: Body of the message.
            options: Fields of `rmq.Outgoing`, except those of merging messages.

        Raises:
            BatchClosed: The batch takes no new members.
            BatchNotFound: The batch does not exist.
            RMQError: As for `send_many` of a topic.
        """
        try:
            out = Outgoing(body, **options)
        except TypeError:
            refuse_unknown(options)
            raise
        results = await self.send_many(topic, [out])
        return results[0]

    async def send_many(self, topic: Any, messages: Iterable[Outgoing]) -> list[SendResult]:
        """Send messages as members of the batch. Return their results in order.

        In pages of 400, messages are first recorded as members and then sent. If the program dies
        in between, `rmq server` records the members that were not sent as lost. If a member with
        the same dedup key has ended, the message is not sent, and its result is "duplicate".

        Args:
            topic: Topic, or its name.
            messages: Messages without merge keys.

        Raises:
            BatchClosed: The batch takes no new members. Earlier pages were sent.
            BatchNotFound: The batch does not exist.
            RMQError: As for `send_many` of a topic.
        """
        flow = flows.send_many(self._definition, self._target(topic), messages)
        results: list[SendResult] = await self._run(flow)
        return results

    async def close(self) -> State:
        """Close the batch, so that its callback is sent when all members have ended.

        Returns:
            "closed", or "done" if the callback is sent. A batch that is closed twice is not
            changed.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        state: State = await self._run(flows.close_batch(self._definition))
        return state

    async def cancel(self) -> int:
        """Close the batch, and cancel its members that wait or run.

        The callback is sent when all members have ended. It says that the batch was cancelled.

        Returns:
            Number of members that were cancelled, or whose cancellation was requested.

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
