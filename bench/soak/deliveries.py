"""Checks of the deliveries of messages: repeated, overlapping, early, late, and out of order."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.soak.history import Event
from bench.soak.per_id import ROUNDING_MS

SETTLING = frozenset(("ack", "nack", "release"))


@dataclass(slots=True)
class Message:
    """The events of one id, each list in the order of time."""

    id: str
    sends: list[Event] = field(default_factory=list)  # type invoke
    answers: list[Event] = field(default_factory=list)  # type ok
    deliveries: list[Event] = field(default_factory=list)
    settling: list[Event] = field(default_factory=list)  # ack, nack, release; all types
    events: list[Event] = field(default_factory=list)
    handled: bool = False
    dead: Event | None = None

    def add(self, event: Event) -> None:
        """Add its next event."""
        self.events.append(event)
        if event.op == "send":
            if event.type == "invoke":
                self.sends.append(event)
            elif event.type == "ok":
                self.answers.append(event)
        elif event.op in SETTLING:
            self.settling.append(event)
        elif event.type == "ok":
            if event.op == "deliver":
                self.deliveries.append(event)
            elif event.op == "handle":
                self.handled = True
            elif event.op == "dead":
                self.dead = event

    def acks(self) -> list[Event]:
        """Return the acks that were accepted."""
        return [one for one in self.settling if one.op == "ack" and one.type == "ok"]

    def may_be_acked(self) -> bool:
        """Return whether an ack was accepted or has an unknown outcome."""
        refused = {one.receipt for one in self.settling if one.op == "ack" and one.type == "fail"}
        return any(one.op == "ack" and one.receipt not in refused for one in self.settling)


def in_turn(deliveries: Iterable[Event]) -> list[Event]:
    """Return deliveries in the order in which Redis made them.

    Their events are in the order in which programs saw them. A process that was stopped after
    Redis answered sees its delivery late. For concurrent calls, the attempt gives the order.
    """
    turns: list[Event] = []
    for one in deliveries:
        place = len(turns)
        while place and turns[place - 1].attempt > one.attempt and one.since:
            if one.since > turns[place - 1].t:
                break
            place -= 1
        turns.insert(place, one)
    return turns


def repeated(message: Message) -> tuple[Counter[str], list[str]]:
    """Return the causes of repeated deliveries, and the deliveries without a cause."""
    causes: Counter[str] = Counter()
    wrong = []
    for before, again in pairwise(in_turn(message.deliveries)):
        told = [
            one.type for one in message.settling
            if one.op != "ack" and one.receipt == before.receipt and one.t <= again.t
        ]  # fmt: skip
        given_back = bool(told) and "fail" not in told
        if given_back:
            causes["nack"] += 1
        elif before.until and again.wall + ROUNDING_MS >= before.until:
            causes["lease expired"] += 1
        else:
            causes["unexplained"] += 1
            wrong.append(
                f"{message.id}: attempt {again.attempt} came without a nack and before the lease "
                f"of attempt {before.attempt} ended"
            )
    return causes, wrong


def overlaps(message: Message) -> list[str]:
    """Return the deliveries that began inside the unsettled lease of another delivery."""
    wrong = []
    turns = in_turn(message.deliveries)
    for place, again in enumerate(turns):
        for before in turns[:place]:
            settled = any(
                one.receipt == before.receipt and one.t <= again.t for one in message.settling
            )
            if before.receipt != again.receipt and not settled:
                early = before.until - again.wall
                if early > ROUNDING_MS:
                    wrong.append(
                        f"{message.id}: attempt {again.attempt} began {early} ms before the lease "
                        f"of attempt {before.attempt} ended"
                    )
    return wrong


def returned(message: Message) -> bool:
    """Return whether a call that began after an accepted ack received the message."""
    acked = min((one.t for one in message.acks()), default=None)
    return acked is not None and any((one.since or one.t) > acked for one in message.deliveries)


def early(message: Message) -> int:
    """Return how many ms before its due time it was delivered; 0 if it was not early."""
    if not message.sends:
        return 0
    due = message.sends[0].due
    return max((due - one.wall - ROUNDING_MS for one in message.deliveries if due), default=0)


def lateness(message: Message) -> int | None:
    """Return how many ms after its due time it was delivered; None if it has no due time."""
    if not message.sends or not message.sends[0].due or not message.deliveries:
        return None
    return max(0, message.deliveries[0].wall - max(message.sends[0].due, message.sends[0].wall))


def inversions(messages: Iterable[Message]) -> list[str]:
    """Return messages that were taken while a message of higher priority waited in their slot.

    Only certain cases count. The other message was accepted before the call began that received
    this message, and the call that received the other message began after this message arrived.
    Timed messages and retries are ordered by time, and are left out.
    """
    by_slot: dict[int, list[tuple[int, Message, Event]]] = defaultdict(list)
    for message in messages:
        if message.answers and message.deliveries and not message.sends[0].due:
            first = message.deliveries[0]
            if first.attempt == 1 and first.slot >= 0 and first.since and message.sends[0].priority:
                by_slot[first.slot].append((message.answers[0].t, message, first))
    return [text for found in by_slot.values() for text in _of_slot(found)]


def _of_slot(found: Sequence[tuple[int, Message, Event]]) -> list[str]:
    accepted = sorted(found, key=lambda one: one[0])
    taken = sorted(found, key=lambda one: one[2].since)
    waiting: list[tuple[int, int, Message, Event]] = []
    wrong, place = [], 0
    for _, message, delivery in taken:
        while place < len(accepted) and accepted[place][0] < delivery.since:
            _, other, its_delivery = accepted[place]
            heapq.heappush(waiting, (-other.sends[0].priority, place, other, its_delivery))
            place += 1
        while waiting and waiting[0][3].since <= delivery.since:
            heapq.heappop(waiting)
        skipped = []
        while waiting and -waiting[0][0] > message.sends[0].priority:
            if waiting[0][3].since > delivery.t:
                wrong.append(f"{message.id} was taken before {waiting[0][2].id}")
                break
            skipped.append(heapq.heappop(waiting))  # taken at the same time by another consumer
        for one in skipped:
            heapq.heappush(waiting, one)
    return wrong
