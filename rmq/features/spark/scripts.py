"""The Lua scripts of queries, stages and sinks.

A query takes messages into its log, which numbers them. Readers may read these messages as often as
they need. When a batch is done, the query settles or rejects its messages. `lua/lib/query.lua`
explains how queries are stored.

A stage stores messages that consumers cannot receive until the stage is published. A sink records
which batches of a query have been published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from rmq.errors import InvalidValue
from rmq.kernel.consumer.scripts import (
    QueryLease,
    QueryState,
    _query_keys,
    rollback_failure,
)
from rmq.kernel.core.keys import SlotKeys, sink_key
from rmq.kernel.core.score import HELD_MIN
from rmq.kernel.core.validation import EXACT_MAX, UNREADABLE
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader

REPORT_BYTES = (
    500  # maximum bytes of a report, as JSON; equal to REPORT_MAX in lua/queries/query_renew.lua
)
QUERY_DEADLINE_S = HELD_MIN // 1000  # deadline of held messages; QUERY_DEADLINE in lua


class QueryLog(NamedTuple):
    """Reply of the scripts query_take, query_renew, query_again and query_release."""

    # Messages of the requested batch that the query holds; query_release: messages given back.
    held: int
    newest: int  # newest number in the log
    left_ms: int = 0
    owner: str = ""  # if set, another owner has the query for `left_ms` more; nothing was done
    # Of query_renew:
    settled: int = 0  # newest settled number
    handed: int = 0  # newest number handed out
    # Of query_take and query_release:
    more: bool = False  # there may be more to take, or to give back
    # Of query_take:
    expired: int = 0  # kinds of expired leases to roll back: EXPIRED, LONG_EXPIRED, or both
    bytes: int = 0  # bytes of the taken records, if they were requested


class QueryPage(NamedTuple):
    """Reply of the script `query_read`, in columns."""

    after: int  # number before the first member
    members: bytes  # MEMBER_BYTES each
    # A receipt is -1 for a message outside of the PrepareQueue. The list is empty if no message
    # of the slot has failed.
    receipts: list[float]
    records: list[bytes]


class QuerySettleReply(NamedTuple):
    """Reply of the scripts query_settle and query_reject."""

    settled: int  # or rejected
    left: int  # ids of the batch left in the log; query_reject: ids that left the log
    missing: int = 0  # missing ids of the batch, over all calls so far
    left_ms: int = 0
    owner: str = ""  # if set, another owner has the query for `left_ms` more; nothing was done
    bytes: int = 0  # query_settle: bytes that were read since the last call


def _marks_key(keys: SlotKeys, run: str) -> bytes:
    return keys.querymarks_stem + run.encode()


def _asked_by(lease: QueryLease) -> tuple[Any, ...]:
    return clock.now_us, lease.run, lease.owner


def _other_owner(rest: list[Any]) -> tuple[int, str]:
    return (rest[0], rest[1].decode()) if rest else (0, "")


def _log(reply: list[Any]) -> QueryLog:
    return QueryLog(reply[0], reply[1], *_other_owner(reply[2:]))


def _renewed_log(reply: list[Any]) -> QueryLog:
    return QueryLog(reply[0], reply[1], *_other_owner(reply[4:]), settled=reply[2], handed=reply[3])


def _log_of_take(reply: list[Any]) -> QueryLog:
    return QueryLog(
        reply[0], reply[1], *_other_owner(reply[5:]),
        more=reply[2] == 1, expired=reply[3], bytes=reply[4],
    )  # fmt: skip


def _settle_reply(reply: list[Any]) -> QuerySettleReply:
    settled, left, missing, bytes_read = reply[:4]
    return QuerySettleReply(settled, left, missing, *_other_owner(reply[4:]), bytes_read)


def query_take(
    keys: SlotKeys, lease: QueryLease, after: int, limit: int, most_bytes: int = 0
) -> Command[QueryLog]:
    """Receive messages of a slot (part of a topic) for a query.

    `most_bytes` limits the size of the messages. 0 means no limit.
    """
    return Command(
        script_loader.load("query_take"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, *_query_keys(keys, lease.run), keys.queries, keys.bodies, keys.rates,
            keys.pending, keys.targets, keys.results, keys.keeping,
        ),
        [*_asked_by(lease), lease.lease_ms, after, limit, most_bytes, keys.created],
        _log_of_take,
    )  # fmt: skip


def query_renew(
    keys: SlotKeys,
    lease: QueryLease,
    after: int,
    upto: int,
    owns: bool = True,
    report: bytes = b"",
) -> Command[QueryLog]:
    """Renew the lease of a query. Count the messages of a batch that the query still has.

    The first slot of a topic stores who owns the query. With `owns`, the call renews the ownership.
    In other slots, the call only records that an earlier owner no longer has the slot. RMQ stores
    `report` for query_inspect. b"" keeps the previous report.
    """
    return Command(
        script_loader.load("query_renew"),
        (keys.slot, *_query_keys(keys, lease.run), keys.queries, keys.leases),
        [
            *_asked_by(lease), lease.lease_ms, lease.owner_ms if owns else 0, int(lease.exact),
            after, upto, report,
        ],
        _renewed_log,
    )  # fmt: skip


def encode_report(report: Mapping[str, int] | None) -> bytes:
    """Encode the numbers that a query reports. Return b"" for None.

    Raises:
        InvalidValue: The report is too large.
    """
    if report is None:
        return b""
    text = json.dumps(dict(report), separators=(",", ":")).encode()
    if len(text) > REPORT_BYTES:
        raise InvalidValue(f"report: {len(text)} bytes as JSON; pass at most {REPORT_BYTES}")
    return text


def read_report(text: bytes) -> dict[str, int]:
    """Decode the numbers of a query's report. Return an empty dict if the report is not valid."""
    try:
        found = json.loads(text)
    except UNREADABLE:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in found.items()
        if type(value) is int and abs(value) <= EXACT_MAX
    }


