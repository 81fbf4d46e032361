"""Commands that lease messages, tell when there are some, and roll back expired leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from rmq.core import record
from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.shared_lease import SharedLease
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command

LEASES_EXPIRED, LONG_EXPIRED = 1, 2  # bits of Batch.expired
MEMBER_BYTES = 13
_NOT_A_HAND_OVER = (ValueError, TypeError, IndexError, OverflowError, msgpack.UnpackException)
NEXT_READY_MAX = 256  # slots in one call of next_ready: some 4 us of Redis for each
_ANY_LARGE, _CREDIT_STANDS, _REPEATED, _UNUSED = 4, 8, 16, 32  # beside them; then a count


class Offer(NamedTuple):
    """A credit that a caller leaves where it finds nothing: hand-overs on its own channel."""

    number: int  # of the first hand-over
    channel: bytes
    renews: bool = False  # the caller has left one before, and believes that it is still there
    sessions: Sequence[ReplaySession] = ()  # of further hand-overs, each at its number

    def encode(self) -> bytes:
        """Return the argument of a script."""
        way = b"=" if self.renews else b"+"
        calls = (session.call for session in self.sessions)
        return b" ".join((b"%c%d %s" % (way, self.number, self.channel), *calls))


class CreditState(NamedTuple):
    """The part of a reply that is about a credit: one offered, or one to be renewed."""

    stands: bool = False
    unused: int = 0  # the hand-overs for which one was still good that it removed
    is_repeat: bool = False  # of an earlier copy, which may have left the credit; now it is gone


class Batch(NamedTuple):
    """The reply to prepare."""

    wait_us: int  # microseconds until the slot has more work: 0 now, -1 never as things stand
    expired: int  # LEASES_EXPIRED and LONG_EXPIRED, added up
    deadline_s: int  # of a shared lease: 3e9 + its number
    first_delivery: int
    newest: int
    lefts: bytes  # retries left of each; empty where all are fresh
    ids: list[bytes]
    records: list[bytes]
    any_large: bool = False  # records refer to large bodies
    credit: CreditState = CreditState()
    lease: SharedLease | None = None  # under which they were taken; not from the reply


class HandOver(NamedTuple):
    """The message on a consumer's own channel: the deliveries for a credit."""

    number: int
    slot: int  # its index
    batch: Batch


class RollbackReply(NamedTuple):
    """The reply to rollback."""

    retried: int
    dead: int
    more: bool


def prepare(
    keys: SlotKeys,
    session: ReplaySession,
    limit: int,
    lease_ms: int,
    waits: bool | Offer,
    ordered: bool = False,
    shared: int | None = None,
) -> Command[Batch]:
    """Lease up to `limit` messages of one slot.

    `shared`: under the shared lease of this number, or under a new one where it is gone or for 0;
    None: each delivery has a deadline of its own.
    """

    def parse(reply: list[Any]) -> Batch:
        bits, ids = reply[1], keys.ids_of(reply[6])
        credit = CreditState(bits & _CREDIT_STANDS > 0, bits // _UNUSED, bits & _REPEATED > 0)
        large = bits & _ANY_LARGE > 0
        return Batch._make((reply[0], bits & 3, *reply[2:6], ids, reply[7], large, credit, None))

    return Command(
        scripts.load("prepare"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, keys.bodies, keys.leases, keys.rates,
        ),
        [
            clock.now_us, session.call, limit, lease_ms, _waits(waits), 1 if ordered else 0,
            keys.created, b"" if shared is None else shared,
        ],
        parse,
        marks_repeats=True,
    )  # fmt: skip


def next_ready(
    slots: Sequence[SlotKeys], waits: bool, many_topics: bool = False
) -> Command[list[int]]:
    """Return the microseconds until each slot has work: 0 now, -1 never as things stand.

    Args:
        slots: at most NEXT_READY_MAX.
        waits: the caller sleeps now.
        many_topics: the slots are of several topics; -2 then stands for a slot whose topic was
            deleted or created anew, which otherwise is an error.
    """
    keys = [key for slot in slots for key in (slot.slot, slot.store, slot.prepare)]
    stamps = [slot.created for slot in slots] if many_topics else [slots[0].created]
    args = [clock.now_us, 1 if waits else 0, *stamps]
    return Command(scripts.load("next_ready"), keys, args, list)


def next_ready_or_credit(
    slots: Sequence[SlotKeys],
    offer: Offer,
    limit: int,
    lease_ms: int,
    sessions: Sequence[ReplaySession],
) -> Command[tuple[list[int], list[CreditState]]]:
    """As next_ready, for a caller that leaves a credit in each slot if none has work.

    `sessions`: of each slot's credit. Returns the microseconds, and what is said of each credit.
    """
    keys = [key for slot in slots for key in (slot.slot, slot.store, slot.prepare)]

    def parse(reply: list[int]) -> tuple[list[int], list[CreditState]]:
        states = reply[len(slots) :]
        return reply[: len(slots)], [
            CreditState(state == 1) if state >= 0 else CreditState(False, -1 - state, True)
            for state in states
        ]

    words = [offer.encode(), b"%d %d" % (limit, lease_ms), *(session.call for session in sessions)]

    return Command(
        scripts.load("next_ready"), keys, [clock.now_us, b" ".join(words), slots[0].created], parse,
        marks_repeats=True,
    )  # fmt: skip


def withdraw(slots: Sequence[SlotKeys], channel: bytes, number: int) -> Command[list[int]]:
    """Remove the credits of a channel.

    Returns:
        How many connections were sent the number, then for each slot how many hand-overs its credit
        was still good for.
    """
    return Command(scripts.load("withdraw"), [slot.slot for slot in slots], [channel, number], list)


def lateness_report(keys: SlotKeys, session: ReplaySession, counts: Sequence[int]) -> Command[bool]:
    """Add to the counts of how late messages were taken, one count for each bucket."""
    return Command(
        scripts.load("lateness_report"), (keys.slot,), [clock.now_us, session.call, *counts], bool
    )


def _waits(waits: bool | Offer) -> int | bytes:
    return waits.encode() if isinstance(waits, Offer) else 1 if waits else 0


def read_hand_over(payload: bytes, slots: Sequence[SlotKeys]) -> HandOver | None:
    """Read what came on a consumer's own channel; None if it is no hand-over of these slots."""
    try:
        number, at, deadline_s, first, newest, lefts, members, records = msgpack.unpackb(
            payload, raw=True
        )
        index = int(at)
        batch = Batch(
            0, 0, int(deadline_s), int(first), int(newest), bytes(lefts),
            slots[index].ids_of(members), list(records),
        )  # fmt: skip
        is_whole = (
            index >= 0
            and 0 < len(members) == len(records)
            and len(batch.lefts) in (0, len(members))
            and all(isinstance(one, bytes) and len(one) == MEMBER_BYTES for one in members)
            and all(isinstance(one, bytes) and len(one) >= record.BARE for one in records)
        )
    except _NOT_A_HAND_OVER:
        return None
    return HandOver(int(number), index, batch) if is_whole else None


def rollback(context: TopicContext, keys: SlotKeys, limit: int = 100) -> Command[RollbackReply]:
    """Give back messages of one slot whose lease expired."""
    return Command(
        scripts.load("rollback"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.audit,
            keys.bodies,
        ),
        [clock.now_us, context.channel, keys.index, limit],
        lambda reply: RollbackReply(reply[0], reply[1], reply[2] == 1),
    )  # fmt: skip
