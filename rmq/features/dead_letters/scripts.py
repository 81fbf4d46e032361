"""Commands on dead letters: send them back, move them to another topic, restore and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq.kernel.core.ids import member_of, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import context as topic_context
from rmq.kernel.topic.context import ReplaySession, TopicContext
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader


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
        script_loader.load("redrive"),
        (keys.slot, keys.store, keys.records, keys.dead, keys.failures, keys.prepare),
        [
            topic_context.now_us, session.call, context.channel, keys.index,
            "" if died_by_ms is None else died_by_ms, *members_of(ids),
        ],
        bytes.decode,
    )  # fmt: skip


class DropExpiredReply(NamedTuple):
    """The reply to drop_expired."""

    expired: int  # messages that waited and were removed
    next_rank: int  # where the next page begins; -1: there is none
    soonest_ms: int  # when the first of those that were left expires; 0: none does


def drop_expired(
    context: TopicContext, keys: SlotKeys, rank: int, limit: int
) -> Command[DropExpiredReply]:
    """Drop the expired ones of a page of waiting messages, or make them dead letters."""
    return Command(
        script_loader.load("drop_expired"),
        (
            keys.slot, keys.store, keys.records, keys.dead, keys.failures, keys.merge, keys.audit,
            keys.bodies,
        ),
        [topic_context.now_us, context.channel, keys.index, rank, limit],
        lambda reply: DropExpiredReply(*reply),
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
        script_loader.load("trash"),
        (
            keys.slot, keys.dead, keys.trash, keys.deaths, keys.records, keys.failures, keys.audit,
            keys.bodies,
        ),
        [
            topic_context.now_us, session.call, keep_ms, "" if died_by_ms is None else died_by_ms,
            *members_of(ids),
        ],
        bytes.decode,
    )  # fmt: skip


def restore(keys: SlotKeys, session: ReplaySession, ids: Sequence[bytes]) -> Command[str]:
    """Put dead letters back from the trash. A letter for each: 1 restored, 0 not in the trash."""
    return Command(
        script_loader.load("restore"),
        (keys.slot, keys.dead, keys.trash, keys.deaths),
        [topic_context.now_us, session.call, *members_of(ids)],
        bytes.decode,
    )


TOKEN_BYTES = 8


class HeldLetter(NamedTuple):
    """A dead letter that is held for another topic.

    Attributes:
        token: of the attempt under which it is held, which may be an earlier one.
        slot: the index of the slot in the other topic.
        record: as it is stored.
    """

    token: bytes
    slot: int
    record: bytes


class HoldReply(NamedTuple):
    """The reply to redrive_hold: a letter for each id, and those that are held, in their order."""

    now_ms: int
    letters: str
    held: list[HeldLetter]


class Arrival(NamedTuple):
    """A dead letter as the other topic is asked to store it.

    Attributes:
        entry: its member and the token.
        head: the first four bytes of its record, or "t" or "x": why it is not to be stored.
        rest: of the record, from byte 9 on.
    """

    entry: bytes
    head: bytes
    rest: bytes


class ArrivalReply(NamedTuple):
    """The reply to redrive_send: a letter for each."""

    now_ms: int
    letters: str


def redrive_hold(
    keys: SlotKeys,
    token: bytes,
    topic: str,
    ids: Sequence[bytes],
    slots: Sequence[int],
    died_by_ms: int | None = None,
) -> Command[HoldReply]:
    """Hold dead letters for another topic, and return their records.

    `slots`: the index of the slot there, of each. `died_by_ms`: those that died later count as not
    dead.
    """

    def parse(reply: list[Any]) -> HoldReply:
        now_ms, letters, *held = reply
        rows = zip(held[::3], held[1::3], held[2::3], strict=True)
        return HoldReply(now_ms, letters.decode(), [HeldLetter(*row) for row in rows])

    pairs = [part for id, slot in zip(ids, slots, strict=True) for part in (member_of(id), slot)]
    return Command(
        script_loader.load("redrive_hold"),
        (keys.slot, keys.dead, keys.records),
        [topic_context.now_us, token, topic, "" if died_by_ms is None else died_by_ms, *pairs],
        parse,
    )


def redrive_send(
    context: TopicContext, keys: SlotKeys, arrivals: Sequence[Arrival]
) -> Command[ArrivalReply]:
    """Store dead letters of another topic, each once."""
    return Command(
        script_loader.load("redrive_send"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit, keys.bodies, keys.prepare, keys.arrivals,
        ),
        [
            topic_context.now_us, context.channel, keys.index, keys.created,
            *(part for arrival in arrivals for part in arrival),
        ],
        lambda reply: ArrivalReply(reply[0], reply[1].decode()),
    )  # fmt: skip


def redrive_settle(
    keys: SlotKeys, session: ReplaySession, outcomes: Sequence[tuple[bytes, bool]]
) -> Command[str]:
    """Remove dead letters that another topic has stored, and let go of those that it refused.

    A letter for each: 1 removed, r let go of, 0 not held any more.

    `outcomes`: entry of redrive_send, and whether it was stored.
    """
    pairs = [part for entry, ok in outcomes for part in (entry, "s" if ok else "r")]
    return Command(
        script_loader.load("redrive_settle"),
        (
            keys.slot, keys.dead, keys.records, keys.failures, keys.audit, keys.bodies,
            keys.settled0, keys.settled1, keys.arrivals,
        ),
        [topic_context.now_us, session.call, *pairs],
        bytes.decode,
    )  # fmt: skip
