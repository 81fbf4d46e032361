"""A query: a reader that gets the same messages again until it says that their batch is done.

For engines that replay: Spark plans a batch, notes where it ends, runs it, perhaps twice, and
settles it afterwards. The messages that a query takes are numbered in a log of its own and are in
flight for all consumers. The query holds one lease for each slot; when it expires, all messages of
the slot go back to the queue, which costs them a retry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from rmq.errors import InvalidType, InvalidValue
from rmq.features.queries import flows
from rmq.features.queries.scripts import QueryPage as LogPage
from rmq.kernel.consumer.scripts import QueryLease, check_run
from rmq.kernel.core.settings import LEASE_MAX_MS, LEASE_MIN_MS
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.asyncio import AsyncTransport
from rmq.kernel.transport.steps import Subscription

__all__ = ["AsyncQuery", "Block", "Held", "Settlement"]

Offsets = Mapping[int, int]


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


class Settlement(NamedTuple):
    """The result of settling a batch.

    Attributes:
        settled: how many messages were settled by this call.
        missing: how many of the batch can no longer be settled: the lease expired, and other
            consumers have taken them since, or they are dead letters.
    """

    settled: int
    missing: int


class Block(NamedTuple):
    """Messages of one slot, column by column, in the order of their numbers.

    Attributes:
        slot: the index of the slot.
        numbers: in the query's log.
        ids: 16 bytes each; `rmq.MessageId(one)` reads it.
        attempts: 1 for the first delivery.
        records: envelope and body as stored in Redis; `rmq.connectors` reads them.
    """

    slot: int
    numbers: list[int]
    ids: list[bytes]
    attempts: list[int]
    records: list[bytes]


def wait_s(seconds: Duration) -> float:
    return duration_ms(seconds, "seconds", zero=True) / 1000


class QueryBase:
    """The name and the leases of a query, checked."""

    def __init__(
        self,
        context: TopicContext,
        run: str,
        owner: str,
        lease: Duration,
        owner_lease: Duration,
        exact: bool,
    ) -> None:
        check_run(run)
        if not isinstance(owner, str):
            raise InvalidType(f"owner: {type(owner).__name__}; give a str")
        if not 1 <= len(owner.encode()) <= 200:
            raise InvalidValue("owner: give 1 to 200 bytes")
        self._subscription = Subscription(context.channel)
        self._context = context
        self._holder = QueryLease(
            run,
            owner,
            duration_ms(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS),
            duration_ms(owner_lease, "owner_lease", LEASE_MIN_MS, LEASE_MAX_MS),
            exact,
        )

    @property
    def run(self) -> str:
        """The query's name: 32 hex digits, the same for the life of its checkpoint."""
        return self._holder.run

    def _block(self, slot: int, page: LogPage) -> Block:
        max_retries = self._context.settings.max_retries
        attempts = [
            max_retries - int(receipt % 1000) + 1 if receipt >= 0 else 0
            for receipt in page.receipts
        ]
        return Block(slot, page.numbers, page.ids, attempts or [1] * len(page.ids), page.records)


class AsyncQuery(QueryBase):
    """Messages of a topic for one run of a query. Made by `AsyncTopic.query`."""

    def __init__(
        self,
        transport: AsyncTransport,
        context: TopicContext,
        run: str,
        owner: str,
        lease: Duration,
        owner_lease: Duration,
        exact: bool = False,
    ) -> None:
        super().__init__(context, run, owner, lease, owner_lease, exact)
        self._transport = transport
        self._run = transport.run

    async def slots(self) -> int:
        """Return the number of slots of the topic. Raises TopicNotFound."""
        await self._run(flows.open(self._context))
        return len(self._context.slots)

    async def waiting(self) -> list[int]:
        """Return how many messages of each slot may be taken now."""
        return await self._run(flows.waiting(self._context))

    async def take(self, after: Offsets, most: int | None = None) -> dict[int, int]:
        """Take up to `most` messages beyond `after`; return the newest number of each slot.

        If messages beyond `after` were taken before, they are the answer, and nothing is taken: the
        same question has the same answer. Messages that were lost to another consumer since then
        leave their numbers unused, so a batch may be empty.

        Args:
            after: by slot, the number up to which the caller knows its messages; absent: 0.
            most: over all slots; None: all that may be taken now.

        Raises:
            QueryOwned: another owner runs it.
        """
        return await self._run(flows.take(self._context, self._holder, after, most))

    async def wait(self, seconds: Duration) -> None:
        """Sleep until there may be something to take, at most for this long."""
        await self._run(flows.wait(self._context, self._subscription, wait_s(seconds)))

    async def close(self) -> None:
        """Close the connection of its subscription. The messages it holds stay held."""
        await self._transport.unsubscribe(self._subscription)

    async def renew(self, after: Offsets, upto: Offsets | None = None) -> list[Held]:
        """Hold everything for another lease; return how much of a batch is held, by slot.

        Raises:
            QueryOwned: another owner runs it.
        """
        logs = await self._run(flows.renew(self._context, self._holder, after, upto))
        return [Held(log.newest, log.held, log.settled, log.handed) for log in logs]

    async def read(self, slot: int, after: int, upto: int) -> AsyncIterator[Block]:
        """Iterate over the held messages of a slot between two numbers, in blocks.

        Reading changes nothing: the query keeps holding them.
        """
        await self._run(flows.open(self._context))
        while after < upto:
            page = await self._run(flows.read(self._context.slots[slot], self.run, after, upto))
            if not page.ids:
                return
            after = page.numbers[-1]
            yield self._block(slot, page)

    async def begun(self, batch: str, by: str) -> int:
        """Note that a run has begun a batch; return how many runs have begun it, this one too.

        For an engine that gives a batch up after some attempts.

        Args:
            batch: the name of the batch; it takes the place of the one before.
            by: the name of the run; given twice in a row, it counts once.
        """
        return await self._run(flows.count_run(self._context, self.run, batch, by))

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
        return Settlement(*await self._run(flows.settle(self._context, self._holder, upto, batch)))

    async def again(self, upto: Offsets) -> None:
        """Give a batch that ends with these numbers new ones, so that `take` returns it again.

        For an engine that has ended a batch without reading any of it.

        Raises:
            QueryOwned: another owner runs it.
        """
        await self._run(flows.again(self._context, self._holder, upto))

    async def reject(self, upto: Offsets, reason: str) -> int:
        """Make everything up to these numbers dead letters; return how many messages.

        Raises:
            QueryOwned: another owner runs it.
        """
        return await self._run(flows.reject(self._context, self._holder, upto, reason))

    async def release(self) -> int:
        """Give back all that it holds, now; return how many messages. It costs each a retry."""
        return await self._run(flows.release(self._context, self.run))
