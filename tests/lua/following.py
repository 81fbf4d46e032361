"""Follow-ups: shared by the tests of the three scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rmq.kernel.consumer.scripts import encode_receipts
from rmq.kernel.core.ids import member_of
from rmq.kernel.follow_ups import scripts
from rmq.kernel.follow_ups.scripts import ByTarget, Entry, entry_of, slot_name
from tests.lua.box import Box, Lease

TARGET = "other:3"


class FollowUp(NamedTuple):
    """A follow-up, with the position of its delivery in the call."""

    delivery: int
    target: str
    message: bytes


def by_target(follow_ups: Iterable[FollowUp]) -> ByTarget:
    """Follow-ups as the commands take them."""
    given: dict[str, tuple[list[int], list[bytes]]] = {}
    for delivery, target, message in follow_ups:
        positions, messages = given.setdefault(target, ([], []))
        positions.append(delivery)
        messages.append(message)
    return given


def follow_up(
    box: Box, delivery: int = 1, target: str = TARGET, id: bytes | None = None, **options: Any
) -> FollowUp:
    """A follow-up of a delivery, by default with a new id."""
    return FollowUp(delivery, target, message(box, id, **options))


def message(box: Box, id: bytes | None = None, **options: Any) -> bytes:
    """Member, head and rest of the record of a message, by default with a new id."""
    return member_of(id or box.ids()[0]) + b"".join(box.part(**options))


def own(box: Box) -> str:
    """The name of the slot under test."""
    return slot_name(box.keys.topic, box.index)


def ack_then(box: Box, leases: Sequence[Lease], *follow_ups: FollowUp, **options: Any) -> Any:
    return box.run(ack_then_command(box, leases, *follow_ups, **options))


def ack_then_command(
    box: Box,
    leases: Sequence[Lease],
    *follow_ups: FollowUp,
    session: Any = None,
    results: Sequence[bytes] = (),
    keep_s: int = 0,
) -> Any:
    return scripts.ack_then(
        box.handle, box.keys, session or box.session(), [x.id for x in leases],
        encode_receipts([x.receipt for x in leases], [x.delivery for x in leases]),
        by_target(follow_ups), lambda reply: reply, results, keep_s,
    )  # fmt: skip


def entry(box: Box, number: int, id: bytes | None = None, **options: Any) -> Entry:
    """A pending entry of another slot."""
    return entry_of(number, message(box, id, **options))


def text_of(target: str, number: int, of: FollowUp) -> bytes:
    """The member of `pending`."""
    return f"{target}:".encode() + entry_of(number, of.message)


def member_in(entry: Entry) -> bytes:
    """The member of a pending entry."""
    return entry[17:30]


def pending_send(box: Box, *entries: Entry, source: str = "source:0") -> tuple[int, str]:
    reply = box.run(scripts.pending_send(box.handle, box.keys, source, entries))
    return reply.stored, reply.letter


def settle(box: Box, upto: int = 0, claim: bytes = b"", limit: int = 10, **options: Any) -> Any:
    return box.run(scripts.pending_settle(box.keys, TARGET, upto, claim, limit, **options))
