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
    """Messages that end together. When all of them have ended, one message is sent: the callback.

    `with client.batch(...) as batch:` opens the batch, and closes it at the end of the block.
    After an exception the batch stays open, so that the program can continue it. The handler of a
    member gets the batch by `client.batch(delivery)`, and may add members.

    Guarantee:
        The callback is sent exactly once, when the batch is closed and all its members have ended:
        acked, dead, cancelled, expired, purged, dropped, or not found. A member that ends twice
        counts once. If a program opens a batch with a known name and sends the same dedup keys, no
        message is sent twice.
    """

    def open(self) -> State:
        """Create the batch, or find the batch that has this name. Return its state.

        Raises:
            BatchNotFound: The batch does not exist, and no `then` was given.
            InvalidValue: The existing batch has another callback topic, or another value of `dead`.
        """
        state: State = self._run(flows.open_batch(self._definition))
        return state

    def send(self, topic: Any, body: Any, **options: Any) -> SendResult:
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
        results = self.send_many(topic, [out])
        return results[0]

    def send_many(self, topic: Any, messages: Iterable[Outgoing]) -> list[SendResult]:
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
        results: list[SendResult] = self._run(flow)
        return results

    def close(self) -> State:
        """Close the batch, so that its callback is sent when all members have ended.

        Returns:
            "closed", or "done" if the callback is sent. A batch that is closed twice is not
            changed.

        Raises:
            BatchNotFound: The batch does not exist.
        """
        state: State = self._run(flows.close_batch(self._definition))
        return state

    def cancel(self) -> int:
        """Close the batch, and cancel its members that wait or run.

        The callback is sent when all members have ended. It says that the batch was cancelled.

        Returns:
            Number of members that were cancelled, or whose cancellation was requested.

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
