"""A query: a reader that gets the same batch of messages again until it settles the batch.

Queries are for engines that repeat batches after a failure. Spark plans a batch, records its end,
runs it (possibly twice), and settles it afterwards.

A query has its own log, which numbers the messages that the query takes. These messages are in
flight. The query has one lease for each slot (part) of the topic. If the lease of a slot expires,
all messages of the query in this slot go back to the queue. Each message then loses a retry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import NamedTuple

from rmq.errors import InvalidType, InvalidValue
from rmq.features.spark import fail_flows, flows, scripts
from rmq.features.spark.fail_flows import FailedMessage, Failures
from rmq.features.spark.flows import Offsets, QueryFlows, Settlement
from rmq.features.spark.read_flows import PAGE_BYTES, Block, HeldPart, PartReader
from rmq.kernel.consumer.scripts import QueryLease, check_run
from rmq.kernel.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport


class Held(NamedTuple):
    """The messages of one slot (part) of a topic that a query has in flight.

    Attributes:
        newest: Number of the newest message that the query ever took.
        messages: Number of messages of the batch that are still in flight.
        settled: Number of the newest message that was settled, rejected or lost.
        handed: Number of the newest message that `read` has returned.
    """

    newest: int
    messages: int
    settled: int
    handed: int


def wait_s(seconds: Duration) -> float:
    """Check a waiting time. Return it in seconds."""
    return duration_ms(seconds, "seconds", zero=True) / 1000


def lease_of(
    run: str, owner: str, lease: Duration, owner_lease: Duration, exact: bool
) -> QueryLease:
    """Check the arguments of a query. Return the lease of the query."""
    check_run(run)
    if not isinstance(owner, str):
        raise InvalidType(f"owner: {type(owner).__name__}; give a str")
    if not 1 <= len(owner.encode()) <= 200:
        raise InvalidValue("owner: pass 1 to 200 bytes")
    return QueryLease(
        run,
        owner,
        duration_ms(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS),
        duration_ms(owner_lease, "owner_lease", LEASE_MIN_MS, LEASE_MAX_MS),
        exact,
    )


class QueryBase:
    """Shared code of blocking and async queries: the lease, and the cached state of the slots."""

    def __init__(self, context: TopicContext, lease: QueryLease) -> None:
        self._context = context
        self._flows = QueryFlows(context, lease)

    @property
    def read_bytes(self) -> int:
        """Number of bytes that readers have read from the batches that this object has settled.

        Each reader reports its bytes when it has read its part of a batch. If bytes are read again,
        they count again.
        """
        return self._flows.read_bytes

    @property
    def run(self) -> str:
        """Name of the query: 32 hex digits. Spark stores the name in the query's checkpoint."""
        return self._flows.lease.run

    @property
    def max_retries(self) -> int:
        """Maximum number of retries of a message of the topic. The topic must be open."""
        return self._context.settings.max_retries


def open_parts(
    transport: Transport, run: str, parts: Iterable[HeldPart], rows: int, size: int
) -> Callable[[], list[Block]]:
    """Return a function that reads parts of a batch in pages.

    Each call returns the next page. An empty page marks the end. The function reads several slots
    at a time. After an error, it continues where the last page ended.

    Args:
        transport: Transport of a client. The topics need not be open.
        run: Name of the query.
        parts: Parts to read, in this order.
        rows: Maximum number of messages of a page.
        size: Approximate maximum bytes of records and bodies of a page.
    """
    reader = PartReader(run, parts, rows, size)
    return lambda: transport.run(reader.read())


