"""Builders and readers of the scripts of queries, as `rmq.commands` has them for the others.

A query takes messages into a log of its own, hands them out as often as it is asked, and settles
them when their batch is done. `lua/lib/query.lua` tells what it is to the other scripts.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rmq.core import failure
from rmq.core.keys import SlotKeys
from rmq.core.score import HELD_MIN
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidValue
from rmq.protocol import scripts
from rmq.protocol.command import Command, now

_RUN = re.compile("[0-9a-f]{32}")
FAR_S = HELD_MIN // 1000  # the deadline of what a query holds; twin of FAR in lua/lib/query.lua


def check_run(run: object) -> str:
    """What names a query: 32 hex digits.

    Raises:
        InvalidValue: anything else.
    """
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise InvalidValue(f"run: {run!r:.60}; give 32 hex digits: uuid.uuid4().hex")
    return run


class Holder(NamedTuple):
    """Who runs a query, and for how long nobody else may."""

    run: str  # 32 hex digits
    owner: str
    lease_ms: int
    owner_ms: int
    exact: bool = False  # a batch is ended only when all of it was handed out


class Log(NamedTuple):
    """The reply to query_take, query_renew and query_again."""

    held: int  # messages of the batch that was asked about
    newest: int  # number in the log
    left_ms: int = 0
    owner: str = ""  # another one, for so long; then nothing was done
    settled: int = 0  # the newest number that is; query_renew tells it
    handed: int = 0  # the newest number that was handed out; query_renew tells it


class Page(NamedTuple):
    """The reply to query_read, column by column."""

    numbers: list[int]
    ids: list[bytes]
    receipts: list[float]  # -1 where the PrepareQueue has it no more; empty: nothing has failed yet
    records: list[bytes]


class Settled(NamedTuple):
    """The reply to query_settle and query_reject."""

    settled: int  # or rejected
    gone: int  # left the log, settled now or before
    missing: int = 0  # of the batch; so far, over all calls
    left_ms: int = 0
    owner: str = ""  # another one, for so long; then nothing was done


class Lapsed(NamedTuple):
    """The reply to query_lapse."""

    back: int
    more: bool


class Look(NamedTuple):
    """The reply to query_look."""

    messages: int
    owner_left_ms: int  # negative: so long ago it ended
    owner: str  # "": nobody that is known


def _query(keys: SlotKeys, run: str) -> tuple[bytes, bytes]:
    name = run.encode()
    return keys.query_stem + name, keys.querylog_stem + name


def told(run: str) -> bytes:
    """What the failures of messages tell that a query gave back; no other query tells the same."""
    return failure.tell(f"the lease of query {run} ran out")


def _owner(rest: list[Any]) -> tuple[int, str]:
    """Ms the other owner has left, and who it is."""
    return (rest[0], rest[1].decode()) if rest else (0, "")


def _log(reply: list[Any]) -> Log:
    return Log(reply[0], reply[1], *_owner(reply[2:]))


def _renewed(reply: list[Any]) -> Log:
    return Log(reply[0], reply[1], *_owner(reply[4:]), settled=reply[2], handed=reply[3])


def _settled(reply: list[Any]) -> Settled:
    return Settled(reply[0], reply[1], reply[2], *_owner(reply[3:]))


def take(keys: SlotKeys, holder: Holder, after: int, limit: int) -> Command[Log]:
    """Take messages of one slot; the newest number in the log."""
    return Command(
        scripts.load("query_take"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, *_query(keys, holder.run), keys.queries,
        ),
        [
            now(), holder.run, holder.owner, holder.lease_ms, holder.owner_ms, after, limit,
            int(holder.exact), keys.created,
        ],
        _log,
    )  # fmt: skip


def renew(keys: SlotKeys, holder: Holder, after: int, upto: int) -> Command[Log]:
    """Hold what the query has for longer; how much of a batch that is."""
    return Command(
        scripts.load("query_renew"),
        (keys.slot, *_query(keys, holder.run), keys.queries),
        [
            now(), holder.run, holder.owner, holder.lease_ms, holder.owner_ms, int(holder.exact),
            after, upto,
        ],
        _renewed,
    )  # fmt: skip


def read(keys: SlotKeys, run: str, after: int, upto: int, limit: int) -> Command[Page]:
    """Hand out a page of what the query holds."""

    def parse(reply: list[Any]) -> Page:
        receipts = [float(one) if one else -1.0 for one in reply[2]]
        return Page(reply[0], reply[1], receipts, reply[3])

    return Command(
        scripts.load("query_read"),
        (keys.slot, keys.prepare, keys.records, keys.failures, *_query(keys, run)),
        [after, upto, limit],
        parse,
    )


def settle(
    context: TopicContext, keys: SlotKeys, holder: Holder, since: int, upto: int, limit: int
) -> Command[Settled]:
    """Settle what the query holds of one slot, from the beginning of its log.

    Args:
        context: the topic.
        keys: of the slot.
        holder: who asks.
        since: the batch begins after this number; what comes before is settled where it is held.
        upto: the batch ends with this number.
        limit: messages of one call.
    """
    return Command(
        scripts.load("query_settle"),
        (
            keys.slot, keys.prepare, keys.records, keys.failures, keys.settled0, keys.settled1,
            keys.audit, *_query(keys, holder.run), keys.queries, keys.store,
        ),
        [
            now(), holder.run, holder.owner, context.channel, keys.index, since, upto, limit,
            told(holder.run),
        ],
        _settled,
    )  # fmt: skip


def again(keys: SlotKeys, holder: Holder, upto: int) -> Command[Log]:
    """Give a batch of one slot new numbers."""
    return Command(
        scripts.load("query_again"),
        (keys.slot, *_query(keys, holder.run)),
        [now(), holder.run, holder.owner, upto],
        _log,
    )


def reject(
    context: TopicContext, keys: SlotKeys, holder: Holder, upto: int, reason: bytes, limit: int
) -> Command[Settled]:
    """Reject what the query holds of one slot, from the beginning of its log."""
    return Command(
        scripts.load("query_reject"),
        (
            keys.slot, keys.prepare, keys.records, keys.dead, keys.failures, keys.audit,
            *_query(keys, holder.run),
        ),
        [
            now(), holder.run, holder.owner, context.channel, keys.index, upto, limit, reason,
        ],
        lambda reply: Settled(reply[0], reply[1], 0, *_owner(reply[2:])),
    )  # fmt: skip


def lapse(keys: SlotKeys, run: str, limit: int, force: bool = False) -> Command[Lapsed]:
    """Give back what a query held whose lease has run out. `force`: whatever its lease says."""
    return Command(
        scripts.load("query_lapse"),
        (keys.slot, keys.prepare, keys.failures, *_query(keys, run), keys.queries),
        [now(), run, limit, 1 if force else 0, told(run)],
        lambda reply: Lapsed(reply[0], reply[1] == 1),
    )


def look(keys: SlotKeys, run: str) -> Command[Look]:
    """How much a query holds of one slot, and who runs it."""
    return Command(
        scripts.load("query_look"),
        (keys.slot, *_query(keys, run)),
        [now()],
        lambda reply: Look(reply[0], reply[1], reply[2].decode(errors="backslashreplace")),
    )


def queries(keys: SlotKeys, limit: int = 1000) -> Command[list[tuple[str, int]]]:
    """The queries that hold messages of a slot: run, and ms until its lease ends."""
    return Command(
        scripts.load("queries"),
        (keys.slot, keys.queries),
        [now(), limit],
        lambda reply: [(run.decode(), ms) for run, ms in zip(reply[::2], reply[1::2], strict=True)],
    )