def query_read(
    keys: SlotKeys,
    run: str,
    after: int,
    upto: int,
    limit: int,
    records: bool = True,
    bytes_read: int = 0,
) -> Command[QueryPage]:
    """Return a page of the messages of a query, and record that a reader received them.

    If `records` is set, the call also returns the records. `bytes_read` is the number of bytes that
    the caller has read. query_settle returns the sum for all readers.
    """

    def parse(reply: list[Any]) -> QueryPage:
        receipts = [float(receipt) if receipt else -1.0 for receipt in reply[2]]
        return QueryPage(reply[0], reply[1], receipts, reply[3])

    return Command(
        script_loader.load("query_read"),
        (
            keys.slot, keys.prepare, keys.records, keys.failures, *_query_keys(keys, run),
            _marks_key(keys, run),
        ),
        [after, upto, limit, int(records), bytes_read],
        parse,
    )  # fmt: skip


def read_records(keys: SlotKeys, members: Sequence[bytes]) -> Command[list[bytes | None]]:
    """Read the records of messages with a plain command, which costs half as much as a script."""
    return Command(script_loader.plain("HMGET"), (keys.records,), members, list)


def query_settle(
    context: TopicContext, keys: SlotKeys, lease: QueryLease, since: int, upto: int, limit: int
) -> Command[QuerySettleReply]:
    """Settle the messages of a query in one slot (part of a topic), up to a number.

    Args:
        context: Context of the topic.
        keys: Keys of the slot.
        lease: Lease of the query.
        since: Number after which the batch starts. Earlier messages are settled only if the query
            still has them.
        upto: Last number of the batch.
        limit: Maximum number of messages of the call.
    """
    return Command(
        script_loader.load("query_settle"),
        (
            keys.slot, keys.prepare, keys.records, keys.failures, keys.settled0, keys.settled1,
            keys.audit, *_query_keys(keys, lease.run), keys.queries, keys.store, keys.bodies,
            _marks_key(keys, lease.run),
            keys.results, keys.keeping, keys.acked, keys.ackedparts,
        ),
        [
            *_asked_by(lease), context.channel, keys.index, since, upto, limit,
            rollback_failure(lease.run),
        ],
        _settle_reply,
    )  # fmt: skip


def query_again(keys: SlotKeys, lease: QueryLease, upto: int) -> Command[QueryLog]:
    """Give new numbers to the messages of a batch in one slot (part of a topic)."""
    return Command(
        script_loader.load("query_again"),
        (keys.slot, *_query_keys(keys, lease.run)),
        [*_asked_by(lease), upto],
        _log,
    )


def query_release(
    context: TopicContext, keys: SlotKeys, lease: QueryLease, after: int, limit: int
) -> Command[QueryLog]:
    """Give back messages with larger numbers than `after`, if no reader has received them."""
    return Command(
        script_loader.load("query_release"),
        (
            keys.slot, keys.store, keys.prepare, keys.failures, keys.records,
            *_query_keys(keys, lease.run), keys.queries,
        ),
        [*_asked_by(lease), context.channel, keys.index, after, limit],
        lambda reply: QueryLog(reply[0], reply[1], *_other_owner(reply[3:]), more=reply[2] == 1),
    )  # fmt: skip


def query_reject(
    context: TopicContext, keys: SlotKeys, lease: QueryLease, upto: int, reason: bytes, limit: int
) -> Command[QuerySettleReply]:
    """Make dead letters of a query's messages in one slot (part of a topic), up to a number."""
    return Command(
        script_loader.load("query_reject"),
        (
            keys.slot, keys.prepare, keys.records, keys.dead, keys.failures, keys.audit,
            *_query_keys(keys, lease.run), keys.bodies, _marks_key(keys, lease.run), keys.store,
            keys.pending, keys.targets, keys.results, keys.keeping,
        ),
        [*_asked_by(lease), context.channel, keys.index, upto, limit, reason],
        lambda reply: QuerySettleReply(reply[0], reply[1], 0, *_other_owner(reply[2:])),
    )  # fmt: skip


