"""A query: a reader that gets the same messages again until it says that their batch is done.

For engines that replay: Spark plans a batch, notes where it ends, runs it, perhaps twice, and tells
afterwards that it is done. What a query takes stands in a log of its own, numbered, and is in
flight for everybody else. One lease for each slot stands for all of it; when that runs out,
everything goes back to the queue, and costs a retry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgpack

from rmq.core import record
from rmq.core.codec import JSON, MSGPACK, Compressed
from rmq.core.record import COLLECTS, Record
from rmq.core.settings import LEASE_MAX_MS, LEASE_MIN_MS
from rmq.core.topic_context import TopicContext
from rmq.core.validation import Duration, milliseconds
from rmq.errors import InvalidType, InvalidValue
from rmq.protocol.commands.query import Holder, check_run
from rmq.protocol.flows import Subscription, query
from rmq.transport import Transport

__all__ = ["Block", "Held", "Query", "Record", "Settlement", "envelope_of", "value_of"]

_COMPRESSED = Compressed()
Offsets = Mapping[int, int]


class Held(NamedTuple):
    """What a query holds of one slot.

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
    """What became of a batch that was settled.

    Attributes:
        settled: how many messages were settled by this call.
        missing: how many of the batch nobody can settle any more: its lease ran out, and others
            have had them since, or they are in the DeadQueue.
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
        records: envelope and body as they stand in Redis; `value_of` and `envelope_of` read one.
    """

    slot: int
    numbers: list[int]
    ids: list[bytes]
    attempts: list[int]
    records: list[bytes]


class Query:
    """Messages of a topic for one run of a query. Made by `Topic.query`."""

    def __init__(
        self,
        transport: Transport,
        context: TopicContext,
        run: str,
        owner: str,
        lease: Duration,
        owner_lease: Duration,
        exact: bool = False,
    ) -> None:
        check_run(run)
        if not isinstance(owner, str):
            raise InvalidType(f"owner: {type(owner).__name__}; give a str")
        if not 1 <= len(owner.encode()) <= 200:
            raise InvalidValue("owner: give 1 to 200 bytes")
        self._run = transport.run
        self._ask = transport.ask
        self._deafen = transport.unsubscribe
        self._subscription = Subscription(context.channel)
        self._context = context
        self._holder = Holder(
            run,
            owner,
            milliseconds(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS),
            milliseconds(owner_lease, "owner_lease", LEASE_MIN_MS, LEASE_MAX_MS),
            exact,
        )

    @property
    def run(self) -> str:
        """What names it: 32 hex digits, the same for as long as its checkpoint lives."""
        return self._holder.run

    def slots(self) -> int:
        """How many slots the topic has. Raises TopicNotFound."""
        self._run(query.waiting(self._context))
        return len(self._context.slots)

    def waiting(self) -> list[int]:
        """How many messages of each slot may be taken now."""
        return self._run(query.waiting(self._context))

    def take(self, after: Offsets, most: int | None = None) -> dict[int, int]:
        """Take up to `most` messages beyond `after`; the newest number of each slot.

        Where messages beyond `after` were taken before, they are the answer, and nothing is taken:
        asked twice, it answers the same. Of those that lapsed in the meantime the numbers are left:
        no other message gets them, and a batch may be empty because of that.

        Args:
            after: by slot, the number up to which the caller knows its messages; absent: 0.
            most: over all slots; None: all that may be taken now.

        Raises:
            QueryOwned: another owner runs it.
        """
        return self._run(query.take(self._context, self._holder, after, most))

    def wait(self, seconds: Duration) -> None:
        """Sleep until there may be something to take, for so long at most, or less."""
        wait_s = milliseconds(seconds, "seconds", zero=True) / 1000
        self._run(query.wait(self._context, self._subscription, wait_s))

    def close(self) -> None:
        """Give up the connection on which it listens. What it holds stays held."""
        self._deafen(self._subscription)

    def renew(self, after: Offsets, upto: Offsets | None = None) -> list[Held]:
        """Hold everything for another lease; by slot, how much of a batch is held.

        Raises:
            QueryOwned: another owner runs it.
        """
        logs = self._run(query.renew(self._context, self._holder, after, upto))
        return [Held(log.newest, log.held, log.settled, log.handed) for log in logs]

    def read(self, slot: int, after: int, upto: int) -> Iterator[Block]:
        """What it holds of a slot between two numbers, a block at a time; it goes on holding it."""
        self._run(query.opened(self._context))
        keys, most = self._context.slots[slot], self._context.settings.max_retries
        while after < upto:
            page = self._run(query.read(keys, self.run, after, upto))
            if not page.ids:
                return
            after = page.numbers[-1]
            attempts = [most - int(one % 1000) + 1 if one >= 0 else 0 for one in page.receipts]
            if not attempts:
                attempts = [1] * len(page.ids)
            yield Block(slot, page.numbers, page.ids, attempts, page.records)

    def begun(self, batch: str, by: str) -> int:
        """How many runs have begun a batch, this one too; for an owner that gives up some time.

        Args:
            batch: what names it; it takes the place of the one before.
            by: what names the run; told twice, it counts once.
        """
        self._run(query.opened(self._context))
        key = self._context.slots[0].query_stem + self.run.encode()
        kept = (self._ask("query_begun", "HGET", key, "begun") or b"\n\n0").decode()
        name, last, runs = kept.rsplit("\n", 2)
        count = int(runs) + (last != by) if name == batch else 1
        self._ask("query_begun", "HSET", key, "begun", f"{batch}\n{by}\n{count}")
        return count

    def settle(self, upto: Offsets, batch: Offsets | None = None) -> Settlement:
        """Settle everything up to these numbers for good.

        Args:
            upto: by slot, the number with which a batch ends that is done.
            batch: by slot, how many messages it has. Of an `exact` query, what has lapsed of them
                is settled too, as long as nobody else has had it. None: only what is held is
                settled, and nothing counts as missing.

        Raises:
            QueryOwned: another owner runs it.
        """
        return Settlement(*self._run(query.settle(self._context, self._holder, upto, batch)))

    def again(self, upto: Offsets) -> None:
        """Give a batch that ends with these numbers new ones: the next `take` has it once more.

        For an engine that has ended a batch of which nobody has read anything.

        Raises:
            QueryOwned: another owner runs it.
        """
        self._run(query.again(self._context, self._holder, upto))

    def reject(self, upto: Offsets, reason: str) -> int:
        """Send everything up to these numbers to the DeadQueue; how many messages that were.

        Raises:
            QueryOwned: another owner runs it.
        """
        return self._run(query.reject(self._context, self._holder, upto, reason))

    def release(self) -> int:
        """Give back all that it holds, now; how many messages. It costs each a retry."""
        return self._run(query.release(self._context, self.run))


