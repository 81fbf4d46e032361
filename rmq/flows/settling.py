"""Settle deliveries: ack, nack, reject, release, extend; one or many, of one slot or several.

Each verb takes the deliveries' ids, slots and receipts, makes one call for each slot and thousand,
and answers a letter for each delivery in order. A lane stays ours until the reply is in: a command
whose reply was lost is sent again under the same number, and done once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rmq import commands
from rmq.commands import Command
from rmq.errors import RMQError
from rmq.flows import Flow, Pipeline
from rmq.handle import Handle, Lane
from rmq.keys import SlotKeys
from rmq.settings import BATCH_MAX


class Lease(NamedTuple):
    """What a delivery is known by: its slot's index, its id, its receipt's score."""

    slot: int
    id: bytes
    score: float


_Build = Callable[[SlotKeys, Lane, Sequence[int]], Command[Any]]


def _each_slot(handle: Handle, leases: Sequence[Lease], build: _Build) -> Flow[list[Any]]:
    """Make the calls; for each, (places, value). The first error is raised after all are made."""
    by_slot: dict[int, list[int]] = {}
    for place, lease in enumerate(leases):
        by_slot.setdefault(lease.slot, []).append(place)
    parts = [
        (slot, places[at : at + BATCH_MAX])
        for slot, places in by_slot.items()
        for at in range(0, len(places), BATCH_MAX)
    ]
    lanes = [handle.lanes.take() for _ in parts]
    try:
        calls = [
            build(handle.slots[slot], lane, places)
            for (slot, places), lane in zip(parts, lanes, strict=True)
        ]
        replies: list[Any] = [(yield calls[0])] if len(calls) == 1 else (yield Pipeline(calls))
    finally:
        for lane in lanes:
            handle.lanes.give(lane)
    for reply in replies:
        if isinstance(reply, RMQError):
            raise reply
    return [(places, reply) for (_, places), reply in zip(parts, replies, strict=True)]


def _letters(handle: Handle, leases: Sequence[Lease], build: _Build) -> Flow[str]:
    if not leases:
        return ""
    replies = yield from _each_slot(handle, leases, build)
    if len(replies) == 1:
        return str(replies[0][1])
    letters = ["0"] * len(leases)
    for places, reply in replies:
        for place, letter in zip(places, reply, strict=True):
            letters[place] = letter
    return "".join(letters)


def ack(handle: Handle, leases: Sequence[Lease]) -> Flow[str]:
    """Settle for good: 1 settled, 0 lost."""
    if len(leases) == 1:
        (slot, message_id, score) = leases[0]
        lane = handle.lanes.take()
        try:
            letters: str = yield commands.ack(handle.slots[slot], lane, (message_id,), (score,))
        finally:
            handle.lanes.give(lane)
        return letters

    def build(keys: SlotKeys, lane: Lane, places: Sequence[int]) -> Command[Any]:
        return commands.ack(
            keys, lane, [leases[p].id for p in places], [leases[p].score for p in places]
        )

    return (yield from _letters(handle, leases, build))


def nack(
    handle: Handle, leases: Sequence[Lease], errors: Sequence[bytes], wait_ms: int | None
) -> Flow[str]:
    """Give back as failed: r retry, d dead, 0 lost."""

    def build(keys: SlotKeys, lane: Lane, places: Sequence[int]) -> Command[Any]:
        return commands.nack(
            handle,
            keys,
            lane,
            [leases[p].id for p in places],
            [leases[p].score for p in places],
            [errors[p] for p in places],
            wait_ms,
        )

    return (yield from _letters(handle, leases, build))


def reject(
    handle: Handle, leases: Sequence[Lease], errors: Sequence[bytes], reason: str
) -> Flow[str]:
    """To the DeadQueue at once: d dead, 0 lost. `reason`: r rejected, u undecodable."""

    def build(keys: SlotKeys, lane: Lane, places: Sequence[int]) -> Command[Any]:
        return commands.reject(
            keys,
            lane,
            [leases[p].id for p in places],
            [leases[p].score for p in places],
            [errors[p] for p in places],
            reason,
        )

    return (yield from _letters(handle, leases, build))


def release(
    handle: Handle, leases: Sequence[Lease], places_taken: Sequence[int], wait_ms: int
) -> Flow[str]:
    """Hand back unworked: 1 released, 0 lost. `places_taken`: priorities, or due times."""

    def build(keys: SlotKeys, lane: Lane, places: Sequence[int]) -> Command[Any]:
        return commands.release(
            handle,
            keys,
            lane,
            [leases[p].id for p in places],
            [leases[p].score for p in places],
            [places_taken[p] for p in places],
            wait_ms,
        )

    return (yield from _letters(handle, leases, build))


def extend(handle: Handle, leases: Sequence[Lease], lease_ms: int) -> Flow[list[int | None]]:
    """Move deadlines: for each the new deadline in s, or None where the lease is lost."""
    if not leases:
        return []

    def build(keys: SlotKeys, lane: Lane, places: Sequence[int]) -> Command[Any]:
        return commands.extend(
            keys,
            lane,
            [leases[p].id for p in places],
            [leases[p].score for p in places],
            lease_ms,
        )

    deadlines: list[int | None] = [None] * len(leases)
    for places, reply in (yield from _each_slot(handle, leases, build)):
        for place, letter in zip(places, reply.letters, strict=True):
            deadlines[place] = reply.deadline_s if letter == "1" else None
    return deadlines