class Failing(NamedTuple):
    """A message of a batch that failed.

    Attributes:
        number: Number that the query gave to the message.
        member: Name of the message in Redis.
        error: Error that RMQ stores with the message.
        wait_ms: Time until the retry, in ms, or None for the topic's policy.
    """

    number: int
    member: bytes
    error: bytes
    wait_ms: int | None = None


def query_fail(
    context: TopicContext, keys: SlotKeys, run: str, failing: Sequence[Failing], retry: bool
) -> Command[str]:
    """Mark messages of a query in one slot (part of a topic) as failed. Sort them by number.

    With `retry`, the messages go back to the queue. Without it, they become dead letters. Return a
    character for each message: `r` (to be retried), `d` (a dead letter), `R` or `D` (failed by an
    earlier call), or `0` (not a message of the query).
    """
    return Command(
        script_loader.load("query_fail"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures,
            keys.audit, keys.bodies, *_query_keys(keys, run), _marks_key(keys, run),
            keys.pending, keys.targets, keys.results, keys.keeping,
        ),
        [
            clock.now_us, context.channel, keys.index, "f" if retry else "r",
            *(message.number for message in failing),
            *(message.member for message in failing),
            *(b"" if message.wait_ms is None else message.wait_ms for message in failing),
            *(message.error for message in failing),
        ],
        bytes.decode,
    )  # fmt: skip


def query_inspect(keys: SlotKeys, run: str) -> Command[QueryState]:
    """Return how many messages a query has in flight in one slot, and which process runs it."""
    return Command(
        script_loader.load("query_inspect"),
        (keys.slot, *_query_keys(keys, run)),
        [clock.now_us],
        lambda reply: QueryState(
            reply[0], reply[1], reply[2].decode(errors="backslashreplace"), reply[3]
        ),
    )


class PublishReply(NamedTuple):
    """Reply of the script `publish`."""

    left: int  # elements that remain in the stage
    stored: int
    duplicates: int
    merged: int


PUBLISH_PAUSED = PublishReply(-1, 0, 0, 0)  # sends are paused, and nothing was moved


class SinkReply(NamedTuple):
    """Reply of the script `sink_begin`."""

    state: str  # new, open, done
    batch: int = 0
    stages: bytes = b""


def stage_push(
    keys: SlotKeys,
    name: str,
    position: int,
    keep_ms: int,
    entry: Sequence[bytes | int],
    rests: Sequence[bytes] = (),
) -> Command[int]:
    """Append messages to a stage, as one entry. Return the new number of entries."""
    return Command(
        script_loader.load("stage_push"),
        (keys.slot, keys.stage_stem + name.encode()),
        [position, keep_ms, msgpack.packb(entry, use_bin_type=False), *rests],
        int,
    )


def stage_keep(keys: SlotKeys, name: str, keep_ms: int, length: int | None = None) -> Command[int]:
    """Keep a stage (messages to publish later) for some time.

    If the time is 0, delete the stage. The call fails if the stage does not have `length` entries.
    """
    return Command(
        script_loader.load("stage_keep"),
        (keys.stage_stem + name.encode(),),
        [keep_ms, b"" if length is None else length],
        int,
    )


def _publish_reply(reply: list[Any]) -> PublishReply | None:
    if len(reply) == 4:
        return PublishReply(*reply)
    return PUBLISH_PAUSED if reply[1] == b"P" else None


def publish(
    context: TopicContext, keys: SlotKeys, session: ReplaySession, name: str
) -> Command[PublishReply | None]:
    """Move the next messages of a stage into the queue. Return None if the slot is full."""
    return Command(
        script_loader.load("publish"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit, keys.stage_stem + name.encode(), keys.bodies, keys.prepare,
            keys.results, keys.keeping,
        ),
        [clock.now_us, context.channel, keys.index, session.call, keys.created],
        _publish_reply,
    )  # fmt: skip


def _sink_keys(context: TopicContext, query: str) -> tuple[bytes]:
    return (sink_key(context.prefix, context.name, query),)


def _sink_reply(reply: list[Any]) -> SinkReply:
    state, *begun = reply
    return (
        SinkReply(state.decode(), int(begun[0]), begun[1]) if begun else SinkReply(state.decode())
    )


def sink_begin(
    context: TopicContext, query: str, batch: int, stages: bytes = b""
) -> Command[SinkReply]:
    """Record which stages RMQ publishes as a batch of a query.

    A stage is a group of stored messages that are not yet in a queue. If an earlier call has
    recorded the stages of this batch, the call changes nothing. The reply has the recorded stages.
    If `stages` is b"", the call records nothing.
    """
    return Command(
        script_loader.load("sink_begin"), _sink_keys(context, query), [batch, stages], _sink_reply
    )


def sink_end(context: TopicContext, query: str, batch: int) -> Command[bool]:
    """Record that all messages of a query's batch are published."""
    return Command(script_loader.load("sink_end"), _sink_keys(context, query), [batch], bool)
