"""Events in small: a message whose handler waits twice for one event, and two processes.

Each process may receive the message, suspend it, register it, signal, or deliver what another has
left. It may die before every call, and a server may lose the registration. The time limit may end
at any moment, the message may be cancelled, and the event forgotten at the end of its keeping.
`tests.model.resized.search` visits every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.resized import Step

READY, SUSPENDED, GONE = -1, -2, -3  # where the message is; otherwise the process that has it
PROCESSES = (0, 1)
DUE, LATER, NO = "due", "later", ""  # when the message is to be registered
IDLE, CHECKED, REGISTERED, FOUND_EVENT, SIGNALLED, DELIVERED = range(6)  # what a process has done


@dataclass(frozen=True)
class Rules:
    """The rules that RMQ follows; a mutant leaves one out."""

    first_stays: bool = True  # a signal stores its body only if the key has no event
    waits_only: bool = True  # only a message that waits gets an event
    tells_event: bool = True  # a registration after the signal returns the event
    lists: bool = True  # an event with waiters is listed as undelivered
    again: bool = True  # a registered message is registered again later
    this_wait: bool = True  # only the wait that was registered is planned for later
    limit: bool = True  # a message is received before its time limit only with its event
    ends: bool = True  # the wait ends with its message


class Process(NamedTuple):
    """What a process has done last, in which wait of the message, and which body it has read."""

    phase: int = IDLE
    wait: int = 0
    body: int = 0


class State(NamedTuple):
    """The slots of the message and of the event, the processes, and what has happened.

    Attributes:
        message: READY, SUSPENDED, GONE, or the process that handles it.
        waits: whether the message has a wait that is not over.
        wait: number of its last wait.
        check: when it is to be registered, by `waits`.
        got: body of the event that it got in this wait; 0 none, -1 its time limit ended.
        is_over: whether the time limit of this wait has ended.
        event: body of the event; 0: not signalled.
        bodies: number of signals.
        is_waiter: whether the message is among the waiters of the event.
        is_listed: whether the event is listed as undelivered.
        registered: whether this wait was registered; Redis may have lost that since.
        ends: how often this wait has ended.
        deaths, losses, signals: how many may still come.
    """

    message: int = READY
    waits: bool = False
    wait: int = 0
    check: str = NO
    got: int = 0
    is_over: bool = False
    event: int = 0
    bodies: int = 0
    is_waiter: bool = False
    is_listed: bool = False
    registered: bool = False
    ends: int = 0
    processes: tuple[Process, Process] = (Process(), Process())
    deaths: int = 0
    losses: int = 0
    signals: int = 1


FIRST = "the first signal of a key stays"
ONCE = "a wait ends once"
IN_TIME = "a wait ends with its event or at its time limit"
KNOWN = "a suspended message is to be registered"
PLANNED = "a wait that is planned for later was registered"
FOUND = "an event with waiters is found again"
ENDED = "a message that is gone does not wait"
MOST_WAITS = 2


def broken(before: State, s: State) -> str:
    """Return the promise that a step of the model breaks."""
    if before.event and s.event not in (0, before.event):
        return FIRST
    if s.ends > 1:
        return ONCE
    if s.got == -1 and not s.is_over:
        return IN_TIME
    if s.message == GONE:
        return ENDED if s.waits else ""
    if s.waits and s.check == NO:
        return KNOWN
    if s.waits and s.check == LATER and not s.registered and not s.event:
        return PLANNED
    is_delivered = any(p.phase in (SIGNALLED, FOUND_EVENT, DELIVERED) for p in s.processes)
    if s.waits and s.is_waiter and s.event and not s.is_listed and not is_delivered:
        return FOUND
    return ""


def steps(rules: Rules, s: State) -> Iterator[Step[State]]:
    """Yield the steps that may come next, and the promise that each breaks."""
    moves = (*_of_slots(rules, s), *(move for n in PROCESSES for move in _of(rules, s, n)))
    for what, after in moves:
        yield what, after, broken(s, after)


def _with(s: State, n: int, process: Process, **more: Any) -> State:
    pair = (process, s.processes[1]) if n == 0 else (s.processes[0], process)
    return s._replace(processes=pair, **more)


def _of_slots(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    if s.waits and not s.is_over:
        yield "the time limit ends", s._replace(is_over=True)
    if s.message in (READY, SUSPENDED):
        waits = s.waits and not rules.ends
        yield "the message is cancelled", s._replace(message=GONE, waits=waits, check=NO)
    if s.check == LATER:
        yield "the time of the next registration comes", s._replace(check=DUE)
    if s.losses and s.is_waiter:
        yield "the registration is lost", s._replace(is_waiter=False, losses=s.losses - 1)
    if s.event and not s.is_listed and not s.is_waiter and s.signals:
        yield "the event is no longer kept", s._replace(event=0)


def _of(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    """Yield the steps of a process."""
    p, name = s.processes[n], f"process {n} "
    if s.deaths and (p.phase != IDLE or s.message == n):
        back = READY if s.message == n else s.message
        yield name + "dies", _with(s, n, Process(), message=back, deaths=s.deaths - 1)
    if p.phase == IDLE:
        yield from _begins(rules, s, n)
    elif p.phase == CHECKED:
        yield name + "registers the message", _register(rules, s, n)
    elif p.phase == REGISTERED:
        yield name + "plans the next registration", _plan(rules, s, n)
    elif p.phase == FOUND_EVENT:
        after = _deliver(rules, s, p)
        yield name + "delivers the event", _with(after, n, p._replace(phase=REGISTERED))
    elif p.phase == SIGNALLED:
        yield (
            name + "delivers the event",
            _with(_deliver(rules, s, p) if s.is_waiter else s, n, p._replace(phase=DELIVERED)),
        )
    else:
        left = _with(s, n, Process(), is_waiter=False, is_listed=False)
        yield name + "removes the waiter", left


def _begins(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    """Yield what a process may begin."""
    name = f"process {n} "
    may_receive = s.message == READY or (s.message == SUSPENDED and (s.is_over or not rules.limit))
    if may_receive:
        yield name + "receives the message", _receive(s, n)
    if s.message == n and s.got <= 0 and s.wait < MOST_WAITS:
        yield name + "suspends the message", s._replace(
            message=SUSPENDED, waits=True, wait=s.wait + 1, check=DUE, got=0, is_over=False,
            registered=False, ends=0,
        )  # fmt: skip
    elif s.message == n:
        yield name + "acks the message", s._replace(message=GONE, waits=False, check=NO)
    if s.check == DUE and s.waits:
        yield (
            name + "looks what is to be registered",
            _with(s, n, Process(CHECKED, s.wait), check=DUE),
        )
    if s.signals or s.is_listed:
        yield from _signals(rules, s, n)


def _signals(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    if s.signals:
        body = s.bodies + 1
        event = s.event if s.event and rules.first_stays else body
        listed = s.is_waiter and rules.lists
        after = s._replace(event=event, bodies=body, signals=s.signals - 1)
        after = after._replace(is_listed=s.is_listed or listed)
        process = Process(SIGNALLED, 0, event) if s.is_waiter else Process()
        yield f"process {n} signals", _with(after, n, process)
    if s.is_listed and s.event:
        process = Process(SIGNALLED, 0, s.event)
        yield f"process {n} continues a delivery", _with(s, n, process)


def _receive(s: State, n: int) -> State:
    if s.waits:  # the script event_read says that its time limit has ended
        return s._replace(message=n, waits=False, check=NO, got=-1, ends=s.ends + 1)
    return s._replace(message=n)


def _register(rules: Rules, s: State, n: int) -> State:
    p = s.processes[n]
    if s.event and rules.tells_event:
        return _with(s, n, Process(FOUND_EVENT, p.wait, s.event))
    is_mine = p.wait == s.wait
    return _with(
        s, n, p._replace(phase=REGISTERED), is_waiter=True, registered=s.registered or is_mine
    )


def _plan(rules: Rules, s: State, n: int) -> State:
    wait = s.processes[n].wait
    after = _with(s, n, Process())
    if not s.waits or (rules.this_wait and wait != s.wait):
        return after
    return after._replace(check=LATER if rules.again else NO)


def _deliver(rules: Rules, s: State, p: Process) -> State:
    if s.message == GONE or not (s.waits or not rules.waits_only) or s.message >= 0:
        return s
    return s._replace(message=READY, waits=False, check=NO, got=p.body, ends=s.ends + 1)