BARE = 8  # bytes before the body of a bare record


def is_bare(first: int) -> bool:
    """Whether a record that begins with this byte has nothing but its head before its body.

    And that body is as its producer's codec wrote it.
    """
    return not first & 31 and first >> 5 != Compressed.number


def value_of(entry: bytes) -> bytes:
    """The body of a record as its producer's codec wrote it, unpacked where it was compressed.

    Of a collecting message, the list of its bodies: JSON where they are JSON, else msgpack.

    Raises:
        DecodeError: the record is cut short, or cannot be unpacked.
    """
    if is_bare(entry[0]):
        return entry[BARE:]
    found = record.read(entry)
    if not found.flags & COLLECTS:
        return _plain(found.codec, found.body)[1]
    pieces = [_plain(found.codec, one) for one in record.pieces(found.body)]
    if all(number == JSON.number for number, _ in pieces):
        return b"[" + b",".join(one for _, one in pieces) + b"]"
    packed = [one if number == MSGPACK.number else msgpack.packb(one) for number, one in pieces]
    header: bytes = msgpack.Packer().pack_array_header(len(packed))
    return header + b"".join(packed)


def _plain(number: int, body: bytes) -> tuple[int, bytes]:
    """The number of the codec that wrote a body, and what it wrote."""
    if number != Compressed.number:
        return number, body
    codec, data = _COMPRESSED.opened(body, Compressed.limit)
    return codec.number, data


def envelope_of(entry: bytes) -> Record:
    """What stands before the body: priority, times, merge key, headers.

    Raises:
        DecodeError: the record is cut short.
    """
    return record.read(entry)
