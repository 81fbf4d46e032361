"""A topic that is resized, in small: the numbers of its deliveries, and the shares of its slots.

What a slot counts must mean something in another slot, or it does not survive a resize. Two models,
each of two slots: `Numbers` follows one basis from the slot that it had to the slot that it gets;
`Shares` has the room of `max_length`, divided by `Layout` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from rmq.kernel.core.layout import Layout

TIME = 1000  # numbers from here on are times; a slot never counts so far
OTHERS = 3  # deliveries of other bases, in each slot
OLD, NEW = 0, 1  # the slots of the basis


@dataclass(frozen=True)
class Rules:
    """The rules that RMQ follows; a mutant leaves one out."""

    hold: bool = True  # the new slot gives nothing while the old one has what is awaited
    by_clock: bool = True  # a slot of a resized topic numbers its deliveries by the clock
    floor: bool = True  # one that opens goes on from the largest number that was awaited
    parts: bool = True  # the parts of all slots that the topic has had make the whole
    deal: bool = True  # a slot that is full gets room that others do not need


class Numbers(NamedTuple):
    """The messages of a basis: one that is awaited, late ones that are not, and new ones."""

    now: int = 1  # each delivery takes time
    skew: int = 0  # so much the clock of the new slot's master is behind
    existed: bool = False  # the new slot was there before: the topic shrinks
    begun: bool = False
    stamped: tuple[bool, bool] = (False, False)
    floor: int = -1  # noted when nothing is awaited any more
    is_open: bool = False
    last: tuple[int, int] = (0, 0)
    others: tuple[int, int] = (0, 0)
    awaited: int = 1
    late: int = 0
    unsent: int = 2
    sent: int = 0
    newest: int = 0  # the largest number that a delivery of the basis had


S = TypeVar("S")
Step = tuple[str, S, str]  # what happens, the state then, the promise that it breaks


def _numbered(rules: Rules, s: Numbers, slot: int, mine: bool) -> tuple[Numbers, str]:
    """Deliver a message of the slot; `mine`: of the basis."""
    number, clock = s.last[slot], TIME + s.now - (s.skew if slot == NEW else 0)
    number += 1
    if rules.by_clock and s.stamped[slot]:
        number = max(number, clock)
    last = (number, s.last[NEW]) if slot == OLD else (s.last[OLD], number)
    after = s._replace(now=s.now + 1, last=last)
    if not mine:
        return after, ""
    broken = "" if number > s.newest else "a later delivery of a basis has a larger number"
    return after._replace(newest=max(number, s.newest)), broken


def number_steps(rules: Rules, s: Numbers) -> Iterator[Step[Numbers]]:
    """Yield the steps that may come next."""
    gives = (True, s.is_open if s.stamped[NEW] else s.existed)
    for slot in (OLD, NEW):
        if gives[slot] and s.others[slot] < OTHERS:
            counts = tuple(n + (i == slot) for i, n in enumerate(s.others))
            after, _ = _numbered(rules, s._replace(others=counts), slot, False)
            yield f"slot {slot} delivers another message", after, ""
    for field in ("awaited", "late"):
        if getattr(s, field):
            left = s._replace(**{field: getattr(s, field) - 1})
            yield f"the old slot delivers one that is {field}", *_numbered(rules, left, OLD, True)
    if s.sent and gives[NEW]:
        after, broken = _numbered(rules, s._replace(sent=s.sent - 1), NEW, True)
        overtaken = "a newer message does not overtake one that is awaited"
        yield "the new slot delivers a new one", after, overtaken if s.awaited else broken
    if not s.begun:
        yield "the resize begins", s._replace(begun=True), ""
        return
    for slot in (OLD, NEW):
        if not s.stamped[slot]:
            stamps = tuple(done or i == slot for i, done in enumerate(s.stamped))
            yield (
                f"slot {slot} gets its stamp",
                s._replace(stamped=stamps, is_open=(not rules.hold and slot == NEW) or s.is_open),
                "",
            )
    if all(s.stamped) and s.unsent:
        yield "a new one is sent", s._replace(unsent=s.unsent - 1, sent=s.sent + 1), ""
    if all(s.stamped) and not s.awaited and s.floor < 0:
        yield "it is noted that nothing is awaited", s._replace(floor=s.last[OLD]), ""
    if s.floor >= 0 and not s.is_open:
        from_ = max(s.last[NEW], s.floor) if rules.floor else s.last[NEW]
        yield "the new slot is opened", s._replace(is_open=True, last=(s.last[OLD], from_)), ""


class Shares(NamedTuple):
    """Room for messages of two slots; `layout` is None until the topic is resized."""

    slots: int
    waiting: tuple[int, int] = (0, 0)
    layout: Layout | None = None


WHOLE = 8  # of max_length


def _capacity(rules: Rules, s: Shares, slot: int) -> int:
    if s.layout is None or not rules.parts:
        return -(-WHOLE // s.slots)
    return s.layout.capacity(WHOLE, slot, s.slots)


def share_steps(rules: Rules, s: Shares) -> Iterator[Step[Shares]]:
    """Yield the steps that may come next: sends by both numbers of slots, takes, and one resize."""
    first = s.layout.first if s.layout else s.slots
    for slot in range(max(s.slots, first)):
        more = s._replace(waiting=tuple(n + (i == slot) for i, n in enumerate(s.waiting)))
        full, dealt = s.waiting[slot] >= _capacity(rules, s, slot), s
        if full and s.layout and rules.deal and sum(s.waiting) < WHOLE:
            dealt = s._replace(layout=Layout(1, first, 2, dealt=s.waiting))
            full = s.waiting[slot] >= _capacity(rules, dealt, slot)
        if not full:
            broken = ""
            if sum(more.waiting) > WHOLE + len(s.waiting):  # parts are rounded up
                broken = "no more messages wait than max_length, and one for each slot"
            yield f"slot {slot} stores one", more._replace(layout=dealt.layout), broken
        elif s.layout and sum(s.waiting) < WHOLE:
            yield f"slot {slot} refuses one", s, "nothing is refused while the topic has room"
    for slot in range(2):
        if s.waiting[slot]:
            left = tuple(n - (i == slot) for i, n in enumerate(s.waiting))
            yield f"slot {slot} gives one", s._replace(waiting=left), ""
    if s.layout is None:
        layout = Layout(1, s.slots, 2, dealt=s.waiting)
        yield "it is resized", Shares(3 - s.slots, s.waiting, layout), ""


class Found(NamedTuple):
    """How many states there are, or the promise that is broken, and how."""

    states: int
    broken: str
    trace: list[str]


def search(
    rules: Rules, first: S, steps: Callable[[Rules, S], Iterator[Step[S]]], most: int = 100_000
) -> Found:
    """Visit every state, breadth first; stop at the first that breaks a promise."""
    came: dict[S, tuple[S, str] | None] = {first: None}
    todo = [first]
    for state in todo:
        for what, after, broken in steps(rules, state):
            if broken:
                trace, at = [what], came[state]
                while at is not None:
                    trace.append(at[1])
                    at = came[at[0]]
                return Found(len(came), broken, trace[::-1])
            if after not in came:
                came[after] = (state, what)
                todo.append(after)
        assert len(todo) < most
    return Found(len(came), "", [])
