"""A batch in small: two members, a producer, two processes that report ends, and a server.

The producer makes each message a member, sends it, and closes the batch. It may die before every
step, and start again from its beginning. Or the handler of the first member adds the second one.
Messages are acked, die, are redriven, purged, or move to another topic. Each process makes its
calls one by one, with those of others in between. `tests.model.resized.search` visits every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.resized import Step

MEMBERS = PROCESSES = (0, 1)
# Where a message is; AWAY: in another topic.
ABSENT, WAITING, DEAD, AWAY, GONE = "absent", "waiting", "dead", "away", "gone"
# What the batch knows of a member, or how it has ended.
NONE, OPEN, WAITS, SUCCEEDED, DIED, PURGED, LOST = "", ".", "!", "s", "d", "p", "l"
OPENED, CLOSED, DONE = "open", "closed", "done"


@dataclass(frozen=True)
class Rules:
    """The rules that RMQ follows; a mutant leaves one out."""

    id_first: bool = True  # a message is a member before it is sent
    first_end: bool = True  # the first end of a member counts
    forget_last: bool = True  # a slot forgets an end after the batch knows it
    compare: bool = True  # and only if no newer end has replaced it
    when_closed: bool = True  # the callback waits until the batch is closed
    when_empty: bool = True  # and until all members have ended
    one_step: bool = True  # the last end and the callback are stored in one step
    wait: bool = True  # a batch with `wait` waits for its dead letters
    refuse: bool = True  # a closed batch takes new members only from open members
    read_ends: bool = True  # the server knows ends that are not reported
    unchanged: bool = True  # the server loses members only if the batch has not changed
    repeats_change: bool = True  # adding an open member again is a change
    same_step: bool = True  # the server loses members in the step that compares
    elsewhere: bool = True  # the server does not lose a dead letter for which the batch waits


class Process(NamedTuple):
    """A process that reports ends: those that it has read, and whether they are reported."""

    ends: tuple[tuple[int, str], ...] = ()
    is_reported: bool = False


class Examination(NamedTuple):
    """The work of a server: the open members, those that it has not found, and what it knows."""

    open: tuple[tuple[int, str], ...]
    missing: tuple[int, ...] | None = None  # None: it has not looked yet
    is_unchanged: bool = True
    was_compared: bool = False


class State(NamedTuple):
    """The batch, the messages, and the processes.

    Attributes:
        producer: position of its next step: add, send, add, send, close; -1: it is dead.
        may_send: whether the producer, or the handler, sends the member that it has added.
        handler: whether the handler of the first member has added the second one.
        ends: end of each member that its slot has stored.
        callbacks: number of callbacks.
        has_wait: whether the batch waits for dead letters.
        by_member: whether the first member adds the second one.
        deaths, returns, closes: how many deaths of processes, returns of dead letters, and closes
            by a server may still come.
        reporters: number of processes that report ends.
    """

    batch: str = OPENED
    members: tuple[str, str] = (NONE, NONE)
    places: tuple[str, str] = (ABSENT, ABSENT)
    ends: tuple[str, str] = ("", "")
    producer: int = 0
    may_send: bool = False
    handler: bool = False
    processes: tuple[Process, Process] = (Process(), Process())
    server: Examination | None = None
    callbacks: int = 0
    has_wait: bool = False
    by_member: bool = False
    deaths: int = 0
    returns: int = 0
    closes: int = 0
    reporters: int = 1


ONCE = "the callback is sent once"
EARLY = "the callback is sent when the batch is closed and all members have ended"
ENDS = "a closed batch whose members have ended has its callback"
KNOWN = "the end of a member is stored until its batch knows it"
FIRST = "a member ends once"
MEMBER = "a message of a batch is a member"
NOT_LOST = "only a member that was never sent is lost"
DEAD_WAITS = "a batch that waits for dead letters does not end with one"


def broken(before: State, s: State) -> str:
    """Return the promise that a step breaks."""
    is_open = any(letter in (OPEN, WAITS) for letter in s.members)
    if s.callbacks > 1:
        return ONCE
    if s.callbacks and (is_open or (before.batch == OPENED and s.batch == OPENED)):
        return EARLY
    if not is_open and (s.batch == CLOSED or (s.batch == DONE and not s.callbacks)):
        return ENDS
    for m in MEMBERS:
        was, letter, place = before.members[m], s.members[m], s.places[m]
        if was not in (NONE, OPEN, WAITS) and letter != was:
            return FIRST
        if place != ABSENT and letter == NONE:
            return MEMBER
        if letter == LOST and place != ABSENT:
            return NOT_LOST
        if letter == DIED and s.has_wait:
            return DEAD_WAITS
        is_over = place == GONE or (place == DEAD and letter == OPEN)
        if is_over and letter in (OPEN, WAITS) and not s.ends[m] and not _is_held(s, m):
            return KNOWN
    return ""


def _is_held(s: State, m: int) -> bool:
    """Whether a process has read the end of a member, and will report it."""
    return any(not p.is_reported and m in dict(p.ends) for p in s.processes)


def steps(rules: Rules, s: State) -> Iterator[Step[State]]:
    """Yield the steps that may come next, and the promise that each breaks."""
    for what, after in (
        *_of_producer(rules, s),
        *_of_handler(rules, s),
        *(step for m in MEMBERS for step in _of_message(s, m)),
        *(step for n in PROCESSES[: s.reporters] for step in _of_process(rules, s, n)),
        *_of_server(rules, s),
    ):
        yield what, after, broken(s, after)


def _put(pair: Any, place: int, value: object) -> Any:
    return (value, pair[1]) if place == 0 else (pair[0], value)


# --- the scripts of the batch


def _changed(s: State) -> State:
    """The server sees that the batch has changed."""
    if s.server is None or not s.server.is_unchanged:
        return s
    return s._replace(server=s.server._replace(is_unchanged=False))


def _finished(rules: Rules, s: State) -> State:
    is_open = any(letter in (OPEN, WAITS) for letter in s.members)
    is_closed = s.batch == CLOSED or (s.batch == OPENED and not rules.when_closed)
    if s.batch == DONE or not is_closed or (is_open and rules.when_empty):
        return s
    if not rules.one_step:  # the process dies before it stores the callback
        return s._replace(batch=DONE)
    batch = DONE if s.batch == CLOSED else s.batch
    return s._replace(batch=batch, callbacks=s.callbacks + 1)


def _reported(rules: Rules, s: State, m: int, letter: str) -> State:
    known = s.members[m]
    if known == NONE or (known not in (OPEN, WAITS) and rules.first_end):
        return s
    if letter == DIED and s.has_wait and rules.wait:
        letter = WAITS
    if letter == known:
        return s
    return _finished(rules, _changed(s._replace(members=_put(s.members, m, letter))))


def _added(rules: Rules, s: State, m: int, by_member: bool = False) -> tuple[State, str]:
    """Add a member. Return its state before, or "refused"."""
    known = s.members[m]
    if known != NONE:
        repeats = known == OPEN and rules.repeats_change
        return (_changed(s) if repeats else s), known
    by_open = by_member and s.members[0] in (OPEN, WAITS)
    if s.batch != OPENED and not by_open and rules.refuse:
        return s, "refused"
    return _changed(s._replace(members=_put(s.members, m, OPEN))), NONE


def _closed(rules: Rules, s: State) -> State:
    if s.batch != OPENED:
        return s
    return _finished(rules, _changed(s._replace(batch=CLOSED)))


def _sent(s: State, m: int) -> State:
    """Send a message. Its topic knows it if it was sent before."""
    return s._replace(places=_put(s.places, m, WAITING)) if s.places[m] == ABSENT else s


# --- programs


def _of_producer(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    last = 2 if s.by_member else 4
    if s.deaths and 0 < s.producer <= last:
        died = s._replace(producer=-1, deaths=s.deaths - 1, may_send=False)
        yield "the producer dies", died
    if s.producer == -1:
        yield "the producer starts again", s._replace(producer=0)
    if s.producer < 0 or s.producer > last:
        return
    m, is_second = divmod(s.producer, 2)
    later = s._replace(producer=s.producer + 1)
    if s.producer == last:
        yield "the producer closes the batch", _closed(rules, later)
    elif bool(is_second) == rules.id_first:
        may_send = s.may_send or not rules.id_first
        yield (
            f"the producer sends member {m}",
            _sent(later._replace(may_send=False), m) if may_send else later,
        )
    else:
        after, known = _added(rules, later, m)
        if known == "refused":
            yield "the batch refuses a member", s._replace(producer=last)
        else:
            yield f"the producer adds member {m}", after._replace(may_send=known in (NONE, OPEN))


def _of_handler(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    """The handler of the first member adds the second one. Its lease may be lost meanwhile."""
    if not s.by_member:
        return
    if s.handler:
        yield "the handler sends member 1", _sent(s._replace(handler=False), 1)
        if s.deaths:
            yield "the handler dies", s._replace(handler=False, deaths=s.deaths - 1)
    elif s.places[0] == WAITING and s.places[1] == ABSENT:
        after, known = _added(rules, s, 1, by_member=True)
        if known in (NONE, OPEN):
            yield "the handler adds member 1", after._replace(handler=True)


def _of_message(s: State, m: int) -> Iterator[tuple[str, State]]:
    place = s.places[m]

    def ended(to: str, letter: str) -> State:
        return s._replace(places=_put(s.places, m, to), ends=_put(s.ends, m, letter))

    if place == WAITING:
        yield f"member {m} is acked", ended(GONE, SUCCEEDED)
        yield f"member {m} dies", ended(DEAD, DIED)
    elif place == DEAD:
        yield f"dead member {m} is purged", ended(GONE, PURGED)
        if s.returns:
            back = s._replace(returns=s.returns - 1)
            yield (
                f"dead member {m} is redriven",
                back._replace(places=_put(s.places, m, WAITING)),
            )
            if s.members[m] != OPEN:  # its death is known
                moved = back._replace(places=_put(s.places, m, AWAY))
                yield f"dead member {m} moves to another topic", moved
    elif place == AWAY:
        yield f"member {m} is acked in another topic", ended(GONE, SUCCEEDED)


def _of_process(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    p = s.processes[n]

    def with_(state: State, process: Process, **more: Any) -> State:
        return state._replace(processes=_put(state.processes, n, process), **more)

    if not p.ends:
        found = tuple((m, s.ends[m]) for m in MEMBERS if s.ends[m])
        if found:
            read = with_(s, Process(found))
            if not rules.forget_last:
                read = read._replace(ends=("", ""))
            yield f"process {n} reads the ends", read
        return
    if s.deaths:
        yield f"process {n} dies", with_(s, Process(), deaths=s.deaths - 1)
    if not p.is_reported:
        after = s
        for m, letter in p.ends:
            after = _reported(rules, after, m, letter)
        yield f"process {n} reports the ends", with_(after, p._replace(is_reported=True))
        return
    ends = s.ends
    for m, letter in p.ends:
        if (ends[m] == letter or not rules.compare) and rules.forget_last:
            ends = _put(ends, m, "")
    yield f"process {n} forgets the ends", with_(s, Process(), ends=ends)


# --- the server


def _of_server(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    """The server closes the batch after its timeout, and looks for lost members.

    It looks at a batch that has not changed for 60 s. So no program is between its two steps.
    """
    if s.closes and s.batch == OPENED:
        yield "the server closes the batch", _closed(rules, s._replace(closes=s.closes - 1))
    e = s.server
    if e is None:
        known = tuple((m, s.members[m]) for m in MEMBERS if s.members[m] in (OPEN, WAITS))
        if known and not s.may_send and not s.handler:
            yield "the server reads the batch", s._replace(server=Examination(known))
    elif e.missing is None:
        missing = tuple(m for m, letter in e.open if _is_missing(rules, s, m, letter))
        yield (
            "the server looks for the members",
            s._replace(server=e._replace(missing=missing) if missing else None),
        )
    elif not rules.same_step and not e.was_compared:
        going_on = e.is_unchanged or not rules.unchanged
        compared = e._replace(was_compared=True, is_unchanged=True) if going_on else None
        yield "the server compares the batch", s._replace(server=compared)
    else:
        after = s._replace(server=None)
        if e.is_unchanged or e.was_compared or not rules.unchanged:
            for m in e.missing:
                after = _reported(rules, after, m, LOST)
        yield "the server loses members", after


def _is_missing(rules: Rules, s: State, m: int, letter: str) -> bool:
    if letter == WAITS and rules.elsewhere:
        return False
    return s.places[m] in (ABSENT, AWAY, GONE) and not (s.ends[m] and rules.read_ends)
