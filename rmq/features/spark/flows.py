"""Receive messages for a query, read them, settle them, or give them back.

A query has a log, which numbers the messages that the query has taken from the queue. A driver is
the process of the engine that runs the query. Two drivers may make the same call, and a driver may
repeat a call. A repeated call gets the same reply as long as the query has its messages. See
`lua/queries/query_take.lua`.

The owner of a query has a cache (`Known`). It says which numbers were taken, and which slots have
no messages. So the owner calls Redis only if something may have changed. After an error of Redis,
the owner clears the cache, because the cache may be wrong.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from rmq.errors import QueryOwned, TopicVanished
from rmq.features.spark import scripts
from rmq.features.spark.scripts import QueryLog, QuerySettleReply
from rmq.kernel.consumer import receive, rollback, scripts as consumer_scripts
from rmq.kernel.consumer.rollback import QUERY_MAX
from rmq.kernel.consumer.scripts import LONG_EXPIRED, QueryLease
from rmq.kernel.core import failure
from rmq.kernel.follow_ups.flows import send_copies
from rmq.kernel.topic import opening, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import (
    POLL_S,
    ROUND_S,
    AwaitSignal,
    Command,
    Flow,
    RawCommand,
    Subscription,
    pipeline,
)

CALL_MAX = 4000  # messages per call, which takes Redis a few ms
PIPELINE_MAX = 8000  # messages of a pipeline, during which Redis serves no other client
ROUNDS_MAX = 10_000  # maximum number of pipelines in one call of `take`

Offsets = Mapping[int, int]  # slot -> number in its log; a missing slot means 0
NEWEST = 9_000_000_000_000_000  # largest number that scripts can count to
NEVER = math.inf


T = TypeVar("T", QueryLog, QuerySettleReply)


class Known:
    """Cached state of the slots (parts) of a topic, for the process that runs a query.

    Args:
        subscription: Subscription to the wake-ups of the topic.

    Attributes:
        newest: For each slot, the number of the newest message that the query has received. None if
            unknown.
        ready_at: For each slot, the monotonic time from which the query can receive messages. NEVER
            means that a wake-up will announce messages. None means unknown.
        look_at: Time of the next check of some slots. The check needs no wake-up, because a wake-up
            can get lost.
        is_joint: Whether a JointQueries object receives the wake-ups and decides which slots to
            check. If so, `subscription` and `look_at` are not used.
    """

    __slots__ = ("_turn", "is_joint", "look_at", "newest", "ready_at", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.newest: dict[int, int] | None = None
        self.ready_at: list[float | None] = []
        self.look_at = 0.0
        self.is_joint = False
        self._turn = 0

    def forget(self) -> None:
        """Clear the cache, so that the next call reads everything from Redis again."""
        self.newest = None
        self.ready_at = [None] * len(self.ready_at)

    def fit(self, slots: int) -> None:
        """Adapt the cache to the number of slots. If no wake-ups can arrive, clear the cache."""
        if self.subscription.connection is None and not self.is_joint:
            self.ready_at = []
        self.ready_at += [None] * (slots - len(self.ready_at))

    def unknown(self) -> list[int]:
        """Return the slots (parts of the topic) about which the query must ask Redis."""
        return [index for index, at in enumerate(self.ready_at) if at is None]

    def ready(self) -> list[int]:
        """Return the slots (parts of the topic) that have messages now."""
        now = time.monotonic()
        return [index for index, at in enumerate(self.ready_at) if at is not None and at <= now]

    def note_signals(self, slots: Iterable[int]) -> None:
        """Record that these slots have messages, because Redis sent a wake-up for each of them."""
        for index in slots:
            if index < len(self.ready_at):
                self.ready_at[index] = 0.0

    def look(self) -> None:
        """Make the state of the next few slots unknown, so that the next call reads it again.

        In ROUND_S seconds, the method does this for each slot once.
        """
        self.look_at = time.monotonic() + POLL_S
        count = len(self.ready_at)
        for _ in range(math.ceil(count * POLL_S / ROUND_S)):
            self._turn = (self._turn + 1) % count
            self.ready_at[self._turn] = None


def _in_pipelines(counts: Mapping[int, int]) -> Iterator[list[tuple[int, int]]]:
    part: list[tuple[int, int]] = []
    messages = 0
    for index, count in counts.items():
        if part and messages + count > PIPELINE_MAX:
            yield part
            part, messages = [], 0
        part.append((index, count))
        messages += count
    if part:
        yield part


def _limits(wanted: Sequence[int], left: float) -> dict[int, int]:
    limits = {}
    for place, index in enumerate(wanted):
        share = min(CALL_MAX, math.ceil(left / (len(wanted) - place))) if left < NEVER else CALL_MAX
        if share > 0:
            limits[index] = share
            left -= share
    return limits


class Settlement(NamedTuple):
    """The result of settling a batch.

    Attributes:
        settled: Number of messages that this call settled.
        missing: Number of messages of the batch whose lease expired, so that they cannot be
            settled. Other consumers received them, or they became dead letters.
    """

    settled: int
    missing: int


class QueryFlows:
    """The commands of a query, for the process (the driver) that runs the query.

    If another driver runs the query, all methods except `waiting`, `count_run` and `handed` raise
    QueryOwned.

    Args:
        context: Context of the topic.
        lease: Lease of the query.

    Attributes:
        read_bytes: Total bytes of records and bodies that readers have read from batches that this
            object settled.
    """

    def __init__(self, context: TopicContext, lease: QueryLease) -> None:
        self.read_bytes = 0
        self.context = context
        self.lease = lease
        self.known = Known(Subscription(context.channel))

    def open(self) -> Flow[None]:
        """Read the topic's settings, unless they are already known."""
        yield from opening.ensure_open(self.context, create=False)

    def _asked(self, calls: Sequence[Command[T]]) -> Flow[list[T]]:
        answers: list[T] = yield from pipeline(calls)
        for answer in answers:
            self.check_owner(answer)
        return answers

    def check_owner(self, answer: QueryLog | QuerySettleReply) -> None:
        """Raise QueryOwned if Redis has replied that another process runs the query."""
        if answer.owner:
            left_s = max(0.0, answer.left_ms / 1000)
            raise QueryOwned(
                f"query {self.lease.run} of topic {self.context.name!r} is run by "
                f"{answer.owner}, for {left_s:.1f} s more unless it renews; two drivers cannot "
                "share one checkpoint. Stop the other driver, or give this driver a checkpoint "
                "and an output of its own",
                left_s,
            )

    def renewals(
        self, slots: Iterable[int] | None, after: Offsets, upto: Offsets | None, report: bytes
    ) -> tuple[Command[QueryLog], list[Command[QueryLog]]]:
        """Return the calls that renew the query's lease, first the call for the first slot.

        `renew` describes the arguments. The topic must be open.
        """
        home, *others = self.context.slots
        if slots is not None:
            known = self.context.slots
            others = [known[index] for index in slots if 0 < index < len(known)]
        first, *calls = [
            scripts.query_renew(
                keys, self.lease, after.get(keys.index, 0),
                NEWEST if upto is None else upto.get(keys.index, 0), owns=keys is home,
                report=report if keys is home else b"",
            )
            for keys in (home, *others)
        ]  # fmt: skip
        return first, calls

    def renew(
        self,
        after: Offsets,
        upto: Offsets | None,
        slots: Iterable[int] | None = None,
        report: bytes = b"",
    ) -> Flow[list[QueryLog]]:
        """Renew the lease of the query. Return how many messages of a batch it still has, by slot.

        A slot is a part of the topic. The first slot stores which process runs the query (the
        owner). If another process is the owner, the call raises QueryOwned and does not renew the
        other slots.

        Args:
            after: For each slot, number of the last message before the batch.
            upto: For each slot, number of the last message of the batch. Default: the newest
                message.
            slots: Slots to renew in addition to the first slot. Default: all.
            report: Report of the owner, which RMQ stores in the first slot. b"" keeps the previous
                report.
        """
        yield from self.open()
        home, others = self.renewals(slots, after, upto, report)
        answers: list[QueryLog] = yield from self._asked([home])
        if others:
            answers += yield from self._asked(others)
        return answers

    def take(self, after: Offsets, most: int | None, most_bytes: int = 0) -> Flow[dict[int, int]]:
        """Receive more messages for the query. Return the newest number of each slot (part).

        If the query has already taken newer messages than the caller has recorded, the call returns
        their numbers and takes no more messages. The caller may have used these messages as a
        batch, and a batch must not change. If the lease of these messages has expired since then,
        the batch may be empty.

        Args:
            after: Newest number of each slot that the caller has recorded.
            most: Maximum number of messages over all slots, or None for all available messages.
            most_bytes: Maximum bytes of records and bodies over all slots, or 0 for no limit. Each
                slot may exceed the limit by one message.
        """
        resizes = 0
        while True:
            try:
                return (yield from self._take(after, most, most_bytes))
            except TopicVanished as error:
                resizes = yield from opening.follow_resize(self.context, error, resizes)

    def _take(self, after: Offsets, most: int | None, most_bytes: int) -> Flow[dict[int, int]]:
        yield from self.open()
        known, count = self.known, len(self.context.slots)
        # In a slot that a resize has added, the query must become the owner before it can take
        # messages.
        if known.newest is None or len(known.newest) < count:
            logs = yield from self.renew(after, None)
            known.newest = {index: log.newest for index, log in enumerate(logs)}
        known.fit(count)
        try:
            newest = {
                index: max(known.newest.get(index, 0), after.get(index, 0))
                for index in range(count)
            }
            if any(newest[index] > after.get(index, 0) for index in newest):
                return newest
            yield from self._ask()
            yield from self._take_ready(newest, most, most_bytes)
        except Exception:
            known.forget()
            raise
        known.newest = newest
        return dict(newest)

    def _take_ready(self, newest: dict[int, int], most: int | None, most_bytes: int) -> Flow[None]:
        slots, wanted, rolled_back = self.context.slots, self.known.ready(), set[int]()
        left = NEVER if most is None else most
        bytes_left = most_bytes
        for _ in range(ROUNDS_MAX):
            if not wanted or left <= 0 or (most_bytes and bytes_left <= 0):
                return
            limits = _limits(wanted, left)
            room = max(1, bytes_left // len(limits)) if most_bytes else 0
            for part in _in_pipelines(limits):
                calls = [
                    scripts.query_take(slots[index], self.lease, newest[index], limit, room)
                    for index, limit in part
                ]
                answers = yield from self._asked(calls)
                for (index, limit), answer in zip(part, answers, strict=True):
                    newest[index] = answer.newest
                    left -= answer.held
                    bytes_left -= answer.bytes
                    if answer.held == limit or answer.more:
                        continue
                    if answer.expired and index not in rolled_back:
                        rolled_back.add(index)
                        if answer.expired & LONG_EXPIRED:
                            yield from rollback.rollback_long(slots[index])
                        yield from rollback.rollback(self.context, slots[index])
                    else:
                        wanted.remove(index)
                        self.known.ready_at[index] = None

    def _ask(self) -> Flow[None]:
        """Ask Redis when slots will have messages, for slots whose state is unknown.

        If a slot has no messages, it records that the query waits. The slot then sends a wake-up
        when a message arrives.
        """
        asked = self.known.unknown()
        if not asked:
            return
        waits = yield from receive.next_ready([self.context.slots[index] for index in asked], True)
        now = time.monotonic()
        for index, wait_us in zip(asked, waits, strict=True):
            self.known.ready_at[index] = NEVER if wait_us < 0 else now + wait_us / 1_000_000

    def wait(self, seconds: float) -> Flow[bool]:
        """Wait for new messages, but at most `seconds`. Return whether there may be messages."""
        until, resizes = time.monotonic() + seconds, 0
        while True:
            try:
                return (yield from self._wait(until))
            except TopicVanished as error:
                resizes = yield from opening.follow_resize(self.context, error, resizes)

    def _wait(self, until: float) -> Flow[bool]:
        yield from self.open()
        known = self.known
        try:
            while True:
                if known.subscription.connection is None:
                    yield AwaitSignal(known.subscription, 0)
                    # No signal was received for messages that arrived before the subscription.
                    known.ready_at = []
                known.fit(len(self.context.slots))
                if known.ready():
                    return True
                yield from self._ask()
                now = time.monotonic()
                known.look_at = known.look_at or now + POLL_S
                soonest = min(at for at in known.ready_at if at is not None)
                pause = min(until, soonest, known.look_at) - now
                if pause > 0:
                    known.note_signals((yield AwaitSignal(known.subscription, pause)))
                now = time.monotonic()
                # Also check after a short wait. Otherwise a caller with short waits would never
                # check these slots.
                if now >= known.look_at:
                    known.look()
                if now >= until:
                    return bool(known.ready())
        except Exception:
            known.forget()
            raise

    def waiting(self) -> Flow[list[int]]:
        """Count the messages that the query can receive now, for each slot (part of the topic)."""
        yield from self.open()
        calls = [topic_scripts.ready_count(keys) for keys in self.context.slots]
        return (yield from pipeline(calls))

    def _key(self, slot: int) -> bytes:
        return self.context.slots[slot].query_stem + self.lease.run.encode()

    def count_run(self, batch: str, by: str) -> Flow[int]:
        """Record that a run of the engine has started a batch. Return the number of such runs.

        Args:
            batch: Name of the batch. A new name replaces the previous batch.
            by: Name of the engine's run. Several calls in a row by the same run count once.
        """
        yield from self.open()
        kept = (yield RawCommand("query_begun", "HGET", self._key(0), "begun")) or b"\n\n0"
        name, last, runs = kept.decode().rsplit("\n", 2)
        count = int(runs) + (last != by) if name == batch else 1
        text = f"{batch}\n{by}\n{count}"
        yield RawCommand("query_begun", "HSET", self._key(0), "begun", text)
        return count

    def handed(self, slot: int) -> Flow[int]:
        """Return the number of the newest message of a slot that a reader has received."""
        yield from self.open()
        return int((yield RawCommand("query_handed", "HGET", self._key(slot), "read")) or 0)

    def settle(self, upto: Offsets, batch: Offsets | None = None) -> Flow[Settlement]:
        """Settle the messages of a batch.

        Args:
            upto: Last number of the batch, for each slot.
            batch: Number of messages in the batch, for each slot. A missing slot counts as 0. With
                this argument, the call also settles messages whose lease has expired, unless a
                consumer has received them since. Without it, the call settles only messages that
                the query still has.
        """
        yield from self.open()
        context, slots, sizes = self.context, self.context.slots, batch or {}
        total = missing = 0
        since = {index: end - sizes.get(index, 0) for index, end in upto.items()}
        most = context.settings.call_max if context.settings.groups else CALL_MAX
        left = {
            index: min(most, sizes.get(index, most) or 1)
            for index, end in upto.items()
            if end > 0 and index < len(slots)
        }
        while left:
            again = {}
            for part in _in_pipelines(left):
                calls = [
                    scripts.query_settle(
                        context, slots[index], self.lease, since[index], upto[index], most
                    )
                    for index, _ in part
                ]
                replies = yield from self._asked(calls)
                for (index, _), reply in zip(part, replies, strict=True):
                    total += reply.settled
                    self.read_bytes += reply.bytes
                    if reply.left > 0:
                        again[index] = min(most, reply.left)
                    else:
                        missing += reply.missing
            left = again
        return Settlement(total, missing)

    def again(self, upto: Offsets) -> Flow[None]:
        """Give the messages of a batch new numbers, so that they are in the next batch."""
        self.known.forget()
        yield from self.open()
        slots = self.context.slots
        yield from self._asked(
            [scripts.query_again(keys, self.lease, upto.get(keys.index, 0)) for keys in slots]
        )

    def give_back(self, after: Offsets) -> Flow[int]:
        """Give messages back to the queue if no reader has received them. Return their number.

        Args:
            after: Last number to keep, for each slot.
        """
        self.known.forget()
        yield from self.open()
        context, lease, total = self.context, self.lease, 0
        left = list(context.slots)
        while left:
            calls = [
                scripts.query_release(context, keys, lease, after.get(keys.index, 0), QUERY_MAX)
                for keys in left
            ]
            answers = yield from self._asked(calls)
            total += sum(answer.held for answer in answers)
            left = [keys for keys, answer in zip(left, answers, strict=True) if answer.more]
        return total

    def reject(self, upto: Offsets, reason: str) -> Flow[int]:
        """Make the query's messages dead letters, up to a number for each slot. Return how many."""
        yield from self.open()
        context, lease, total = self.context, self.lease, 0
        entry = failure.encode(reason, failure.this_worker())
        left = [keys for keys in context.slots if upto.get(keys.index, 0) > 0]
        while left:
            calls = [
                scripts.query_reject(context, keys, lease, upto[keys.index], entry, QUERY_MAX)
                for keys in left
            ]
            replies = yield from self._asked(calls)
            total += sum(reply.settled for reply in replies)
            left = [k for k, reply in zip(left, replies, strict=True) if reply.left == QUERY_MAX]
        yield from send_copies(context, upto)
        return total


def release(context: TopicContext, run: str) -> Flow[int]:
    """Give back all messages of a query, even if its lease has not expired. Return their number."""
    yield from opening.ensure_open(context, create=False)
    total = 0
    for keys in context.slots:
        while True:
            reply = yield consumer_scripts.query_rollback(keys, run, QUERY_MAX, force=True)
            total += reply.back
            if not reply.more:
                break
    return total
