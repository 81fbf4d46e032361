"""Settle deliveries: ack, nack, reject, release, extend; one or many, of one slot or several.

Each verb takes the leases of the deliveries, makes one call for each slot and thousand, and answers
a letter for each delivery in order. A lane stays ours until the reply is in: a command whose reply
was lost is sent again under the same number, and done once. What is `beside` goes before them in
the same round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rmq import commands
from rmq.commands import Command
from rmq.flows import Flow, Pipeline, raised, together
from rmq.flows.claiming import Beside
from rmq.handle import Handle, Lane
from rmq.keys import SlotKeys
from rmq.settings import BATCH_MAX


class Lease(NamedTuple):
    """What a delivery is known by: its slot's index, its id, its receipt's score, its number."""

    slot: int
    id: bytes
    score: float
    number: int = 0  # the delivery number (fence); 0 where only the receipt is known


class Leases(NamedTuple):
    """Many leases, column by column: scripts take them so, and a row for each would cost more."""

    slots: Sequence[int]
    ids: Sequence[bytes]
    scores: Sequence[float]
    numbers: Sequence[int]
    marks: Sequence[bytes] = ()  # of rmq.Audit; empty where nobody knows of any

    @classmethod
    def of(cls, rows: Iterable[Lease]) -> Leases:
        """Rows turned into columns."""
        kept = list(rows)
        return cls(
            [r.slot for r in kept],
            [r.id for r in kept],
            [r.score for r in kept],
            [r.number for r in kept],
        )

    def pick(self, places: Sequence[int]) -> Leases:
        """Some of the rows."""
        slots, ids, scores, numbers, marks = self
        return Leases(
            [slots[p] for p in places],
            [ids[p] for p in places],
            [scores[p] for p in places],
            [numbers[p] for p in places],
            [marks[p] for p in places] if marks else (),
        )


# keys, lane, the leases of one slot, and their places among all -> the call
_Build = Callable[[SlotKeys, Lane, Leases, Sequence[int]], Command[Any]]


def _parts(leases: Leases) -> list[tuple[int, Leases, Sequence[int]]]:
    """The leases by slot, at most a batch each."""
    count = len(leases.ids)
    if count <= BATCH_MAX and len(set(leases.slots)) == 1:
        return [(leases.slots[0], leases, range(count))]
    by_slot: dict[int, list[int]] = {}
    for place, slot in enumerate(leases.slots):
        by_slot.setdefault(slot, []).append(place)
    return [
        (slot, leases.pick(places[at : at + BATCH_MAX]), places[at : at + BATCH_MAX])
        for slot, places in by_slot.items()
        for at in range(0, len(places), BATCH_MAX)
    ]


def _call(
    handle: Handle, leases: Leases, build: _Build, beside: Beside | None = None
) -> Flow[list[Any]]:
    """Make the calls; for each, (places, value). The first error is raised after all are made."""
    parts = _parts(leases)
    lanes = [handle.lanes.take() for _ in parts]
    try:
        calls = [
            build(handle.slots[slot], lane, some, places)
            for (slot, some, places), lane in zip(parts, lanes, strict=True)
        ]
        if beside is not None:
            both: list[Any] = yield Pipeline([*beside.commands, *calls])
            beside.told(both[: len(beside.commands)])
            replies = raised(both[len(beside.commands) :])
        elif len(calls) == 1:
            replies = [(yield calls[0])]
        else:
            replies = yield from together(calls)
    finally:
        for lane in lanes:
            handle.lanes.give(lane)
    return [(places, reply) for (_, _, places), reply in zip(parts, replies, strict=True)]


def _letters(handle: Handle, leases: Leases, build: _Build, beside: Beside | None) -> Flow[str]:
    if not leases.ids:
        return ""
    replies = yield from _call(handle, leases, build, beside)
    if len(replies) == 1:
        return str(replies[0][1])
    letters = ["0"] * len(leases.ids)
    for places, reply in replies:
        for place, letter in zip(places, reply, strict=True):
            letters[place] = letter
    return "".join(letters)


def ack(handle: Handle, leases: Leases, beside: Beside | None = None) -> Flow[str]:
    """Settle for good: 1 settled, 0 lost."""

    def build(keys: SlotKeys, lane: Lane, some: Leases, places: Sequence[int]) -> Command[Any]:
        return commands.ack(handle, keys, lane, some.ids, some.scores, some.numbers, some.marks)

    return (yield from _letters(handle, leases, build, beside))


def nack(
    handle: Handle,
    leases: Leases,
    errors: Sequence[bytes],
    wait_ms: int | None,
    beside: Beside | None = None,
) -> Flow[str]:
    """Give back as failed: r retry, d dead, 0 lost."""

    def build(keys: SlotKeys, lane: Lane, some: Leases, places: Sequence[int]) -> Command[Any]:
        told = [errors[p] for p in places]
        return commands.nack(handle, keys, lane, some.ids, some.scores, told, wait_ms)

    return (yield from _letters(handle, leases, build, beside))


def reject(
    handle: Handle,
    leases: Leases,
    errors: Sequence[bytes],
    reason: str,
    beside: Beside | None = None,
) -> Flow[str]:
    """To the DeadQueue at once: d dead, 0 lost. `reason`: r rejected, u undecodable."""

    def build(keys: SlotKeys, lane: Lane, some: Leases, places: Sequence[int]) -> Command[Any]:
        told = [errors[p] for p in places]
        return commands.reject(handle, keys, lane, some.ids, some.scores, told, reason)

    return (yield from _letters(handle, leases, build, beside))


def release(
    handle: Handle,
    leases: Leases,
    places_taken: Sequence[int],
    wait_ms: int,
    beside: Beside | None = None,
) -> Flow[str]:
    """Hand back unworked: 1 released, 0 lost. `places_taken`: priorities, or due times."""

    def build(keys: SlotKeys, lane: Lane, some: Leases, places: Sequence[int]) -> Command[Any]:
        taken = [places_taken[p] for p in places]
        return commands.release(handle, keys, lane, some.ids, some.scores, taken, wait_ms)

    return (yield from _letters(handle, leases, build, beside))


def extend(
    handle: Handle, leases: Leases, lease_ms: int, beside: Beside | None = None
) -> Flow[list[int | None]]:
    """Move deadlines: for each the new deadline in s, or None where the lease is lost."""
    deadlines: list[int | None] = [None] * len(leases.ids)
    if not deadlines:
        return deadlines

    def build(keys: SlotKeys, lane: Lane, some: Leases, places: Sequence[int]) -> Command[Any]:
        return commands.extend(keys, lane, some.ids, some.scores, lease_ms)

    for places, reply in (yield from _call(handle, leases, build, beside)):
        for place, letter in zip(places, reply.letters, strict=True):
            deadlines[place] = reply.deadline_s if letter == "1" else None
    return deadlines
