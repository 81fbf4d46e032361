"""Flows of a query: take messages into its log, hand them out, settle them, give them back.

A query may be asked the same twice, and by two drivers: the answer is the same for as long as the
query holds its messages. See `lua/queries/query_take.lua`.

Its owner knows which numbers it has taken, and which slots have nothing; so it asks Redis only for
what it cannot know. `Known` is that knowledge; after an error of Redis it may be wrong, and is
forgotten.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from rmq.errors import QueryOwned, TopicVanished
from rmq.features.queries import scripts
from rmq.features.queries.scripts import QueryLog, QuerySettleReply
from rmq.kernel.consumer import receive, rollback, scripts as consumer_scripts
from rmq.kernel.consumer.rollback import QUERY_MOST
from rmq.kernel.consumer.scripts import LONG_EXPIRED, QueryLease
from rmq.kernel.core import failure
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

CALL_MOST = 4000  # messages of one call: a few ms of the server's time
PIPELINE_MOST = 8000  # messages of the calls in one pipeline: Redis serves nobody else meanwhile
ROUNDS_MAX = 10_000  # pipelines of one take

Offsets = Mapping[int, int]  # slot -> number in its log; a slot that is not there: 0
NEWEST = 9_000_000_000_000_000  # as far as scripts count
NEVER = math.inf


T = TypeVar("T", QueryLog, QuerySettleReply)


class Known:
    """Knowledge of the owner of a query.

    Args:
        subscription: to the signals of the topic.

    Attributes:
        newest: by slot, the number of the newest message it took; None: not known.
        ready_at: by slot, when it has something to take, by the monotonic clock; NEVER: when a
            signal says so; None: not known.
        look_at: when the next slots are asked although no signal came: it can get lost.
    """

    __slots__ = ("_turn", "look_at", "newest", "ready_at", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.newest: dict[int, int] | None = None
        self.ready_at: list[float | None] = []
        self.look_at = 0.0
        self._turn = 0

    def forget(self) -> None:
        """Ask Redis again: for the numbers, and in each slot."""
        self.newest = None
        self.ready_at = [None] * len(self.ready_at)

    def fit(self, slots: int) -> None:
        """Know of so many slots: a resize may have added some. Without signals nothing lasts."""
        if self.subscription.held is None:
            self.ready_at = []
        self.ready_at += [None] * (slots - len(self.ready_at))

    def unknown(self) -> list[int]:
        """Return the slots of which it is not known when they have something."""
        return [index for index, at in enumerate(self.ready_at) if at is None]

    def ready(self) -> list[int]:
        """Return the slots that have something now."""
        now = time.monotonic()
        return [index for index, at in enumerate(self.ready_at) if at is not None and at <= now]

    def note_signals(self, slots: Iterable[int]) -> None:
        """Note that slots have something: wake-up signals named them."""
        for index in slots:
            if index < len(self.ready_at):
                self.ready_at[index] = 0.0

    def look(self) -> None:
        """Take it that nothing is known of the next slots; of each once in ROUND_S."""
        self.look_at = time.monotonic() + POLL_S
        count = len(self.ready_at)
        for _ in range(math.ceil(count * POLL_S / ROUND_S)):
            self._turn = (self._turn + 1) % count
            self.ready_at[self._turn] = None


def _in_pipelines(counts: Mapping[int, int]) -> Iterator[list[tuple[int, int]]]:
    """Divide calls, by slot with the number of their messages, so that no pipeline has too many."""
    part: list[tuple[int, int]] = []
    messages = 0
    for index, count in counts.items():
        if part and messages + count > PIPELINE_MOST:
            yield part
            part, messages = [], 0
        part.append((index, count))
        messages += count
    if part:
        yield part


def _limits(wanted: Sequence[int], left: float) -> dict[int, int]:
    """Share what is left among slots; where it is less than they are, some get nothing."""
    limits = {}
    for place, index in enumerate(wanted):
        share = (
            min(CALL_MOST, math.ceil(left / (len(wanted) - place))) if left < NEVER else CALL_MOST
        )
        if share > 0:
            limits[index] = share
            left -= share
    return limits


class Settlement(NamedTuple):
    """The result of settling a batch.

    Attributes:
        settled: how many messages were settled by this call.
        missing: how many of the batch can no longer be settled: the lease expired, and other
            consumers have taken them since, or they are dead letters.
    """

    settled: int
    missing: int


class QueryFlows:
    """The flows of a query, for its owner.

    Each but `waiting`, `count_run` and `handed` raises QueryOwned where another driver runs it.

    Args:
        context: the topic.
        lease: of the query.

    Attributes:
        read_bytes: of records and bodies that anyone read of the batches that were settled here.
    """

    def __init__(self, context: TopicContext, lease: QueryLease) -> None:
        self.read_bytes = 0
        self.context = context
        self.lease = lease
        self.known = Known(Subscription(context.channel))

    def open(self) -> Flow[None]:
        """Read the topic's settings, once."""
        yield from opening.ensure_open(self.context, create=False)

    def _asked(self, calls: Sequence[Command[T]]) -> Flow[list[T]]:
        """Make calls that the owner alone may make."""
        answers: list[T] = yield from pipeline(calls)
        for answer in answers:
            if answer.owner:
                left_s = max(0.0, answer.left_ms / 1000)
                raise QueryOwned(
                    f"query {self.lease.run} of topic {self.context.name!r} is run by "
                    f"{answer.owner}, for {left_s:.1f} s more unless it renews; two drivers cannot "
                    "share one checkpoint. Stop the other one, or give this one a checkpoint and "
                    "an output of its own",
                    left_s,
                )
        return answers

    def renew(
        self,
        after: Offsets,
        upto: Offsets | None,
        slots: Iterable[int] | None = None,
        report: bytes = b"",
    ) -> Flow[list[QueryLog]]:
        """Renew the lease of a query; return for each slot how much it holds of a batch.

        The ownership is in the first slot; only who has it goes on to the others.

        Args:
            after: by slot, the number after which the batch begins.
            upto: by slot, the number with which it ends; None: with the newest.
            slots: the others to renew; None: all.
            report: of the owner, kept in the first slot; b"": the one before stays.
        """
        yield from self.open()
        home, *others = self.context.slots
        if slots is not None:
            known = self.context.slots
            others = [known[index] for index in slots if 0 < index < len(known)]
        answers: list[QueryLog] = []
        for group in ([home], others):
            calls = [
                scripts.query_renew(
                    keys, self.lease, after.get(keys.index, 0),
                    NEWEST if upto is None else upto.get(keys.index, 0), owns=keys is home,
                    report=report if keys is home else b"",
                )
                for keys in group
            ]  # fmt: skip
            if calls:
                answers += yield from self._asked(calls)
        return answers

    def take(self, after: Offsets, most: int | None, most_bytes: int = 0) -> Flow[dict[int, int]]:
        """Take messages beyond `after`; return the newest number of each slot.

        If the query has taken messages beyond `after` before, they are the answer, and nothing more
        is taken: the caller may have used them as a batch, and a batch of that number must not get
        other messages. Messages whose lease expired since then leave a gap in the numbers, so the
        answer may be a batch without any message.

        Args:
            after: the newest number of each slot that the caller has noted.
            most: over all slots; None: all that may be taken now.
            most_bytes: of records and bodies over all slots, and a message of each more; 0: any
                number.
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
        # In slots that a resize has added it becomes the owner before it takes.
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
        """Take from the slots that are ready, the same number from each as far as they have it."""
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
        """Ask the slots of which nothing is known when they have something.

        Where they have nothing, they note that somebody sleeps, and signal what comes.
        """
        asked = self.known.unknown()
        if not asked:
            return
        waits = yield from receive.next_ready([self.context.slots[index] for index in asked], True)
        now = time.monotonic()
        for index, wait_us in zip(asked, waits, strict=True):
            self.known.ready_at[index] = NEVER if wait_us < 0 else now + wait_us / 1_000_000

    def wait(self, seconds: float) -> Flow[bool]:
        """Sleep until there may be messages to take, for so long at most; return whether so."""
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
                if known.subscription.held is None:
                    yield AwaitSignal(known.subscription, 0)
                    known.ready_at = []  # what came before the subscription sent it no signal
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
                if now >= known.look_at:  # also if each wait is shorter: the next call asks then
                    known.look()
                if now >= until:
                    return bool(known.ready())
        except Exception:
            known.forget()
            raise

    def waiting(self) -> Flow[list[int]]:
        """Count the messages of each slot that may be taken now."""
        yield from self.open()
        calls = [topic_scripts.ready_count(keys) for keys in self.context.slots]
        return (yield from pipeline(calls))

    def _key(self, slot: int) -> bytes:
        return self.context.slots[slot].query_stem + self.lease.run.encode()

    def count_run(self, batch: str, by: str) -> Flow[int]:
        """Note that a run has begun a batch; return how many runs have begun it, this one included.

        Args:
            batch: the name of the batch; it takes the place of the one before.
            by: the name of the run of the engine; given twice in a row, it counts once.
        """
        yield from self.open()
        kept = (yield RawCommand("query_begun", "HGET", self._key(0), "begun")) or b"\n\n0"
        name, last, runs = kept.decode().rsplit("\n", 2)
        count = int(runs) + (last != by) if name == batch else 1
        text = f"{batch}\n{by}\n{count}"
        yield RawCommand("query_begun", "HSET", self._key(0), "begun", text)
        return count

    def handed(self, slot: int) -> Flow[int]:
        """Return the number of the newest message of a slot that was handed out."""
        yield from self.open()
        return int((yield RawCommand("query_handed", "HGET", self._key(slot), "read")) or 0)

    def settle(self, upto: Offsets, batch: Offsets | None = None) -> Flow[Settlement]:
        """Settle messages up to these numbers.

        Args:
            upto: a batch ends with these numbers.
            batch: and has so many messages; absent: 0. Messages of it whose lease expired are
                settled too if they wait ever since. None: not known, so only messages held are
                settled.
        """
        yield from self.open()
        context, slots, sizes = self.context, self.context.slots, batch or {}
        total = missing = 0
        since = {index: end - sizes.get(index, 0) for index, end in upto.items()}
        most = context.settings.call_max if context.settings.groups else CALL_MOST
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
        """Give a batch new numbers."""
        self.known.forget()
        yield from self.open()
        slots = self.context.slots
        yield from self._asked(
            [scripts.query_again(keys, self.lease, upto.get(keys.index, 0)) for keys in slots]
        )

    def give_back(self, after: Offsets) -> Flow[int]:
        """Give back what was taken after these numbers and never handed out; return how many."""
        self.known.forget()
        yield from self.open()
        context, lease, total = self.context, self.lease, 0
        left = list(context.slots)
        while left:
            calls = [
                scripts.query_release(context, keys, lease, after.get(keys.index, 0), QUERY_MOST)
                for keys in left
            ]
            answers = yield from self._asked(calls)
            total += sum(answer.held for answer in answers)
            left = [keys for keys, answer in zip(left, answers, strict=True) if answer.more]
        return total

    def reject(self, upto: Offsets, reason: str) -> Flow[int]:
        """Make all messages up to these numbers dead letters; return how many were held."""
        yield from self.open()
        context, lease, total = self.context, self.lease, 0
        entry = failure.encode(reason, failure.this_worker())
        left = [keys for keys in context.slots if upto.get(keys.index, 0) > 0]
        while left:
            calls = [
                scripts.query_reject(context, keys, lease, upto[keys.index], entry, QUERY_MOST)
                for keys in left
            ]
            replies = yield from self._asked(calls)
            total += sum(reply.settled for reply in replies)
            left = [k for k, reply in zip(left, replies, strict=True) if reply.left == QUERY_MOST]
        return total


def release(context: TopicContext, run: str) -> Flow[int]:
    """Give back all that a query holds, also if its lease has not expired; return how many."""
    yield from opening.ensure_open(context, create=False)
    total = 0
    for keys in context.slots:
        while True:
            reply = yield consumer_scripts.query_rollback(keys, run, QUERY_MOST, force=True)
            total += reply.back
            if not reply.more:
                break
    return total
