# Generated from rmq/features/queries/query.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.queries.query`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rmq.features.queries import fail_flows, flows, scripts
from rmq.features.queries.fail_flows import FailedMessage, Failures
from rmq.features.queries.flows import Offsets, Settlement
from rmq.features.queries.query import Held, QueryBase, wait_s
from rmq.features.queries.read_flows import PAGE_BYTES, Block, HeldPart, PartReader
from rmq.kernel.consumer.scripts import QueryLease
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport


class Query(QueryBase):
    """Messages of a topic for one run of a query. Made by `Topic.query`."""

    def __init__(self, transport: Transport, context: TopicContext, lease: QueryLease) -> None:
        super().__init__(context, lease)
        self._transport = transport
        self._run = transport.run

    def slots(self) -> int:
        """Return the number of slots of the topic. Raises TopicNotFound."""
        self._run(self._flows.open())
        return len(self._context.slots)

    def waiting(self) -> list[int]:
        """Return how many messages of each slot may be taken now."""
        return self._run(self._flows.waiting())

    def take(
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
        return self._run(self._flows.take(after, most, most_bytes or 0))

    def wait(self, seconds: Duration) -> bool:
        """Sleep until there may be something to take, at most for this long; return whether so."""
        return self._run(self._flows.wait(wait_s(seconds)))

    def close(self) -> None:
        """Close the connection of its subscription. The messages it holds stay held."""
        self._transport.unsubscribe(self._flows.known.subscription)

    def renew(self, after: Offsets, upto: Offsets | None = None) -> list[Held]:
        """Hold everything for another lease; return how much of a batch is held, by slot.

        Raises:
            QueryOwned: another owner runs it.
        """
        logs = self._run(self._flows.renew(after, upto))
        return [Held(log.newest, log.held, log.settled, log.handed) for log in logs]

    def keep(self, slots: Iterable[int], report: Mapping[str, int] | None = None) -> None:
        """Stay the owner, and hold what it has of these slots for another lease.

        Args:
            slots: by index; the first one is always renewed.
            report: figures of the owner, by name, for those who list the query: at most 500 bytes
                as JSON. None: those of the last report stay.

        Raises:
            QueryOwned: another owner runs it.
        """
        said = scripts.encode_report(report)
        self._run(self._flows.renew({}, {}, slots, said))

    def handed(self, slot: int) -> int:
        """Return the number of the newest message of a slot that was handed out."""
        return self._run(self._flows.handed(slot))

    def read(self, slot: int, after: int, upto: int) -> Iterator[Block]:
        """Iterate over the held messages of a slot between two numbers, in blocks.

        Reading changes nothing: the query keeps holding them.
        """
        self._run(self._flows.open())
        context = self._context
        part = HeldPart(context.prefix, context.name, slot, after, upto, self.max_retries)
        reader = PartReader(self.run, [part], BATCH_MAX, PAGE_BYTES)
        while blocks := self._run(reader.read()):
            for block in blocks:
                yield block

    def begun(self, batch: str, by: str) -> int:
        """Note that a run has begun a batch; return how many runs have begun it, this one too.

        For an engine that gives a batch up after some attempts.

        Args:
            batch: the name of the batch; it takes the place of the one before.
            by: the name of the run; given twice in a row, it counts once.
        """
        return self._run(self._flows.count_run(batch, by))

    def settle(self, upto: Offsets, batch: Offsets | None = None) -> Settlement:
        """Settle everything up to these numbers for good.

        Args:
            upto: by slot, the number with which a batch ends that is done.
            batch: by slot, how many messages it has. For an `exact` query, messages whose lease
                expired are settled too, as long as no other consumer has taken them. None: only
                messages that are held are settled, and none counts as missing.

        Raises:
            QueryOwned: another owner runs it.
        """
        return self._run(self._flows.settle(upto, batch))

    def again(self, upto: Offsets) -> None:
        """Give a batch that ends with these numbers new ones, so that `take` returns it again.

        For an engine that has ended a batch without reading any of it.

        Raises:
            QueryOwned: another owner runs it.
        """
        self._run(self._flows.again(upto))

    def give_back(self, after: Offsets) -> int:
        """Give back what it took after these numbers, as if it had not; return how many messages.

        They go to the front of the queue, and it costs no retry. The next messages get their
        numbers, so nobody may have noted these. Where a message of a slot after its number was
        handed out, nothing of that slot is given back.

        Args:
            after: by slot; absent: 0.

        Raises:
            QueryOwned: another owner runs it.
        """
        return self._run(self._flows.give_back(after))

    def reject(self, upto: Offsets, reason: str) -> int:
        """Make everything up to these numbers dead letters; return how many messages.

        Raises:
            QueryOwned: another owner runs it.
        """
        return self._run(self._flows.reject(upto, reason))

    def fail(self, messages: Iterable[FailedMessage], *, retry: bool) -> Failures:
        """Fail single messages of a batch, each once, however often and by whom this is called.

        They stay in the batch: `read` returns them as before, as long as they have a record, and
        `settle` passes over them. A thread may call this, whoever is the owner.

        Args:
            messages: that `read` returned.
            retry: give them back, at the cost of a retry, as `Consumer.nack` does; a message with
                none remaining becomes a dead letter. False: all become dead letters.

        Raises:
            InvalidValue: an id is of another slot or topic, or a delay is no such time.
        """
        return self._run(fail_flows.fail(self._context, self.run, messages, retry))

    def release(self) -> int:
        """Give back all that it holds, now; return how many messages. It costs each a retry."""
        self._flows.known.forget()
        return self._run(flows.release(self._context, self.run))
