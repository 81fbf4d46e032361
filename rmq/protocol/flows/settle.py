"""Settle deliveries: ack, nack, reject, release, extend; one or many, of one slot or several.

Each verb takes the leases of the deliveries and returns a `Settling`: one call for each slot and
thousand, each in a replay session of its own. The reply has a letter for each delivery, in order. A
settling without a reply keeps its sessions and their numbers, so it can be run again: calls that
were made answer as before, and the others are made. Commands in `beside` go before the calls, in
the same round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.settings import BATCH_MAX
from rmq.core.topic_context import TopicContext
from rmq.errors import OutcomeUnknown, RMQError
from rmq.protocol import commands
from rmq.protocol.flows.claim import Beside
from rmq.protocol.steps import Command, Flow, Pipeline

T = TypeVar("T")
UNKNOWN = "?"  # the letter of a delivery whose slot answered with an error


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


# keys, session, the leases of one slot, and their places among all -> the call
_Build = Callable[[SlotKeys, ReplaySession, Leases, Sequence[int]], Command[Any]]


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


# how many deliveries, the replies with their places, the places without a slot -> the answer
_Read = Callable[[int, list[tuple[Sequence[int], Any]], list[Sequence[int]]], T]


class Settling(Generic[T]):
    """The calls of one settling, to be made as often as it takes until they are answered.

    Redis keeps the answers for a minute (`lua/lib/replay.lua`). Run again after that, a call finds
    by the receipts what is still the caller's: nothing is done twice, but what the first call had
    settled is then reported as lost.
    """

    __slots__ = ("_beside", "_calls", "_context", "_gone", "_parts", "_read", "_sessions", "_size")

    def __init__(
        self,
        context: TopicContext,
        leases: Leases,
        build: _Build,
        read: _Read[T],
        beside: Beside | None,
        last_first: bool = False,
    ) -> None:
        parts = _parts(leases) if leases.ids else []
        if last_first:
            parts.reverse()
        # A topic that was created anew may have fewer slots: what was leased of the others is lost.
        self._gone = [places for slot, _, places in parts if slot >= len(context.slots)]
        parts = [part for part in parts if part[0] < len(context.slots)]
        self._context = context
        self._size = len(leases.ids)
        self._parts = [places for _, _, places in parts]
        self._sessions = [context.sessions.take() for _ in parts]
        self._calls = [
            build(context.slots[slot], session, some, places)
            for (slot, some, places), session in zip(parts, self._sessions, strict=True)
        ]
        self._read = read
        self._beside = beside

    def run(self) -> Flow[T]:
        """Make the calls. The first error is raised after all are made."""
        answer, error = yield from self.ask()
        if error is not None:
            raise error
        return answer

    def ask(self) -> Flow[tuple[T, RMQError | None]]:
        """As `run`; but where some slots answered and others failed, the answer and the error."""
        try:
            replies = yield from self._made()
        except OutcomeUnknown:
            raise
        except Exception:
            self._answered()
            raise
        self._answered()
        errors = [one for one in replies if isinstance(one, RMQError)]
        if errors and len(errors) == len(replies):
            raise errors[0]
        pairs = list(zip(self._parts, replies, strict=True))
        answer = self._read(self._size, pairs, self._gone)
        return answer, errors[0] if errors else None

    def _made(self) -> Flow[list[Any]]:
        calls, beside = self._calls, self._beside
        if beside is not None and calls:
            both: list[Any] = yield Pipeline([*beside.commands, *calls])
            beside.told(both[: len(beside.commands)])
            return both[len(beside.commands) :]
        if len(calls) == 1:
            return [(yield calls[0])]
        return (yield Pipeline(calls)) if calls else []

    def _answered(self) -> None:
        for session in self._sessions:
            self._context.sessions.give(session)
        self._sessions = []


def _letters(size: int, replies: list[tuple[Sequence[int], Any]], gone: list[Sequence[int]]) -> str:
    if len(replies) == 1 and not gone:
        return str(replies[0][1])
    letters = [UNKNOWN] * size
    for place in chain.from_iterable(gone):
        letters[place] = "0"
    for places, reply in replies:
        if not isinstance(reply, RMQError):
            for place, letter in zip(places, reply, strict=True):
                letters[place] = letter
    return "".join(letters)


def _deadlines(
    size: int, replies: list[tuple[Sequence[int], Any]], gone: list[Sequence[int]]
) -> list[int | None]:
    deadlines: list[int | None] = [0] * size
    for place in chain.from_iterable(gone):
        deadlines[place] = None
    for places, reply in replies:
        if not isinstance(reply, RMQError):
            for place, letter in zip(places, reply.letters, strict=True):
                deadlines[place] = reply.deadline_s if letter == "1" else None
    return deadlines


def ack(context: TopicContext, leases: Leases, beside: Beside | None = None) -> Settling[str]:
    """Settle for good: 1 settled, 0 lost."""

    def build(
        keys: SlotKeys, session: ReplaySession, some: Leases, places: Sequence[int]
    ) -> Command[Any]:
        return commands.ack(context, keys, session, some.ids, some.scores, some.numbers, some.marks)

    return Settling(context, leases, build, _letters, beside)


def nack(
    context: TopicContext,
    leases: Leases,
    errors: Sequence[bytes],
    wait_ms: int | None,
    beside: Beside | None = None,
) -> Settling[str]:
    """Give back as failed: r retry, d dead, 0 lost."""

    def build(
        keys: SlotKeys, session: ReplaySession, some: Leases, places: Sequence[int]
    ) -> Command[Any]:
        told = [errors[p] for p in places]
        return commands.nack(context, keys, session, some.ids, some.scores, told, wait_ms)

    return Settling(context, leases, build, _letters, beside)


def reject(
    context: TopicContext,
    leases: Leases,
    errors: Sequence[bytes],
    reason: str,
    beside: Beside | None = None,
) -> Settling[str]:
    """To the DeadQueue at once: d dead, 0 lost. `reason`: r rejected, u undecodable."""

    def build(
        keys: SlotKeys, session: ReplaySession, some: Leases, places: Sequence[int]
    ) -> Command[Any]:
        told = [errors[p] for p in places]
        return commands.reject(context, keys, session, some.ids, some.scores, told, reason)

    return Settling(context, leases, build, _letters, beside)


def release(
    context: TopicContext,
    leases: Leases,
    places_taken: Sequence[int],
    wait_ms: int,
    beside: Beside | None = None,
) -> Settling[str]:
    """Hand back unworked: 1 released, 0 lost. `places_taken`: priorities, or due times."""

    def build(
        keys: SlotKeys, session: ReplaySession, some: Leases, places: Sequence[int]
    ) -> Command[Any]:
        taken = [places_taken[p] for p in places]
        return commands.release(context, keys, session, some.ids, some.scores, taken, wait_ms)

    # Each call puts its messages in front of all others, so the first thousand goes last.
    return Settling(context, leases, build, _letters, beside, last_first=wait_ms == 0)


def extend(
    context: TopicContext, leases: Leases, lease_ms: int, beside: Beside | None = None
) -> Settling[list[int | None]]:
    """Move deadlines: for each the new deadline in s; None: the lease is lost; 0: not known."""

    def build(
        keys: SlotKeys, session: ReplaySession, some: Leases, places: Sequence[int]
    ) -> Command[Any]:
        return commands.extend(keys, session, some.ids, some.scores, lease_ms)

    return Settling(context, leases, build, _deadlines, beside)
