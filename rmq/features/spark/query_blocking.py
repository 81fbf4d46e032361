# Generated from rmq/features/spark/query.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.spark.query`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rmq.features.spark import fail_flows, flows, scripts
from rmq.features.spark.fail_flows import FailedMessage, Failures
from rmq.features.spark.flows import Offsets, Settlement
from rmq.features.spark.query import Held, QueryBase, wait_s
from rmq.features.spark.read_flows import PAGE_BYTES, Block, HeldPart, PartReader
from rmq.kernel.consumer.scripts import QueryLease
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport


class Query(QueryBase):
    """A query on one topic. `Topic.query` returns it."""

    def __init__(self, transport: Transport, context: TopicContext, lease: QueryLease) -> None:
        super().__init__(context, lease)
        self._transport = transport
        self._run = transport.run

    def slots(self) -> int:
        """Return the number of slots (parts) of the topic, or raise TopicNotFound."""
        self._run(self._flows.open())
        return len(self._context.slots)

    def waiting(self) -> list[int]:
        """Return how many messages the query can receive now, for each slot (part) of the topic."""
        return self._run(self._flows.waiting())

    def take(
        self, after: Offsets, most: int | None = None, most_bytes: int | None = None
    ) -> dict[int, int]:
        """Receive more messages as a new batch. Return the newest number of each slot.

        A slot is a part of the topic. A repeated call has the same result. If the query has already
        taken newer messages than `after` says, the call returns their numbers and takes no more
        messages. If the lease of these messages has expired and other consumers have received them,
        the batch may be empty.

        Args:
            after: Last number that the caller has recorded, for each slot. A missing slot counts as
                0.
            most: Maximum number of messages over all slots. Default: all available messages.
            most_bytes: Maximum bytes of records and bodies over all slots. Default: no limit. The
                result may exceed the limit by one message per slot. With a limit, the call is
                slower because Redis must read the records.

        Raises:
            QueryOwned: Another process runs the query.
        """
        return self._run(self._flows.take(after, most, most_bytes or 0))

    def wait(self, seconds: Duration) -> bool:
        """Wait until messages are available, but at most `seconds`.

        Return whether there may be messages.
        """
        return self._run(self._flows.wait(wait_s(seconds)))

    def close(self) -> None:
        """Close the connection of the subscription. Messages in flight stay in flight."""
        self._transport.unsubscribe(self._flows.known.subscription)

    def renew(self, after: Offsets, upto: Offsets | None = None) -> list[Held]:
        """Renew the lease on all messages. Return which messages of a batch the query has, by slot.

        Raises:
            QueryOwned: Another process runs the query.
        """
        logs = self._run(self._flows.renew(after, upto))
        return [Held(log.newest, log.held, log.settled, log.handed) for log in logs]

    def keep(self, slots: Iterable[int], report: Mapping[str, int] | None = None) -> None:
        """Stay the process that runs the query, and renew the lease on messages of these slots.

        Args:
            slots: Indexes of the slots. The first slot is always renewed.
            report: Numbers by name, at most 500 bytes as JSON. Lists of queries show these numbers.
                Default: the previous report stays.

        Raises:
            QueryOwned: Another process runs the query.
        """
        said = scripts.encode_report(report)
        self._run(self._flows.renew({}, {}, slots, said))

    def handed(self, slot: int) -> int:
        """Return the number of the newest message that `read` has returned from a slot (part)."""
        return self._run(self._flows.handed(slot))

    def read(self, slot: int, after: int, upto: int) -> Iterator[Block]:
        """Yield the messages of a slot (part) of the topic whose numbers are in a range, in blocks.

        Reading changes nothing. The messages stay in flight.
        """
        self._run(self._flows.open())
        context = self._context
        part = HeldPart(context.prefix, context.name, slot, after, upto, self.max_retries)
        reader = PartReader(self.run, [part], BATCH_MAX, PAGE_BYTES)
        while blocks := self._run(reader.read()):
            for block in blocks:
                yield block

    def begun(self, batch: str, by: str) -> int:
        """Record that a run of the engine has started a batch. Return the number of such runs.

        Use this method if your engine gives up a batch after a number of attempts.

        Args:
            batch: Name of the batch. RMQ records only one batch, so a new name starts a new count.
            by: Name of the run. Several calls in a row by the same run count once.
        """
        return self._run(self._flows.count_run(batch, by))

    def settle(self, upto: Offsets, batch: Offsets | None = None) -> Settlement:
        """Settle all messages of a batch permanently, up to a number for each slot.

        Args:
            upto: Last number of the finished batch, for each slot.
            batch: Number of messages in the batch, for each slot. With this argument, an `exact`
                query also settles messages whose lease has expired, unless another consumer has
                received them. By default, the call settles only messages that the query still has,
                and does not report missing messages.

        Raises:
            QueryOwned: Another process runs the query.
        """
        return self._run(self._flows.settle(upto, batch))

    def again(self, upto: Offsets) -> None:
        """Give the messages of a batch new numbers, so that `take` returns them again.

        Use this method if your engine has ended a batch without reading its messages.

        Args:
            upto: Last number of the batch, for each slot.

        Raises:
            QueryOwned: Another process runs the query.
        """
        self._run(self._flows.again(upto))

    def give_back(self, after: Offsets) -> int:
        """Give messages back to the queue if no reader has read them.

        Return the number of messages.

        The messages go to the front of the queue and lose no retry. Other messages will get the
        same numbers, so the caller must not have recorded these numbers. If `read` has already
        returned a message of a slot, the call gives back no message of this slot.

        Args:
            after: Last number to keep, for each slot. A missing slot counts as 0.

        Raises:
            QueryOwned: Another process runs the query.
        """
        return self._run(self._flows.give_back(after))

    def reject(self, upto: Offsets, reason: str) -> int:
        """Make messages of the query dead letters, up to a number for each slot. Return how many.

        Raises:
            QueryOwned: Another process runs the query.
        """
        return self._run(self._flows.reject(upto, reason))

    def fail(self, messages: Iterable[FailedMessage], *, retry: bool) -> Failures:
        """Give single messages of a batch back for a retry, or make them dead letters.

        Each message fails once, even if you repeat the call. The messages stay in the batch, and
        `settle` skips them. `read` returns them as long as their records exist. Any process may
        call this method, even if it does not own the query.

        Args:
            messages: Messages that `read` returned.
            retry: Whether to give the messages back for a retry, like `Consumer.nack`. A message
                without a remaining retry becomes a dead letter. If False, all messages become dead
                letters.

        Raises:
            InvalidValue: An id belongs to another slot or topic, or a delay is not valid.
        """
        return self._run(fail_flows.fail(self._context, self.run, messages, retry))

    def release(self) -> int:
        """Give all messages back now. Return the number of messages. Each message loses a retry."""
        self._flows.known.forget()
        return self._run(flows.release(self._context, self.run))
