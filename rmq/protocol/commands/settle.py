"""Commands that settle deliveries, give them back, or extend their leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq.core.ids import members_of
from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.score import encode_receipts
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command


class ExtendReply(NamedTuple):
    """The reply to extend."""

    deadline_s: int
    letters: str  # one for each delivery: 1 extended, 0 lost


def ack(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    numbers: Sequence[int] = (),
    marks: Sequence[bytes] = (),
) -> Command[str]:
    """Settle deliveries of one slot for good. A letter for each: 1 settled, 0 lost.

    `numbers`: the delivery numbers (fences), if known. `marks`: the numbers that `rmq.Audit` gave
    the messages, if known.
    """
    return Command(
        scripts.load("ack"),
        (
            keys.slot, keys.prepare, keys.records, keys.failures, keys.settled0, keys.settled1,
            keys.audit, keys.dead, keys.bodies,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index,
            *encode_receipts(receipts, numbers or [0] * len(ids)), *members_of(ids), *marks,
        ],
        bytes.decode,
    )  # fmt: skip


def nack(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    errors: Sequence[bytes],
    wait_ms: int | None,
) -> Command[str]:
    """Give failed deliveries back. A letter for each: r retry, d dead, 0 lost."""
    return Command(
        scripts.load("nack"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures,
            keys.audit, keys.bodies,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index,
            b"" if wait_ms is None else wait_ms, *members_of(ids), *map(repr, receipts), *errors,
        ],
        bytes.decode,
    )  # fmt: skip


def reject(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    errors: Sequence[bytes],
    reason: str,
) -> Command[str]:
    """Send deliveries to the DeadQueue. A letter for each: d dead, 0 lost."""
    return Command(
        scripts.load("reject"),
        (
            keys.slot, keys.prepare, keys.records, keys.dead, keys.failures,
            keys.audit, keys.bodies,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index, reason,
            *members_of(ids), *map(repr, receipts), *errors,
        ],
        bytes.decode,
    )  # fmt: skip


def release(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    places: Sequence[int],
    wait_ms: int,
) -> Command[str]:
    """Give deliveries back without a failure. A letter for each: 1 released, 0 lost.

    `places`: of each message its priority, or its due time.
    """
    return Command(
        scripts.load("release"),
        (
            keys.slot, keys.store, keys.prepare, keys.failures,
            keys.records,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index, wait_ms,
            *members_of(ids), *map(repr, receipts), *places,
        ],
        bytes.decode,
    )  # fmt: skip


def _extend_reply(reply: bytes) -> ExtendReply:
    deadline_s, letters = reply.decode().split(" ")
    return ExtendReply(int(deadline_s), letters)


def extend(
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    lease_ms: int,
) -> Command[ExtendReply]:
    """Move the deadline of leases."""
    return Command(
        scripts.load("extend"),
        (keys.slot, keys.prepare),
        [clock.now_us, session.call, lease_ms, *members_of(ids), *map(repr, receipts)],
        _extend_reply,
    )
