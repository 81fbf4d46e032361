"""Commands of queries: take messages into a query's log, hand them out, settle them, give up.

A query hands out the same messages as often as it is asked, and settles them when their batch is
done. `lua/lib/query.lua` says what a query is to the other scripts.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rmq.core import failure
from rmq.core.keys import SlotKeys
from rmq.core.score import HELD_MIN
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidValue
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command

_RUN = re.compile("[0-9a-f]{32}")
QUERY_DEADLINE_S = HELD_MIN // 1000  # of what a query holds; twin of FAR in lua/lib/query.lua


def check_run(run: object) -> str:
    """Return the name of a query, which is 32 hex digits.

    Raises:
        InvalidValue: anything else.
    """
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise InvalidValue(f"run: {run!r:.60}; give 32 hex digits: uuid.uuid4().hex")
    return run


class QueryLease(NamedTuple):
    """The owner of a query, and how long the query and its owner keep what they have."""

    run: str  # 32 hex digits
    owner: str
    lease_ms: int  # of the messages
    owner_ms: int  # no other owner may run the query for so long
    exact: bool = False  # a batch ends only when all of it was handed out


class QueryLog(NamedTuple):
    """The reply to query_take, query_renew and query_again."""

    held: int  # messages of the batch that was asked about
    newest: int  # number in the log
    left_ms: int = 0
    owner: str = ""  # another owner, for left_ms more; then nothing was done
    settled: int = 0  # the newest number that is settled; query_renew returns it
    handed: int = 0  # the newest number that was handed out; query_renew returns it


class QueryPage(NamedTuple):
    """The reply to query_read, column by column."""

    numbers: list[int]
    ids: list[bytes]
    receipts: list[float]  # -1 where it left the PrepareQueue; empty: nothing has failed yet
    records: list[bytes]


class QuerySettleReply(NamedTuple):
    """The reply to query_settle and query_reject."""

    settled: int  # or rejected
    gone: int  # left the log, settled now or before
    missing: int = 0  # of the batch; so far, over all calls
    left_ms: int = 0
    owner: str = ""  # another owner, for left_ms more; then nothing was done


class QueryRollbackReply(NamedTuple):
    """The reply to query_rollback."""

    back: int
    more: bool


class QueryState(NamedTuple):
    """The reply to query_inspect."""

    messages: int
    owner_left_ms: int  # negative: so long ago it ended
    owner: str  # "": no owner is known


def _query_keys(keys: SlotKeys, run: str) -> tuple[bytes, bytes]:
    name = run.encode()
    return keys.query_stem + name, keys.querylog_stem + name


def rollback_failure(run: str) -> bytes:
    """Return the failure entry of messages that this query gave back; it names the query."""
    return failure.encode(f"the lease of query {run} ran out")


def _other_owner(rest: list[Any]) -> tuple[int, str]:
    """Return the ms that another owner has left, and its name."""
    return (rest[0], rest[1].decode()) if rest else (0, "")


def _log(reply: list[Any]) -> QueryLog:
    return QueryLog(reply[0], reply[1], *_other_owner(reply[2:]))


def _renewed_log(reply: list[Any]) -> QueryLog:
    return QueryLog(reply[0], reply[1], *_other_owner(reply[4:]), settled=reply[2], handed=reply[3])


def _settle_reply(reply: list[Any]) -> QuerySettleReply:
    return QuerySettleReply(reply[0], reply[1], reply[2], *_other_owner(reply[3:]))


def query_take(keys: SlotKeys, lease: QueryLease, after: int, limit: int) -> Command[QueryLog]:
    """Take messages of one slot into the log."""
    return Command(
        scripts.load("query_take"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, *_query_keys(keys, lease.run), keys.queries, keys.bodies, keys.leases,
            keys.rates,
        ),
        [
            clock.now_us, lease.run, lease.owner, lease.lease_ms, lease.owner_ms, after, limit,
            int(lease.exact), keys.created,
        ],
        _log,
    )  # fmt: skip


def query_renew(keys: SlotKeys, lease: QueryLease, after: int, upto: int) -> Command[QueryLog]:
    """Renew the lease of a query, and count what it holds of a batch."""
    return Command(
        scripts.load("query_renew"),
        (keys.slot, *_query_keys(keys, lease.run), keys.queries, keys.leases),
        [
            clock.now_us, lease.run, lease.owner, lease.lease_ms, lease.owner_ms, int(lease.exact),
            after, upto,
        ],
        _renewed_log,
    )  # fmt: skip


def query_read(keys: SlotKeys, run: str, after: int, upto: int, limit: int) -> Command[QueryPage]:
    """Hand out a page of what a query holds."""

    def parse(reply: list[Any]) -> QueryPage:
        receipts = [float(receipt) if receipt else -1.0 for receipt in reply[2]]
        return QueryPage(reply[0], keys.ids_of(reply[1]), receipts, reply[3])

    return Command(
        scripts.load("query_read"),
        (keys.slot, keys.prepare, keys.records, keys.failures, *_query_keys(keys, run)),
        [after, upto, limit],
        parse,
    )


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
        scripts.load("query_settle"),
        (
            keys.slot, keys.prepare, keys.records, keys.failures, keys.settled0, keys.settled1,
            keys.audit, *_query_keys(keys, lease.run), keys.queries, keys.store,
            keys.bodies,
        ),
        [
            clock.now_us, lease.run, lease.owner, context.channel, keys.index, since, upto, limit,
            rollback_failure(lease.run),
        ],
        _settle_reply,
    )  # fmt: skip


def query_again(keys: SlotKeys, lease: QueryLease, upto: int) -> Command[QueryLog]:
    """Give a batch of one slot new numbers."""
    return Command(
        scripts.load("query_again"),
        (keys.slot, *_query_keys(keys, lease.run)),
        [clock.now_us, lease.run, lease.owner, upto],
        _log,
    )


def query_reject(
    context: TopicContext, keys: SlotKeys, lease: QueryLease, upto: int, reason: bytes, limit: int
) -> Command[QuerySettleReply]:
    """Send what a query holds of one slot to the DeadQueue, from the beginning of its log."""
    return Command(
        scripts.load("query_reject"),
        (
            keys.slot, keys.prepare, keys.records, keys.dead, keys.failures, keys.audit,
            *_query_keys(keys, lease.run), keys.bodies,
        ),
        [
            clock.now_us, lease.run, lease.owner, context.channel, keys.index, upto, limit, reason,
        ],
        lambda reply: QuerySettleReply(reply[0], reply[1], 0, *_other_owner(reply[2:])),
    )  # fmt: skip


def query_rollback(
    keys: SlotKeys, run: str, limit: int, force: bool = False
) -> Command[QueryRollbackReply]:
    """Give back what a query holds if its lease expired. `force`: even if it did not."""
    return Command(
        scripts.load("query_rollback"),
        (
            keys.slot,
            keys.prepare,
            keys.failures,
            *_query_keys(keys, run),
            keys.queries,
            keys.leases,
        ),
        [clock.now_us, run, limit, 1 if force else 0, rollback_failure(run)],
        lambda reply: QueryRollbackReply(reply[0], reply[1] == 1),
    )


def query_inspect(keys: SlotKeys, run: str) -> Command[QueryState]:
    """Say how many messages a query holds of one slot, and who owns it."""
    return Command(
        scripts.load("query_inspect"),
        (keys.slot, *_query_keys(keys, run)),
        [clock.now_us],
        lambda reply: QueryState(reply[0], reply[1], reply[2].decode(errors="backslashreplace")),
    )


def queries(keys: SlotKeys, limit: int = 1000) -> Command[list[tuple[str, int]]]:
    """List the queries that hold messages of a slot: run, and ms until its lease expires."""
    return Command(
        scripts.load("queries"),
        (keys.slot, keys.queries, keys.leases),
        [clock.now_us, limit],
        lambda reply: [(run.decode(), ms) for run, ms in zip(reply[::2], reply[1::2], strict=True)],
    )
