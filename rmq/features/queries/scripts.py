"""Commands of queries, stages and sinks.

Queries take messages into a query's log, hand them out, settle them, or give up. A query hands out
the same messages as often as it is asked, and settles them when their batch is done.
`lua/lib/query.lua` says what a query is to the other scripts.

Stages put messages aside and publish them: nobody sees a staged message until it is published. A
sink remembers which batches of a query have been published.
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
from rmq.kernel.core.validation import EXACT_MOST, UNREADABLE
from rmq.kernel.topic import context as topic_context
from rmq.kernel.topic.context import ReplaySession, TopicContext
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader

REPORT_BYTES = (
    500  # of a query's owner, as JSON; twin of REPORT_MOST in lua/queries/query_renew.lua
)
QUERY_DEADLINE_S = HELD_MIN // 1000  # of what a query holds; twin of FAR in lua/lib/query.lua


class QueryLog(NamedTuple):
    """The reply to query_take, query_renew, query_again and query_release."""

    held: int  # messages of the batch that was asked about; query_release: how many it gave back
    newest: int  # number in the log
    left_ms: int = 0
    owner: str = ""  # another owner, for left_ms more; then nothing was done
    # Of query_renew:
    settled: int = 0  # the newest number that is settled
    handed: int = 0  # the newest number that was handed out
    # Of query_take and query_release:
    more: bool = False  # there may be more to take just now, or there are more to give back
    # Of query_take:
    expired: int = 0  # leases that want a rollback: EXPIRED, LONG_EXPIRED, or both
    bytes: int = 0  # of the records that were taken, where that was asked


class QueryPage(NamedTuple):
    """The reply to query_read, column by column."""

    after: int  # the number before the first member
    members: bytes  # MEMBER_BYTES each
    receipts: list[float]  # -1 where it left the PrepareQueue; empty: nothing has failed yet
    records: list[bytes]


class QuerySettleReply(NamedTuple):
    """The reply to query_settle and query_reject."""

    settled: int  # or rejected
    left: int  # ids of the batch in the log; query_reject: how many have left it
    missing: int = 0  # of the batch; so far, over all calls
    left_ms: int = 0
    owner: str = ""  # another owner, for left_ms more; then nothing was done
    bytes: int = 0  # query_settle: that were read since the last call


def _marks_key(keys: SlotKeys, run: str) -> bytes:
    return keys.querymarks_stem + run.encode()


def _asked_by(lease: QueryLease) -> tuple[Any, ...]:
    """Return the first arguments of what the owner of a query alone may do."""
    return topic_context.now_us, lease.run, lease.owner


def _other_owner(rest: list[Any]) -> tuple[int, str]:
    """Return the ms that another owner has left, and its name."""
    return (rest[0], rest[1].decode()) if rest else (0, "")


def _log(reply: list[Any]) -> QueryLog:
    return QueryLog(reply[0], reply[1], *_other_owner(reply[2:]))


def _renewed_log(reply: list[Any]) -> QueryLog:
    return QueryLog(reply[0], reply[1], *_other_owner(reply[4:]), settled=reply[2], handed=reply[3])


def _taken_log(reply: list[Any]) -> QueryLog:
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
    """Take messages of one slot into the log. `most_bytes`: of their records; 0: any number."""
    return Command(
        script_loader.load("query_take"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, *_query_keys(keys, lease.run), keys.queries, keys.bodies, keys.rates,
        ),
        [*_asked_by(lease), lease.lease_ms, after, limit, most_bytes, keys.created],
        _taken_log,
    )  # fmt: skip


def query_renew(
    keys: SlotKeys,
    lease: QueryLease,
    after: int,
    upto: int,
    owns: bool = True,
    report: bytes = b"",
) -> Command[QueryLog]:
    """Renew the lease of a query, and count what it holds of a batch.

    `owns`: renew the ownership here. It is renewed in the first slot of a topic; in the others the
    query takes over. `report`: kept for query_inspect; b"": the one before stays.
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
    """Return a report as it is stored; b"" for None.

    Raises:
        InvalidValue: it is too large.
    """
    if report is None:
        return b""
    text = json.dumps(dict(report), separators=(",", ":")).encode()
    if len(text) > REPORT_BYTES:
        raise InvalidValue(f"report: {len(text)} bytes as JSON; give at most {REPORT_BYTES}")
    return text


