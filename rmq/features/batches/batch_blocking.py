# Generated from rmq/features/batches/batch.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.batches.batch`."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rmq.features.batches import flows, members
from rmq.features.batches.batch import BatchBase
from rmq.features.batches.flows import BatchState, State
from rmq.kernel.core.message import Outgoing, SendResult, refuse_unknown


class Batch(BatchBase):
    """A batch of messages. When all of them have ended, RMQ sends one more message: the callback.

    `with client.batch(...) as batch:` opens the batch, and closes it at the end of the block.
    After an exception the batch stays open, so that the program can continue it. A handler calls
    `client.batch(delivery)` to get the batch of its message, and may add messages.

    Guarantee:
        RMQ sends the callback exactly once, when the batch is closed and all its messages have
        ended. A message ends when it is acked, dead, cancelled, expired, purged, dropped, or not
        found. A message that ends twice counts once. If a program opens a batch again with the same
        name and sends the same dedup keys, RMQ sends no message twice.
    """

    def open(self) -> State:
        """Create the batch, or find an existing batch with this name. Return its state.

        Raises:
            BatchNotFound: The batch does not exist, and the caller gave no callback (`then`).
            InvalidValue: The existing batch has another callback topic, or another value of `dead`.
        """
        state: State = self._run(flows.open_batch(self._definition))
        return state

    def send(self, topic: Any, body: Any, **options: Any) -> SendResult:
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
        results = self.send_many(topic, [out])
        return results[0]

    def send_many(self, topic: Any, messages: Iterable[Outgoing]) -> list[SendResult]:
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
        results: list[SendResult] = self._run(flow)
        return results

    def close(self) -> State:
        """Close the batch. RMQ sends the callback when all messages of the batch have ended.

        Returns:
            "closed", or "done" if all messages had ended, so that the callback is sent. A second
            close changes nothing.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        state: State = self._run(flows.close_batch(self._definition))
        return state

    def cancel(self) -> int:
        """Close the batch, and cancel its messages that wait or are in flight.

        RMQ sends the callback when all messages have ended. The callback says that the batch was
        cancelled.

        Returns:
            Number of messages that were cancelled, or whose cancellation was requested.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        changed: int = self._run(members.cancel(self._definition))
        return changed

    def read(self) -> BatchState:
        """Return the state of the batch.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        state: BatchState = self._run(flows.read(self._definition))
        return state

    def __enter__(self) -> Batch:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
