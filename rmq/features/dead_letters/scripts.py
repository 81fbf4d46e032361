"""The Lua scripts of dead letters: redrive, move to another topic, trash and restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq.kernel.core.ids import member_of, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command, script_call


def redrive(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    died_by_ms: int | None = None,
    fresh: bool = False,
    edited: bytes = b"",
) -> Command[str]:
    """Send dead letters back. Return `1` sent, `0` not dead or `x` unreadable for each letter.

    Messages that died after `died_by_ms` count as not dead. `fresh` says whether to delete the
    recorded steps of the messages. `edited` is the new record of a single message.
    """
    return script_call("redrive", keys, [
        clock.now_us, session.call, context.channel, keys.index,
        "" if died_by_ms is None else died_by_ms, "1" if fresh else "", edited,
        *members_of(ids),
    ], bytes.decode)  # fmt: skip


class DropExpiredReply(NamedTuple):
    """Reply of the script `drop_expired`."""

    expired: int  # waiting messages that were removed
    next_rank: int  # rank of the next page's first message, or -1 at the end
    soonest_ms: int  # earliest expiry among the remaining messages, or 0 if none of them expires


def drop_expired(
    context: TopicContext, keys: SlotKeys, rank: int, limit: int
) -> Command[DropExpiredReply]:
    """Examine a page of waiting messages. Drop expired messages, or make them dead letters."""
    args = [clock.now_us, context.channel, keys.index, rank, limit]
    return script_call("drop_expired", keys, args, lambda reply: DropExpiredReply(*reply))


def trash(
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    keep_ms: int,
    died_by_ms: int | None = None,
) -> Command[str]:
    """Move dead letters to the trash, or delete them if `keep_ms` is 0.

    Return a character for each letter: `1` done, `0` not dead. Messages that died after
    `died_by_ms` count as not dead.
    """
    return script_call("trash", keys, [
        clock.now_us, session.call, keep_ms, "" if died_by_ms is None else died_by_ms,
        *members_of(ids),
    ], bytes.decode)  # fmt: skip


def restore(keys: SlotKeys, session: ReplaySession, ids: Sequence[bytes]) -> Command[str]:
    """Restore dead letters. Return `1` restored or `0` not in the trash for each letter."""
    return script_call(
        "restore", keys, [clock.now_us, session.call, *members_of(ids)], bytes.decode
    )


TOKEN_BYTES = 8


class HeldLetter(NamedTuple):
    """A dead letter that RMQ is moving to another topic. Its slot holds it until then.

    Attributes:
        token: Token of the attempt that holds the letter. It may be an earlier attempt.
        slot: Index of the slot in the other topic.
        record: Stored record of the letter.
    """

    token: bytes
    slot: int
    record: bytes


class HoldReply(NamedTuple):
    """Reply of the script `redrive_hold`: a character for each id, and the held messages."""

    now_ms: int
    codes: str
    held: list[HeldLetter]


class Arrival(NamedTuple):
    """A dead letter that the other topic must store.

    Attributes:
        entry: Name of the letter in the sorted set, followed by the token that holds the letter.
        head: First four bytes of the record. "t" (too large) or "x" (unreadable) if the letter must
            not be stored.
        rest: Bytes of the record from byte 9 on.
    """

    entry: bytes
    head: bytes
    rest: bytes


class ArrivalReply(NamedTuple):
    """Reply of the script `redrive_send`: a character for each dead letter."""

    now_ms: int
    codes: str


def redrive_hold(
    keys: SlotKeys,
    token: bytes,
    topic: str,
    ids: Sequence[bytes],
    slots: Sequence[int],
    died_by_ms: int | None = None,
) -> Command[HoldReply]:
    """Mark dead letters as held for a move to another topic. Return their records.

    `slots` has the index of the target slot of each letter. Messages that died after `died_by_ms`
    count as not dead.
    """

    def parse(reply: list[Any]) -> HoldReply:
        now_ms, letters, *held = reply
        rows = zip(held[::3], held[1::3], held[2::3], strict=True)
        return HoldReply(now_ms, letters.decode(), [HeldLetter(*row) for row in rows])

    pairs = [part for id, slot in zip(ids, slots, strict=True) for part in (member_of(id), slot)]
    args = [clock.now_us, token, topic, "" if died_by_ms is None else died_by_ms, *pairs]
    return script_call("redrive_hold", keys, args, parse)


def redrive_send(
    context: TopicContext, keys: SlotKeys, arrivals: Sequence[Arrival], notes_refusals: bool = True
) -> Command[ArrivalReply]:
    """Store dead letters of another topic, or replayed messages. Each message is stored once.

    If `notes_refusals` is true, a refusal is final. Otherwise the caller may try again.
    """
    return script_call("redrive_send", keys, [
        clock.now_us, context.channel, keys.index, keys.created, "" if notes_refusals else "1",
        *(part for arrival in arrivals for part in arrival),
    ], lambda reply: ArrivalReply(reply[0], reply[1].decode()))  # fmt: skip


def redrive_settle(
    keys: SlotKeys, session: ReplaySession, outcomes: Sequence[tuple[bytes, bool]]
) -> Command[str]:
    """Remove dead letters that the other topic has stored, and release refused dead letters.

    Return a character for each letter: `1` removed, `r` released, `0` no longer held. `outcomes`
    has, for each letter, the entry passed to redrive_send, and whether the other topic stored the
    message.
    """
    pairs = [part for entry, ok in outcomes for part in (entry, "s" if ok else "r")]
    return script_call("redrive_settle", keys, [clock.now_us, session.call, *pairs], bytes.decode)