class AsyncQuery(QueryBase):
    """A query on one topic. `AsyncTopic.query` returns it."""

    def __init__(self, transport: AsyncTransport, context: TopicContext, lease: QueryLease) -> None:
        super().__init__(context, lease)
        self._transport = transport
        self._run = transport.run

    async def slots(self) -> int:
        """Return the number of slots (parts) of the topic, or raise TopicNotFound."""
        await self._run(self._flows.open())
        return len(self._context.slots)

    async def waiting(self) -> list[int]:
        """Return how many messages the query can receive now, for each slot (part) of the topic."""
        return await self._run(self._flows.waiting())

    async def take(
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
        return await self._run(self._flows.take(after, most, most_bytes or 0))

    async def wait(self, seconds: Duration) -> bool:
        """Wait until messages are available, but at most `seconds`.

        Return whether there may be messages.
        """
        return await self._run(self._flows.wait(wait_s(seconds)))

    async def close(self) -> None:
        """Close the connection of the subscription. Messages in flight stay in flight."""
        await self._transport.unsubscribe(self._flows.known.subscription)

    async def renew(self, after: Offsets, upto: Offsets | None = None) -> list[Held]:
        """Renew the lease on all messages. Return which messages of a batch the query has, by slot.

        Raises:
            QueryOwned: Another process runs the query.
        """
        logs = await self._run(self._flows.renew(after, upto))
        return [Held(log.newest, log.held, log.settled, log.handed) for log in logs]

    async def keep(self, slots: Iterable[int], report: Mapping[str, int] | None = None) -> None:
        """Stay the process that runs the query, and renew the lease on messages of these slots.

        Args:
            slots: Indexes of the slots. The first slot is always renewed.
            report: Numbers by name, at most 500 bytes as JSON. Lists of queries show these numbers.
                Default: the previous report stays.

        Raises:
            QueryOwned: Another process runs the query.
        """
        said = scripts.encode_report(report)
        await self._run(self._flows.renew({}, {}, slots, said))

    async def handed(self, slot: int) -> int:
        """Return the number of the newest message that `read` has returned from a slot (part)."""
        return await self._run(self._flows.handed(slot))

    async def read(self, slot: int, after: int, upto: int) -> AsyncIterator[Block]:
        """Yield the messages of a slot (part) of the topic whose numbers are in a range, in blocks.

        Reading changes nothing. The messages stay in flight.
        """
        await self._run(self._flows.open())
        context = self._context
        part = HeldPart(context.prefix, context.name, slot, after, upto, self.max_retries)
        reader = PartReader(self.run, [part], BATCH_MAX, PAGE_BYTES)
        while blocks := await self._run(reader.read()):
            for block in blocks:
                yield block

    async def begun(self, batch: str, by: str) -> int:
        """Record that a run of the engine has started a batch. Return the number of such runs.

        Use this method if your engine gives up a batch after a number of attempts.

        Args:
            batch: Name of the batch. RMQ records only one batch, so a new name starts a new count.
            by: Name of the run. Several calls in a row by the same run count once.
        """
        return await self._run(self._flows.count_run(batch, by))

    async def settle(self, upto: Offsets, batch: Offsets | None = None) -> Settlement:
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
        return await self._run(self._flows.settle(upto, batch))

    async def again(self, upto: Offsets) -> None:
        """Give the messages of a batch new numbers, so that `take` returns them again.

        Use this method if your engine has ended a batch without reading its messages.

        Args:
            upto: Last number of the batch, for each slot.

        Raises:
            QueryOwned: Another process runs the query.
        """
        await self._run(self._flows.again(upto))

    async def give_back(self, after: Offsets) -> int:
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
        return await self._run(self._flows.give_back(after))

    async def reject(self, upto: Offsets, reason: str) -> int:
        """Make messages of the query dead letters, up to a number for each slot. Return how many.

        Raises:
            QueryOwned: Another process runs the query.
        """
        return await self._run(self._flows.reject(upto, reason))

    async def fail(self, messages: Iterable[FailedMessage], *, retry: bool) -> Failures:
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
        return await self._run(fail_flows.fail(self._context, self.run, messages, retry))

    async def release(self) -> int:
        """Give all messages back now. Return the number of messages. Each message loses a retry."""
        self._flows.known.forget()
        return await self._run(flows.release(self._context, self.run))
