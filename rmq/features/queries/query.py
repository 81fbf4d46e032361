"""A query: a reader that gets the same messages again until it says that their batch is done.

For engines that replay: Spark plans a batch, notes where it ends, runs it, perhaps twice, and
settles it afterwards. The messages that a query takes are numbered in a log of its own and are in
flight for all consumers. The query holds one lease for each slot; when it expires, all messages of
the slot go back to the queue, which costs them a retry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import NamedTuple

from rmq.errors import InvalidType, InvalidValue
from rmq.features.queries import fail_flows, flows, scripts
from rmq.features.queries.fail_flows import FailedMessage, Failures
from rmq.features.queries.flows import Offsets, QueryFlows, Settlement
from rmq.features.queries.read_flows import PAGE_BYTES, Block, HeldPart, PartReader
from rmq.kernel.consumer.scripts import QueryLease, check_run
from rmq.kernel.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport


class Held(NamedTuple):
    """The messages of one slot that a query holds.

    Attributes:
        newest: the number of the newest message that it ever took.
        messages: how many it holds of the batch that was asked about.
        settled: the number of the newest message that was settled, rejected or given up.
        handed: the number of the newest message that `read` handed out.
    """

    newest: int
    messages: int
    settled: int
    handed: int


def wait_s(seconds: Duration) -> float:
    """Return a time to wait, in seconds, checked."""
    return duration_ms(seconds, "seconds", zero=True) / 1000


def lease_of(
    run: str, owner: str, lease: Duration, owner_lease: Duration, exact: bool
) -> QueryLease:
    """Return the name and the leases of a query, checked."""
    check_run(run)
    if not isinstance(owner, str):
        raise InvalidType(f"owner: {type(owner).__name__}; give a str")
    if not 1 <= len(owner.encode()) <= 200:
        raise InvalidValue("owner: give 1 to 200 bytes")
    return QueryLease(
        run,
        owner,
        duration_ms(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS),
        duration_ms(owner_lease, "owner_lease", LEASE_MIN_MS, LEASE_MAX_MS),
        exact,
    )


class QueryBase:
    """The lease of a query, and what is known of its slots."""

    def __init__(self, context: TopicContext, lease: QueryLease) -> None:
        self._context = context
        self._flows = QueryFlows(context, lease)

    @property
    def read_bytes(self) -> int:
        """Bytes of records and bodies that anyone read of the batches that this object settled.

        Whoever reads tells them at the end of its parts; what is read twice counts twice.
        """
        return self._flows.read_bytes

    @property
    def run(self) -> str:
        """The query's name: 32 hex digits, the same for the life of its checkpoint."""
        return self._flows.lease.run

    @property
    def max_retries(self) -> int:
        """The retries of a message of the topic, which must be open."""
        return self._context.settings.max_retries


def open_parts(
    transport: Transport, run: str, parts: Iterable[HeldPart], rows: int, size: int
) -> Callable[[], list[Block]]:
    """Return a function that reads the next page of parts of a batch, and nothing at their end.

    It reads several slots at a time. After an error it goes on where the last page ended.

    Args:
        transport: of a client; the topics need not be open.
        run: the query.
        parts: to be read, in this order.
        rows: most messages of a page.
        size: about how many bytes of records and bodies a page may have.
    """
    reader = PartReader(run, parts, rows, size)
    return lambda: transport.run(reader.read())


