"""Flows of a query: take messages into its log, hand them out, settle them, give them back.

A query may be asked the same twice, and by two drivers: the answer is the same for as long as the
query holds its messages. See `lua/query_take.lua`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from rmq.errors import QueryOwned
from rmq.features.queries import scripts
from rmq.features.queries.scripts import QueryPage, QuerySettleReply
from rmq.kernel.consumer import receive, rollback, scripts as consumer_scripts
from rmq.kernel.consumer.rollback import QUERY_MOST
from rmq.kernel.consumer.scripts import QueryLease, QueryLog
from rmq.kernel.core import failure
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import opening, reading, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import POLL_S, AwaitSignal, Flow, RawCommand, Subscription, pipeline

TAKE_MOST = 500  # messages of one call: a few ms of the server's time

Offsets = Mapping[int, int]  # slot -> number in its log; a slot that is not there: 0
NEWEST = 9_000_000_000_000_000  # as far as scripts count


T = TypeVar("T", QueryLog, QuerySettleReply)


def _check_owner(context: TopicContext, lease: QueryLease, answers: Sequence[T]) -> Sequence[T]:
    for answer in answers:
        if answer.owner:
            left_s = answer.left_ms / 1000
            raise QueryOwned(
                f"query {lease.run} of topic {context.name!r} is run by {answer.owner}, for "
                f"{left_s:.1f} s more unless it renews; two drivers cannot share one checkpoint. "
                "Stop the other one, or give this one a checkpoint and an output of its own",
                left_s,
            )
    return answers


def renew(
    context: TopicContext, lease: QueryLease, after: Offsets, upto: Offsets | None
) -> Flow[list[QueryLog]]:
    """Renew the lease of a query; return for each slot how much it holds of a batch.

    Raises:
        QueryOwned: another driver runs it.
    """
    yield from opening.ensure_open(context, create=False)
    answers = yield from pipeline(
        [
            scripts.query_renew(
                keys, lease, after.get(keys.index, 0),
                NEWEST if upto is None else upto.get(keys.index, 0),
            )
            for keys in context.slots
        ]
    )  # fmt: skip
    return list(_check_owner(context, lease, answers))


def take(
    context: TopicContext, lease: QueryLease, after: Offsets, most: int | None
) -> Flow[dict[int, int]]:
    """Take messages beyond `after`; return the newest number of each slot.

    If the query has taken messages beyond `after` before, they are the answer, and nothing more is
    taken: the caller may have used them as a batch, and a batch of that number must not get other
    messages. Messages whose lease expired since then leave a gap in the numbers, so the answer may
    be a batch without any message.

    Args:
        context: the topic.
        lease: of the query.
        after: the newest number of each slot that the caller has noted.
        most: over all slots; None: all that may be taken now.

    Raises:
        QueryOwned: another driver runs it.
    """
    logs = yield from renew(context, lease, after, None)
    tails = {index: max(log.newest, after.get(index, 0)) for index, log in enumerate(logs)}
    if any(tails[index] > after.get(index, 0) for index in tails):
        return tails
    ready = yield from receive.next_ready(context.slots, False)
    # A slot that is ready has waiting messages, or expired leases of consumers or queries.
    for keys in context.slots:
        if ready[keys.index] == 0:
            yield from rollback.rollback_long(keys)
            yield from rollback.rollback(context, keys)
    wanted = (yield from _shares(context, most)) if 0 in ready else {}
    while wanted:
        asked = {index: min(TAKE_MOST, share) for index, share in wanted.items()}
        answers = yield from pipeline(
            [
                scripts.query_take(context.slots[index], lease, tails[index], limit)
                for index, limit in asked.items()
            ]
        )
        for (index, limit), answer in zip(
            asked.items(), _check_owner(context, lease, answers), strict=True
        ):
            tails[index] = answer.newest
            wanted[index] -= answer.held
            if answer.held < limit or wanted[index] <= 0:
                del wanted[index]
    return tails


def wait(context: TopicContext, subscription: Subscription, seconds: float) -> Flow[None]:
    """Sleep until there may be messages to take, for so long at most."""
    yield from opening.ensure_open(context, create=False)
    if subscription.held is None:
        yield AwaitSignal(subscription, 0)
    # Ask after subscribing: later messages send a signal, which may still get lost.
    ready = yield from receive.next_ready(context.slots, True)
    pause = min([seconds, POLL_S, *(us / 1_000_000 for us in ready if us >= 0)])
    if pause > 0:
        yield AwaitSignal(subscription, pause)


def open(context: TopicContext) -> Flow[None]:
    """Read the topic's settings, once."""
    yield from opening.ensure_open(context, create=False)


