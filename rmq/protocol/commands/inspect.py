"""Commands that read messages and counters of a slot, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq.core import lateness
from rmq.core.ids import member_of, members_of
from rmq.core.keys import SlotKeys
from rmq.core.lateness import Counts
from rmq.errors import DecodeError
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command

STATS = (
    "retries", "priority", "due", "later", "in_flight", "dead", "trash", "records", "merge_windows",
    "remembered", "late_ms", "held", "paused_ms", "sends_paused_ms", "expired_leases",
    "accepted", "merged", "delivered", "settled", "returned", "rolled_back", "dead_lettered",
    "redriven", "cancelled", "expired", "dropped", "purged", "dead_dropped", "now_ms",
)  # fmt: skip


class QueueMember(NamedTuple):
    """A member of a queue, as get and peek read it."""

    queue: str  # store, prepare, dead or trash
    id: bytes
    score: float
    record: bytes
    failure: bytes
    newest: int  # acceptance number of the slot's newest message
    lease_end_ms: int | None = None  # of its shared lease


class SlotCounts(NamedTuple):
    """The reply to stats as a whole."""

    counts: dict[str, int]  # by the names of STATS
    lateness: Counts


class LocateReply(NamedTuple):
    """The reply to where: what the slot holds, and a letter for each message asked for."""

    newest: int  # acceptance number of the slot's newest message
    waiting: int
    in_flight: int
    letters: str  # s waiting, p in flight, d dead, m moved to another topic, g gone


def due_counts(keys: SlotKeys, steps_ms: Sequence[int]) -> Command[list[int]]:
    """Count the timed messages of a slot that are due by each of these times from now, and later.

    A message is counted once, at the first time by which it is due.
    """
    return Command(
        scripts.load("due_counts"),
        (keys.slot, keys.store),
        [clock.now_us, *steps_ms],
        list,
    )


def get(keys: SlotKeys, id: bytes) -> Command[QueueMember | None]:
    """Read one message, whichever queue it is in; None where it is in none."""

    def parse(reply: list[Any]) -> QueueMember | None:
        if reply[0] == b"gone":
            return None
        return QueueMember(
            reply[0].decode(), id, float(reply[1]), reply[2], reply[3], reply[4], reply[5] or None
        )

    return Command(
        scripts.load("get"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures,
            keys.leases, keys.trash,
        ),
        [member_of(id)],
        parse,
    )  # fmt: skip


def locate(keys: SlotKeys, ids: Sequence[bytes]) -> Command[LocateReply]:
    """Say in which queue messages of one slot are, at most 1000, and what else the slot holds."""
    return Command(
        scripts.load("locate"),
        (keys.slot, keys.store, keys.prepare, keys.dead, keys.trash, keys.arrivals),
        members_of(ids),
        lambda reply: LocateReply(reply[0], reply[1], reply[2], reply[3].decode()),
    )


def peek(
    keys: SlotKeys,
    queue: str,
    *,
    low: str = "-inf",
    high: str = "+inf",
    down: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> Command[list[QueueMember]]:
    """Read a page of one queue of a slot."""

    def parse(reply: list[Any]) -> list[QueueMember]:
        newest, flat = reply[0], reply[1:]
        if len(flat) % 5:
            raise DecodeError(f"peek answered {len(flat)} fields, which is not whole messages")
        return [
            QueueMember(
                queue,
                keys.id_of(flat[i]),
                float(flat[i + 1]),
                flat[i + 2],
                flat[i + 3],
                newest,
                flat[i + 4] or None,
            )
            for i in range(0, len(flat), 5)
        ]

    return Command(
        scripts.load("peek"),
        (keys.slot, getattr(keys, queue), keys.records, keys.failures, keys.leases),
        [low, high, "down" if down else "up", offset, limit],
        parse,
    )


def stats(keys: SlotKeys) -> Command[dict[str, int]]:
    """Count what a slot holds and what it has done; the names are in STATS."""
    return Command(
        scripts.load("stats"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.merge, keys.settled0,
            keys.settled1, keys.rates, keys.leases, keys.queries, keys.trash, keys.failures,
        ),
        [clock.now_us],
        lambda reply: dict(zip(STATS, reply[:-1], strict=True)),
    )  # fmt: skip


def stats_and_lateness(keys: SlotKeys) -> Command[SlotCounts]:
    """As stats, with the counts that consumers have reported by `lateness_report`."""
    command = stats(keys)
    return Command(
        command.script,
        command.keys,
        command.args,
        lambda reply: SlotCounts(command.parse(reply), lateness.read(reply[-1])),
    )
