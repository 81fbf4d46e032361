# Generated from rmq/kernel/results/handle.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.kernel.results.handle`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rmq.errors import NotFinished
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.validation import Duration
from rmq.kernel.results import flows
from rmq.kernel.results.flows import ResultWait
from rmq.kernel.results.handle import HandleBase
from rmq.kernel.results.outcome import MessageOutcome, ResultState
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport


class ResultHandle(HandleBase):
    """A handle for the result of one message, as `topic.result(id)` returns it.

    Creating a handle does not call Redis. A handle uses no connection. You need not close it.
    """

    def __init__(self, transport: Transport, context: TopicContext, id: MessageId) -> None:
        super().__init__(context, id)
        self._transport = transport

    def wait(self, timeout: Duration | None = None) -> MessageOutcome:
        """Wait until the message has ended, and return how it has ended.

        All waiting callers of a client share one Pub/Sub connection. If the Redis user may not use
        the channel, a caller reads the result once a second.

        Args:
            timeout: Maximum wait, seconds or timedelta, or None for no limit. You may wait for a
                message that does not exist yet, for example for a follow-up that an ack will store.

        Raises:
            NotFinished: The message has not ended in time. The error is also a TimeoutError.
            ResultNotFound: The message keeps no result, or its result is no longer kept. In these
                cases the error is raised immediately. It is also raised if the id is still unknown
                after the timeout. The attribute `reason` says which case it is.
            Unavailable: Redis cannot be reached.
        """
        return self._transport.run(flows.wait(self._awaited, timeout))

    def read(self) -> ResultState:
        """Return the current state of the message without waiting.

        The state says where the message is, what its progress is, and how it has ended.

        Raises:
            TopicNotFound: The topic does not exist.
        """
        return (self._transport.run(flows.read(self._context, [self.id])))[0]


class Completion:
    """Yields handles in the order in which their messages end. See `rmq.as_completed`."""

    def __init__(self, handles: Iterable[ResultHandle], timeout: Duration | None = None) -> None:
        self._handles = {handle._awaited: handle for handle in handles}
        self._timeout = timeout

    def __iter__(self) -> Iterator[ResultHandle]:
        if not self._handles:
            return
        transport = next(iter(self._handles.values()))._transport
        waiting = ResultWait(list(self._handles), self._timeout)
        try:
            while waiting.left:
                finished = transport.run(waiting.next_finished())
                for awaited in finished:
                    yield self._handles[awaited]
                if not finished:
                    raise NotFinished(
                        f"as_completed: {waiting.left} of {len(self._handles)} messages have not "
                        "finished"
                    )
        finally:
            waiting.end()
