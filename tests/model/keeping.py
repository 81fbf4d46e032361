"""A history in small: a slot with a few messages, two consumers, a sweep, and a reader.

The consumers receive and ack messages. Their leases may end, and they may die before every step.
The sweep removes an entry at any moment, and the clock may go back once, as after a failover. The
reader reads entries and then asks what was removed, with other steps in between.
`tests.model.resized.search` visits every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.resized import Step

WAITING, GONE, NONE = -1, -2, -1
PROCESSES = (0, 1)
Entry = tuple[int, int]  # time, and number in that time


@dataclass(frozen=True)
class Rules:
    """The rules that RMQ follows; a mutant leaves one out."""

    receipts: bool = True  # an ack without a lease adds nothing
    one_step: bool = True  # an ack adds the message in the step that removes it
    ids_grow: bool = True  # the id of an entry is larger than that of the one before, at any time
    oldest_first: bool = True  # the oldest entry is removed
    notes_gone: bool = True  # the slot keeps the id of the entry that was removed
    checks_after: bool = True  # the reader asks what was removed after it has read


class State(NamedTuple):
    """The slot, the consumers, and the reader.

    Attributes:
        messages: where each message is: WAITING, GONE, or the consumer that has its lease.
        handled: the message that each consumer handles, perhaps without a lease; NONE.
        adding: the message that each consumer has added, but not removed (without `one_step`).
        history: entries, and the message of each.
        newest, gone: the newest entry, and the newest one that was removed.
        removed: entries that were removed, and the message of each.
        now: the clock.
        page: what the reader has read and not checked; None: nothing.
        checked: whether the reader has asked what was removed (without `checks_after`).
        position: the last entry that the reader has seen.
        seen: messages that the reader got, in order.
        gaps: the ends of gaps that it was told.
        ticks, sweeps, backs, deaths: how many may still come.
    """

    messages: tuple[int, ...]
    handled: tuple[int, int] = (NONE, NONE)
    adding: tuple[int, int] = (NONE, NONE)
    history: tuple[tuple[Entry, int], ...] = ()
    newest: Entry = (0, 0)
    gone: Entry = (0, 0)
    removed: tuple[tuple[Entry, int], ...] = ()
    now: int = 1
    page: tuple[tuple[Entry, int], ...] | None = None
    checked: bool = False
    position: Entry = (0, 0)
    seen: tuple[int, ...] = ()
    gaps: tuple[tuple[Entry, Entry], ...] = ()
    ticks: int = 1
    sweeps: int = 2
    backs: int = 1
    deaths: int = 1


ONLY = "only messages that were acked are in the history"
ONCE = "an acked message is in the history once, or was removed"
TWICE = "a reader gets a message once"
MISSED = "a reader gets each message, or is told the gap"
KEPT = "a gap has only messages that were removed"


def broken(s: State) -> str:
    """Return the promise that a state breaks."""
    added = [message for _, message in s.history + s.removed]
    if any(s.messages[message] != GONE for message in added):
        return ONLY
    if sorted(added) != [n for n, where in enumerate(s.messages) if where == GONE]:
        return ONCE
    if len(set(s.seen)) < len(s.seen):
        return TWICE
    for entry, message in s.history + s.removed:
        is_told = any(begin < entry <= end for begin, end in s.gaps)
        if entry <= s.position and message not in s.seen and not is_told:
            return MISSED
    if any(begin < entry <= end for entry, _ in s.history for begin, end in s.gaps):
        return KEPT
    return ""


def steps(rules: Rules, s: State) -> Iterator[Step[State]]:
    """Yield the steps that may come next, and the promise that each breaks."""
    for what, after in (*_of_slot(rules, s), *_of_consumers(rules, s), *_of_reader(rules, s)):
        yield what, after, broken(after)


def _of_slot(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    if s.ticks:
        yield "time passes", s._replace(now=s.now + 1, ticks=s.ticks - 1)
    if s.backs:
        yield "the clock goes back", s._replace(now=s.now - 1, backs=s.backs - 1)
    for message, where in enumerate(s.messages):
        if where >= 0:
            yield f"the lease of {message} ends", _at(s, message, WAITING)
    if s.sweeps and s.history:
        place = 0 if rules.oldest_first else len(s.history) - 1
        removed = s.history[place]
        yield (
            "the oldest entry is removed",
            s._replace(
                history=s.history[:place] + s.history[place + 1 :],
                removed=(*s.removed, removed),
                gone=removed[0] if rules.notes_gone else s.gone,
                sweeps=s.sweeps - 1,
            ),
        )


def _at(s: State, message: int, where: int) -> State:
    return s._replace(messages=(*s.messages[:message], where, *s.messages[message + 1 :]))


def _pair(pair: tuple[int, int], n: int, value: int) -> tuple[int, int]:
    return (value, pair[1]) if n == 0 else (pair[0], value)


def _of_consumers(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    for n in PROCESSES:
        message, name = s.handled[n], f"consumer {n} "
        if message == NONE:
            for free, where in enumerate(s.messages):
                if where == WAITING:
                    after = _at(s, free, n)._replace(handled=_pair(s.handled, n, free))
                    yield f"{name}receives {free}", after
            continue
        if s.deaths:
            done = _pair(s.handled, n, NONE), _pair(s.adding, n, NONE)
            yield name + "dies", s._replace(handled=done[0], adding=done[1], deaths=s.deaths - 1)
        if s.adding[n] != NONE:  # the second step of an ack in two steps
            yield name + "adds the message", _done(_add(rules, s, message), n)
        elif s.messages[message] != n:
            after = s if rules.receipts else _add(rules, s, message)
            yield f"{name}acks {message} without a lease", _done(after, n)
        elif rules.one_step:
            after = _add(rules, _at(s, message, GONE), message)
            yield f"{name}acks {message}", _done(after, n)
        else:
            after = _at(s, message, GONE)._replace(adding=_pair(s.adding, n, message))
            yield f"{name}removes {message}", after


def _done(s: State, n: int) -> State:
    return s._replace(handled=_pair(s.handled, n, NONE), adding=_pair(s.adding, n, NONE))


def _add(rules: Rules, s: State, message: int) -> State:
    entry = (s.now, 0)
    if entry[0] <= s.newest[0] and (rules.ids_grow or entry[0] == s.newest[0]):
        entry = (s.newest[0], s.newest[1] + 1)
    return s._replace(history=(*s.history, (entry, message)), newest=entry)


def _of_reader(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    if not rules.checks_after and not s.checked:
        yield "the reader asks what was removed", _checked(s)
    elif s.page is None:
        page = tuple(one for one in s.history if one[0] > s.position)[:1]
        if page and not rules.checks_after:
            yield "the reader reads", _take(s, page)._replace(checked=False)
        elif page:
            yield "the reader reads", s._replace(page=page)
    elif s.gone > s.position:
        yield "the reader is told a gap", _checked(s)._replace(page=None)
    else:
        yield "the reader takes its page", _take(s, s.page)


def _checked(s: State) -> State:
    if s.gone <= s.position:
        return s._replace(checked=True)
    return s._replace(checked=True, position=s.gone, gaps=(*s.gaps, (s.position, s.gone)))


def _take(s: State, page: tuple[tuple[Entry, int], ...]) -> State:
    seen = (*s.seen, *(message for _, message in page))
    return s._replace(seen=seen, position=page[-1][0], page=None)
