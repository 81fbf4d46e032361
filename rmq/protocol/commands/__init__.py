"""For each script one builder and one reader: values to keys and args, reply to a typed value.

Builders take values that were checked at the door; scripts check numbers again before they write.
No sockets here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.replies import (
    STATS as STATS,
    UNHELD as UNHELD,
    Batch as Batch,
    Census as Census,
    Extended as Extended,
    Found as Found,
    Merged as Merged,
    Opened as Opened,
    OpenPage as OpenPage,
    RolledBack as RolledBack,
    Sent as Sent,
    Where as Where,
)
from rmq.core.score import receipt_runs
from rmq.core.topic_context import TopicContext
from rmq.errors import DecodeError
from rmq.protocol import scripts
from rmq.protocol.command import Command as Command, now, now_ms as now_ms, set_clock as set_clock
from rmq.protocol.commands.claim import (
    claim as claim,
    finish as finish,
    renew as renew,
    unclaim as unclaim,
)


def _replay(slot: SlotKeys, session: ReplaySession) -> bytes:
    return slot.replay_stem + session.name


# --- topics ------------------------------------------------------------------------------------


def topic(context: TopicContext, create: dict[str, str] | None) -> Command[Opened]:
    """Create a topic with these settings where it is missing, or only look (None)."""
    pairs = [part for pair in (create or {}).items() for part in pair]

    def parse(reply: list[Any]) -> Opened:
        texts = [part.decode() for part in reply[1:]]
        return Opened(reply[0], dict(zip(texts[::2], texts[1::2], strict=True)))

    return Command(
        scripts.load("topic"), (context.key,), [now(), 0 if create is None else 1, *pairs], parse
    )


def slot(keys: SlotKeys, created: bytes, values: dict[str, str], revision: int = 0) -> Command[int]:
    """Give a slot the settings of its topic, unless it has those of this revision."""
    pairs = [part for pair in values.items() for part in pair]
    return Command(
        scripts.load("slot"), (keys.slot, keys.records), [now(), created, revision, *pairs], int
    )


# --- sending -----------------------------------------------------------------------------------


def _parse_sent(reply: list[Any]) -> Sent:
    return Sent(reply[0], reply[1].decode())


def send(
    context: TopicContext, keys: SlotKeys, ids: Sequence[bytes], parts: Sequence[bytes]
) -> Command[Sent]:
    """Accept messages into one slot. `parts`: head and rest of each record, in the order of ids."""
    return Command(
        scripts.load("send"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit,
        ),
        [now(), context.channel, keys.index, keys.created, len(ids), *ids, *parts],
        _parse_sent,
    )  # fmt: skip


def merge(
    context: TopicContext,
    keys: SlotKeys,
    *,
    id: bytes,
    head: bytes,
    envelope: bytes,
    body: bytes,
    merge_key: str,
    mode: str,
    max_wait_ms: int,
    most_bytes: int,
) -> Command[Merged]:
    """Accept or merge one message with a merge key."""
    return Command(
        scripts.load("merge"),
        (
            keys.slot, keys.store, keys.records, keys.merge, keys.settled0, keys.settled1,
            keys.failures, keys.audit,
        ),
        [
            now(), context.channel, keys.index, keys.created, id, head, envelope, body, merge_key,
            mode, max_wait_ms, most_bytes,
        ],
        lambda reply: Merged(reply[0], reply[1].decode(), reply[2]),
    )  # fmt: skip


# --- taking ------------------------------------------------------------------------------------


def _parse_batch(reply: list[Any]) -> Batch:
    return Batch(*reply)


def prepare(
    keys: SlotKeys,
    session: ReplaySession,
    limit: int,
    lease_ms: int,
    waits: bool,
    ordered: bool = False,
) -> Command[Batch]:
    """Lease up to `limit` messages of one slot."""
    return Command(
        scripts.load("prepare"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            _replay(keys, session), keys.audit,
        ),
        [
            now(), session.number, limit, lease_ms, 1 if waits else 0, 1 if ordered else 0,
            keys.created,
        ],
        _parse_batch,
        says_again=True,
    )  # fmt: skip


def next(slots: Sequence[SlotKeys], waits: bool) -> Command[list[int]]:
    """Microseconds until each slot has work: 0 now, -1 never as things stand."""
    keys = [key for one in slots for key in (one.slot, one.store, one.prepare)]
    return Command(scripts.load("next"), keys, [now(), 1 if waits else 0, slots[0].created], list)


def rollback(context: TopicContext, keys: SlotKeys, limit: int = 100) -> Command[RolledBack]:
    """Take back leases of one slot whose deadline has passed."""
    return Command(
        scripts.load("rollback"),
        (*_whole_slot(keys), keys.audit),
        [now(), context.channel, keys.index, limit],
        lambda reply: RolledBack(reply[0], reply[1], reply[2] == 1),
    )


# --- settling ----------------------------------------------------------------------------------


def _text(reply: bytes) -> str:
    return reply.decode()


def ack(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    numbers: Sequence[int] = (),
    marks: Sequence[bytes] = (),
) -> Command[str]:
    """Settle deliveries of one slot; a letter for each: 1 settled, 0 lost.

    `numbers`: the delivery numbers (fences), where they are known. `marks`: what `rmq.Audit` has
    put on each message, where that is known.
    """
    return Command(
        scripts.load("ack"),
        (
            keys.slot, keys.prepare, keys.records, keys.failures, keys.settled0, keys.settled1,
            _replay(keys, session), keys.audit,
        ),
        [
            now(), session.number, context.channel, keys.index,
            *receipt_runs(receipts, numbers or [0] * len(ids)), *ids, *marks,
        ],
        _text,
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
    """Give failed deliveries back; a letter for each: r retry, d dead, 0 lost."""
    return Command(
        scripts.load("nack"),
        (
            *_whole_slot(keys), _replay(keys, session), keys.audit,
        ),
        [
            now(), session.number, context.channel, keys.index, b"" if wait_ms is None else wait_ms,
            *ids, *map(repr, receipts), *errors,
        ],
        _text,
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
    """Send deliveries to the DeadQueue; a letter for each: d dead, 0 lost."""
    return Command(
        scripts.load("reject"),
        (
            keys.slot, keys.prepare, keys.records, keys.dead, keys.failures, _replay(keys, session),
            keys.audit,
        ),
        [
            now(), session.number, context.channel, keys.index, reason,
            *ids, *map(repr, receipts), *errors,
        ],
        _text,
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
    """Hand deliveries back unworked; a letter for each: 1 released, 0 lost."""
    return Command(
        scripts.load("release"),
        (
            keys.slot, keys.store, keys.prepare, keys.failures, _replay(keys, session),
            keys.records,
        ),
        [
            now(), session.number, context.channel, keys.index, wait_ms,
            *ids, *map(repr, receipts), *places,
        ],
        _text,
    )  # fmt: skip


def extend(
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    lease_ms: int,
) -> Command[Extended]:
    """Move the deadline of leases."""

    def parse(reply: bytes) -> Extended:
        deadline, letters = reply.decode().split(" ")
        return Extended(int(deadline), letters)

    return Command(
        scripts.load("extend"),
        (keys.slot, keys.prepare, _replay(keys, session)),
        [now(), session.number, lease_ms, *ids, *map(repr, receipts)],
        parse,
    )


# --- one message -------------------------------------------------------------------------------


def _whole_slot(keys: SlotKeys) -> tuple[bytes, ...]:
    return (keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures)


def cancel(keys: SlotKeys, session: ReplaySession, id: bytes) -> Command[str]:
    """Withdraw a waiting message: cancelled, in_flight, dead or gone."""
    return Command(
        scripts.load("cancel"),
        (
            *_whole_slot(keys), keys.merge, keys.settled0, keys.settled1, _replay(keys, session),
            keys.audit,
        ),
        [now(), session.number, id],
        _text,
    )  # fmt: skip


def reschedule(
    context: TopicContext, keys: SlotKeys, session: ReplaySession, id: bytes, due: int
) -> Command[tuple[str, int]]:
    """Give a waiting message another time; `due` below 1e12 is a delay in ms."""
    return Command(
        scripts.load("reschedule"),
        (keys.slot, keys.store, keys.prepare, keys.records, keys.dead, _replay(keys, session)),
        [now(), session.number, context.channel, keys.index, id, due],
        lambda reply: (reply[0].decode(), reply[1]),
    )


def set_priority(keys: SlotKeys, session: ReplaySession, id: bytes, priority: int) -> Command[str]:
    """Give a waiting message another priority."""
    return Command(
        scripts.load("set_priority"),
        (keys.slot, keys.store, keys.prepare, keys.records, keys.dead, _replay(keys, session)),
        [session.number, id, priority],
        _text,
    )


def get(keys: SlotKeys, id: bytes) -> Command[Found | None]:
    """Look at one message, wherever it is."""

    def parse(reply: list[Any]) -> Found | None:
        if reply[0] == b"gone":
            return None
        return Found(reply[0].decode(), id, float(reply[1]), reply[2], reply[3], reply[4])

    return Command(scripts.load("get"), _whole_slot(keys), [id], parse)


def where(keys: SlotKeys, ids: Sequence[bytes]) -> Command[Where]:
    """In which queue messages of one slot are, at most 1000, and what else the slot holds."""
    return Command(
        scripts.load("where"),
        (keys.slot, keys.store, keys.prepare, keys.dead),
        list(ids),
        lambda reply: Where(reply[0], reply[1], reply[2], reply[3].decode()),
    )


# --- operating ---------------------------------------------------------------------------------


def _queue(keys: SlotKeys, place: str) -> bytes:
    queue: bytes = getattr(keys, place)
    return queue


def peek(
    keys: SlotKeys,
    place: str,
    *,
    low: str = "-inf",
    high: str = "+inf",
    down: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> Command[list[Found]]:
    """Look at a page of one queue of a slot."""

    def parse(reply: list[Any]) -> list[Found]:
        newest, flat = reply[0], reply[1:]
        if len(flat) % 4:
            raise DecodeError(f"peek answered {len(flat)} fields, which is not whole messages")
        return [
            Found(place, flat[i], float(flat[i + 1]), flat[i + 2], flat[i + 3], newest)
            for i in range(0, len(flat), 4)
        ]

    return Command(
        scripts.load("peek"),
        (keys.slot, _queue(keys, place), keys.records, keys.failures),
        [low, high, "down" if down else "up", offset, limit],
        parse,
    )


def redrive(
    context: TopicContext, keys: SlotKeys, session: ReplaySession, ids: Sequence[bytes]
) -> Command[str]:
    """Send dead letters back; a letter for each: 1 sent, 0 not dead, x unreadable."""
    return Command(
        scripts.load("redrive"),
        (keys.slot, keys.store, keys.records, keys.dead, keys.failures, _replay(keys, session)),
        [now(), session.number, context.channel, keys.index, *ids],
        _text,
    )


def purge(
    keys: SlotKeys,
    session: ReplaySession,
    place: str,
    *,
    high: str = "+inf",
    limit: int = 1000,
    ids: Sequence[bytes] = (),
) -> Command[int]:
    """Delete a page of waiting messages or dead letters; how many."""
    return Command(
        scripts.load("purge"),
        (
            keys.slot, _queue(keys, place), keys.records, keys.failures, keys.merge, keys.audit,
            _replay(keys, session),
        ),
        [now(), session.number, high, limit, *ids],
        int,
    )  # fmt: skip


def tidy(keys: SlotKeys, limit: int = 100) -> Command[int]:
    """Drop dead letters past their retention, and settled ids past the window; how many letters."""
    return Command(
        scripts.load("tidy"),
        (
            keys.slot, keys.records, keys.dead, keys.failures, keys.settled0, keys.settled1,
            keys.audit,
        ),
        [now(), limit],
        int,
    )  # fmt: skip


def stats(keys: SlotKeys) -> Command[dict[str, int]]:
    """Count what a slot holds and what it has done; the names are in STATS."""
    return Command(
        scripts.load("stats"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.merge, keys.settled0,
            keys.settled1,
        ),
        [now()],
        lambda reply: dict(zip(STATS, reply, strict=True)),
    )  # fmt: skip


# --- auditing ----------------------------------------------------------------------------------


def account(
    keys: SlotKeys, producer: str, old: int, sent: int, ranges: Sequence[tuple[int, int]] = ()
) -> Command[int]:
    """Tell that numbers up to `sent` are accepted, and account for those that no message has.

    `old`: what was told before, 0 at first.
    """
    pairs = [number for pair in ranges for number in pair]
    return Command(
        scripts.load("account"), (keys.slot, keys.audit), [now(), producer, old, sent, *pairs], int
    )


def audit(
    keys: SlotKeys, after: bytes = b"", limit: int = 1000, every_ms: int = 0
) -> Command[OpenPage | None]:
    """Read a page of the numbers that are not accounted for; None: somebody has asked lately."""

    def parse(reply: list[Any]) -> OpenPage | None:
        return OpenPage(reply[0], reply[1], reply[2], reply[3], reply[4:]) if reply[0] else None

    return Command(
        scripts.load("audit"), (keys.slot, keys.audit), [now(), after, limit, every_ms], parse
    )


def census(keys: SlotKeys, cursor: bytes, limit: int) -> Command[Census]:
    """A page of the numbered messages that live in a slot."""
    return Command(
        scripts.load("census"),
        (keys.slot, keys.store, keys.prepare, keys.dead, keys.records),
        [cursor, limit],
        lambda reply: Census(reply[0], reply[1], reply[2:]),
    )