class AsyncQuery(QueryBase):
    """Messages of a topic for one run of a query. Made by `AsyncTopic.query`."""

    def __init__(self, transport: AsyncTransport, context: TopicContext, lease: QueryLease) -> None:
        super().__init__(context, lease)
        self._transport = transport
        self._run = transport.run

    async def slots(self) -> int:
        """Return the number of slots of the topic. Raises TopicNotFound."""
        await self._run(self._flows.open())
        return len(self._context.slots)

    async def waiting(self) -> list[int]:
        """Return how many messages of each slot may be taken now."""
        return await self._run(self._flows.waiting())

    async def take(
        self, after: Offsets, most: int | None = None, most_bytes: int | None = None
    ) -> dict[int, int]:
        """Take up to `most` messages beyond `after`; return the newest number of each slot.

        If messages beyond `after` were taken before, they are the answer, and nothing is taken: the
        same question has the same answer. Messages that were lost to another consumer since then
        leave their numbers unused, so a batch may be empty.

        Args:
            after: by slot, the number up to which the caller knows its messages; absent: 0.
            most: over all slots; None: all that may be taken now.
            most_bytes: of records and bodies over all slots, and a message of each more; None: any
                number. It costs reading the records.

        Raises:
            QueryOwned: another owner runs it.
        """
        return await self._run(self._flows.take(after, most, most_bytes or 0))

    async def wait(self, seconds: Duration) -> bool:
        """Sleep until there may be something to take, at most for this long; return whether so."""
        return await self._run(self._flows.wait(wait_s(seconds)))

    async def close(self) -> None:
        """Close the connection of its subscription. The messages it holds stay held."""
        await self._transport.unsubscribe(self._flows.known.subscription)

    async def renew(self, after: Offsets, upto: Offsets | None = None) -> list[Held]:
        """Hold everything for another lease; return how much of a batch is held, by slot.

        Raises:
            QueryOwned: another owner runs it.
        """
        logs = await self._run(self._flows.renew(after, upto))
        return [Held(log.newest, log.held, log.settled, log.handed) for log in logs]

    async def keep(self, slots: Iterable[int], report: Mapping[str, int] | None = None) -> None:
        """Stay the owner, and hold what it has of these slots for another lease.

        Args:
            slots: by index; the first one is always renewed.
            report: figures of the owner, by name, for those who list the query: at most 500 bytes
                as JSON. None: those of the last report stay.

        Raises:
            QueryOwned: another owner runs it.
        """
        said = scripts.encode_report(report)
        await self._run(self._flows.renew({}, {}, slots, said))

    async def handed(self, slot: int) -> int:
        """Return the number of the newest message of a slot that was handed out."""
        return await self._run(self._flows.handed(slot))

    async def read(self, slot: int, after: int, upto: int) -> AsyncIterator[Block]:
        """Iterate over the held messages of a slot between two numbers, in blocks.

        Reading changes nothing: the query keeps holding them.
        """
        await self._run(self._flows.open())
        context = self._context
        part = HeldPart(context.prefix, context.name, slot, after, upto, self.max_retries)
        reader = PartReader(self.run, [part], BATCH_MAX, PAGE_BYTES)
        while blocks := await self._run(reader.read()):
            for block in blocks:
                yield block

    async def begun(self, batch: str, by: str) -> int:
        """Note that a run has begun a batch; return how many runs have begun it, this one too.

        For an engine that gives a batch up after some attempts.

        Args:
            batch: the name of the batch; it takes the place of the one before.
            by: the name of the run; given twice in a row, it counts once.
        """
        return await self._run(self._flows.count_run(batch, by))

    async def settle(self, upto: Offsets, batch: Offsets | None = None) -> Settlement:
        """Settle everything up to these numbers for good.

        Args:
            upto: by slot, the number with which a batch ends that is done.
            batch: by slot, how many messages it has. For an `exact` query, messages whose lease
                expired are settled too, as long as no other consumer has taken them. None: only
                messages that are held are settled, and none counts as missing.

        Raises:
            QueryOwned: another owner runs it.
        """
        return await self._run(self._flows.settle(upto, batch))

    async def again(self, upto: Offsets) -> None:
        """Give a batch that ends with these numbers new ones, so that `take` returns it again.

        For an engine that has ended a batch without reading any of it.

        Raises:
            QueryOwned: another owner runs it.
        """
        await self._run(self._flows.again(upto))

    async def give_back(self, after: Offsets) -> int:
        """Give back what it took after these numbers, as if it had not; return how many messages.

        They go to the front of the queue, and it costs no retry. The next messages get their
        numbers, so nobody may have noted these. Where a message of a slot after its number was
        handed out, nothing of that slot is given back.

        Args:
            after: by slot; absent: 0.

        Raises:
            QueryOwned: another owner runs it.
        """
        return await self._run(self._flows.give_back(after))

    async def reject(self, upto: Offsets, reason: str) -> int:
        """Make everything up to these numbers dead letters; return how many messages.

        Raises:
            QueryOwned: another owner runs it.
        """
        return await self._run(self._flows.reject(upto, reason))

    async def fail(self, messages: Iterable[FailedMessage], *, retry: bool) -> Failures:
        """Fail single messages of a batch, each once, however often and by whom this is called.

        They stay in the batch: `read` returns them as before, as long as they have a record, and
        `settle` passes over them. A task may call this, whoever is the owner.

        Args:
            messages: that `read` returned.
            retry: give them back, at the cost of a retry, as `Consumer.nack` does; a message with
                none remaining becomes a dead letter. False: all become dead letters.

        Raises:
            InvalidValue: an id is of another slot or topic, or a delay is no such time.
        """
        return await self._run(fail_flows.fail(self._context, self.run, messages, retry))

    async def release(self) -> int:
        """Give back all that it holds, now; return how many messages. It costs each a retry."""
        self._flows.known.forget()
        return await self._run(flows.release(self._context, self.run))
