"""Commands that send dead letters back or restore them, and that delete messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq.core.ids import members_of
from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command


def redrive(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    died_by_ms: int | None = None,
) -> Command[str]:
    """Send dead letters back. A letter for each: 1 sent, 0 not dead, x unreadable.

    `died_by_ms`: those that died later count as not dead.
    """
    return Command(
        scripts.load("redrive"),
        (
            keys.slot, keys.store, keys.records, keys.dead, keys.failures, keys.prepare,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index,
            "" if died_by_ms is None else died_by_ms, *members_of(ids),
        ],
        bytes.decode,
    )  # fmt: skip


def purge(
    keys: SlotKeys,
    session: ReplaySession,
    queue: str,
    *,
    high: str = "+inf",
    limit: int = 1000,
    ids: Sequence[bytes] = (),
) -> Command[int]:
    """Delete a page of waiting messages or dead letters; return how many."""
    return Command(
        scripts.load("purge"),
        (
            keys.slot, getattr(keys, queue), keys.records, keys.failures, keys.merge, keys.audit,
            keys.bodies,
        ),
        [clock.now_us, session.call, high, limit, *members_of(ids)],
        int,
    )  # fmt: skip


class ExpireReply(NamedTuple):
    """The reply to expire."""

    expired: int  # messages that were removed from the StoreQueue
    next_rank: int  # where the next page begins; -1: there is none
    soonest_ms: int  # when the first of those that were left expires; 0: none does


def expire(keys: SlotKeys, rank: int, limit: int) -> Command[ExpireReply]:
    """Drop the expired ones of a page of waiting messages, or make them dead letters."""
    return Command(
        scripts.load("expire"),
        (
            keys.slot, keys.store, keys.records, keys.dead, keys.failures, keys.merge, keys.audit,
            keys.bodies,
        ),
        [clock.now_us, rank, limit],
        lambda reply: ExpireReply(*reply),
    )  # fmt: skip


def trash(
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    keep_ms: int,
    died_by_ms: int | None = None,
) -> Command[str]:
    """Put dead letters into the trash, or delete them with 0 ms.

    A letter for each: 1 done, 0 not dead.

    `died_by_ms`: those that died later count as not dead.
    """
    return Command(
        scripts.load("trash"),
        (
            keys.slot, keys.dead, keys.trash, keys.deaths, keys.records, keys.failures, keys.audit,
            keys.bodies,
        ),
        [
            clock.now_us, session.call, keep_ms, "" if died_by_ms is None else died_by_ms,
            *members_of(ids),
        ],
        bytes.decode,
    )  # fmt: skip


def restore(keys: SlotKeys, session: ReplaySession, ids: Sequence[bytes]) -> Command[str]:
    """Put dead letters back from the trash. A letter for each: 1 restored, 0 not in the trash."""
    return Command(
        scripts.load("restore"),
        (keys.slot, keys.dead, keys.trash, keys.deaths),
        [clock.now_us, session.call, *members_of(ids)],
        bytes.decode,
    )


class TidyReply(NamedTuple):
    """The reply to tidy."""

    dropped: int  # dead letters, also of the trash
    more: bool  # the limit left something to drop


def tidy(keys: SlotKeys, limit: int = 100) -> Command[TidyReply]:
    """Drop dead letters and whatever else a slot keeps for a time, where that time has passed."""
    return Command(
        scripts.load("tidy"),
        (
            keys.slot, keys.records, keys.dead, keys.failures, keys.settled0, keys.settled1,
            keys.audit, keys.bodies, keys.trash, keys.deaths, keys.rates, keys.arrivals,
        ),
        [clock.now_us, limit],
        lambda reply: TidyReply(reply[0], reply[1] == 1),
    )  # fmt: skip