def waiting(context: TopicContext) -> Flow[list[int]]:
    """Count the messages of each slot that may be taken now."""
    yield from opening.ensure_open(context, create=False)
    return (yield from pipeline([topic_scripts.ready_count(keys) for keys in context.slots]))


def _shares(context: TopicContext, most: int | None) -> Flow[dict[int, int]]:
    """Share `most` among the slots: an equal part each, and no more than waits there."""
    ready = dict(enumerate((yield from waiting(context))))
    left = sum(ready.values()) if most is None else most
    shares = {}
    for position, (index, count) in enumerate(sorted(ready.items(), key=lambda slot: slot[1])):
        shares[index] = min(count, -(-left // (len(ready) - position)))
        left -= shares[index]
    return {index: share for index, share in shares.items() if share > 0}


def read(keys: SlotKeys, run: str, after: int, upto: int) -> Flow[QueryPage]:
    """Read a page of what a query holds of one slot; empty at its end."""
    page: QueryPage = yield scripts.query_read(keys, run, after, upto, BATCH_MAX)
    records = yield from reading.fetch(keys, page.ids, page.records)
    return page._replace(records=records)


def count_run(context: TopicContext, run: str, batch: str, by: str) -> Flow[int]:
    """Note that a run has begun a batch; return how many runs have begun it, this one included.

    Args:
        context: the topic.
        run: the query.
        batch: the name of the batch; it takes the place of the one before.
        by: the name of the run of the engine; given twice in a row, it counts once.
    """
    yield from opening.ensure_open(context, create=False)
    key = context.slots[0].query_stem + run.encode()
    kept = (yield RawCommand("query_begun", "HGET", key, "begun")) or b"\n\n0"
    name, last, runs = kept.decode().rsplit("\n", 2)
    count = int(runs) + (last != by) if name == batch else 1
    yield RawCommand("query_begun", "HSET", key, "begun", f"{batch}\n{by}\n{count}")
    return count


def settle(
    context: TopicContext, lease: QueryLease, upto: Offsets, batch: Offsets | None = None
) -> Flow[tuple[int, int]]:
    """Settle all messages up to these numbers; return how many, and how many are missing.

    Args:
        context: the topic.
        lease: of the query.
        upto: a batch ends with these numbers.
        batch: and has so many messages; absent: 0. Messages of it whose lease expired are settled
            too if they wait ever since. None: not known, so only messages held are settled.

    Raises:
        QueryOwned: another driver runs it.
    """
    yield from opening.ensure_open(context, create=False)
    total, missing = 0, 0
    since = {index: end - (batch or {}).get(index, 0) for index, end in upto.items()}
    left = {keys.index: keys for keys in context.slots if upto.get(keys.index, 0) > 0}
    while left:
        answers = yield from pipeline(
            [
                scripts.query_settle(context, keys, lease, since[index], upto[index], QUERY_MOST)
                for index, keys in left.items()
            ]
        )
        ended = dict(zip(left, _check_owner(context, lease, answers), strict=True))
        total += sum(reply.settled for reply in ended.values())
        missing += sum(reply.missing for reply in ended.values() if reply.gone < QUERY_MOST)
        left = {index: left[index] for index, reply in ended.items() if reply.gone == QUERY_MOST}
    return total, missing


def again(context: TopicContext, lease: QueryLease, upto: Offsets) -> Flow[None]:
    """Give a batch new numbers.

    Raises:
        QueryOwned: another driver runs it.
    """
    yield from opening.ensure_open(context, create=False)
    answers = yield from pipeline(
        [scripts.query_again(keys, lease, upto.get(keys.index, 0)) for keys in context.slots]
    )
    _check_owner(context, lease, answers)


def reject(context: TopicContext, lease: QueryLease, upto: Offsets, reason: str) -> Flow[int]:
    """Make all messages up to these numbers dead letters; return how many were held.

    Raises:
        QueryOwned: another driver runs it.
    """
    yield from opening.ensure_open(context, create=False)
    failure_entry, total = failure.encode(reason, failure.this_worker()), 0
    left = {keys.index: keys for keys in context.slots if upto.get(keys.index, 0) > 0}
    while left:
        answers = yield from pipeline(
            [
                scripts.query_reject(context, keys, lease, upto[index], failure_entry, QUERY_MOST)
                for index, keys in left.items()
            ]
        )
        ended = dict(zip(left, _check_owner(context, lease, answers), strict=True))
        total += sum(reply.settled for reply in ended.values())
        left = {index: left[index] for index, reply in ended.items() if reply.gone == QUERY_MOST}
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
