"""Commands that lease messages, tell when there are some, and roll back expired leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command

LEASES_EXPIRED, LONG_EXPIRED = 1, 2  # bits of Batch.expired
_ANY_LARGE = 4  # beside them in the reply
NEXT_READY_MAX = 1024  # slots in one call of next_ready


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
    waits: bool,
    ordered: bool = False,
    shared: int | None = None,
) -> Command[Batch]:
    """Lease up to `limit` messages of one slot.

    `shared`: under the shared lease of this number, or under a new one where it is gone or for 0;
    None: each delivery has a deadline of its own.
    """

    def parse(reply: list[Any]) -> Batch:
        bits, ids = reply[1], keys.ids_of(reply[6])
        return Batch._make((reply[0], bits & 3, *reply[2:6], ids, reply[7], bits >= _ANY_LARGE))

    return Command(
        scripts.load("prepare"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, keys.bodies, keys.leases,
        ),
        [
            clock.now_us, session.call, limit, lease_ms, 1 if waits else 0, 1 if ordered else 0,
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