def read_report(text: bytes) -> dict[str, int]:
    """Return the figures of a report; none of what is not one, or of a query that sends none."""
    try:
        found = json.loads(text)
    except UNREADABLE:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in found.items()
        if type(value) is int and abs(value) <= EXACT_MOST
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
    """Hand out a page of what a query holds.

    `records`: return these, too. `bytes_read`: by the caller so far; query_settle returns them.
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
    """Read the records of members by a plain command: a script would cost twice as much."""
    return Command(script_loader.plain("HMGET"), (keys.records,), members, list)


def query_settle(
    context: TopicContext, keys: SlotKeys, lease: QueryLease, since: int, upto: int, limit: int
) -> Command[QuerySettleReply]:
    """Settle what a query holds of one slot, from the beginning of its log.

    Args:
        context: the topic.
        keys: of the slot.
        lease: of the query.
        since: the batch begins after this number; earlier messages are settled where they are held.
        upto: the batch ends with this number.
        limit: messages of one call.
    """
    return Command(
        script_loader.load("query_settle"),
        (
            keys.slot, keys.prepare, keys.records, keys.failures, keys.settled0, keys.settled1,
            keys.audit, *_query_keys(keys, lease.run), keys.queries, keys.store, keys.bodies,
            _marks_key(keys, lease.run),
        ),
        [
            *_asked_by(lease), context.channel, keys.index, since, upto, limit,
            rollback_failure(lease.run),
        ],
        _settle_reply,
    )  # fmt: skip


def query_again(keys: SlotKeys, lease: QueryLease, upto: int) -> Command[QueryLog]:
    """Give a batch of one slot new numbers."""
    return Command(
        script_loader.load("query_again"),
        (keys.slot, *_query_keys(keys, lease.run)),
        [*_asked_by(lease), upto],
        _log,
    )


def query_release(
    context: TopicContext, keys: SlotKeys, lease: QueryLease, after: int, limit: int
) -> Command[QueryLog]:
    """Give back what was taken of one slot after a number, and never handed out."""
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
    """Make messages of a query in one slot dead letters, from the beginning of its log."""
    return Command(
        script_loader.load("query_reject"),
        (
            keys.slot, keys.prepare, keys.records, keys.dead, keys.failures, keys.audit,
            *_query_keys(keys, lease.run), keys.bodies, _marks_key(keys, lease.run), keys.store,
        ),
        [*_asked_by(lease), context.channel, keys.index, upto, limit, reason],
        lambda reply: QuerySettleReply(reply[0], reply[1], 0, *_other_owner(reply[2:])),
    )  # fmt: skip


class Failing(NamedTuple):
    """A message of a batch that is to be failed by itself.

    Attributes:
        number: in the query's log.
        member: of the message.
        error: for its failure entry.
        wait_ms: until its retry; None: as the topic's policy says.
    """

    number: int
    member: bytes
    error: bytes
    wait_ms: int | None = None


def query_fail(
    context: TopicContext, keys: SlotKeys, run: str, failing: Sequence[Failing], retry: bool
) -> Command[str]:
    """Fail messages that a query holds of one slot, in the order of their numbers.

    A letter for each: r retry, d dead; R, D: it was before; 0 not held. `retry`: give them back;
    else they are dead letters.
    """
    return Command(
        script_loader.load("query_fail"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures,
            keys.audit, keys.bodies, *_query_keys(keys, run), _marks_key(keys, run),
        ),
        [
            topic_context.now_us, context.channel, keys.index, "f" if retry else "r",
            *(message.number for message in failing),
            *(message.member for message in failing),
            *(b"" if message.wait_ms is None else message.wait_ms for message in failing),
            *(message.error for message in failing),
        ],
        bytes.decode,
    )  # fmt: skip


def query_inspect(keys: SlotKeys, run: str) -> Command[QueryState]:
    """Say how many messages a query holds of one slot, and who owns it."""
    return Command(
        script_loader.load("query_inspect"),
        (keys.slot, *_query_keys(keys, run)),
        [topic_context.now_us],
        lambda reply: QueryState(
            reply[0], reply[1], reply[2].decode(errors="backslashreplace"), reply[3]
        ),
    )


class PublishReply(NamedTuple):
    """The reply to publish."""

    left: int  # elements that wait
    stored: int
    duplicates: int
    merged: int


PUBLISH_PAUSED = PublishReply(-1, 0, 0, 0)  # sends are paused, and nothing moved


class SinkReply(NamedTuple):
    """The reply to sink_begin."""

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
    """Append an entry to a stage; return how many elements the stage has then."""
    return Command(
        script_loader.load("stage_push"),
        (keys.slot, keys.stage_stem + name.encode()),
        [position, keep_ms, msgpack.packb(entry, use_bin_type=False), *rests],
        int,
    )


def stage_keep(keys: SlotKeys, name: str, keep_ms: int, length: int | None = None) -> Command[int]:
    """Keep a stage for so long, or drop it (0). `length`: how many elements it must have."""
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
    """Move the next entry of a stage into the queue; None: the slot is full."""
    return Command(
        script_loader.load("publish"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit, keys.stage_stem + name.encode(), keys.bodies, keys.prepare,
        ),
        [topic_context.now_us, context.channel, keys.index, session.call, keys.created],
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
    """Note the stages of a batch, once and for all; b"": only read."""
    return Command(
        script_loader.load("sink_begin"), _sink_keys(context, query), [batch, stages], _sink_reply
    )


def sink_end(context: TopicContext, query: str, batch: int) -> Command[bool]:
    """Note that a batch is published."""
    return Command(script_loader.load("sink_end"), _sink_keys(context, query), [batch], bool)
