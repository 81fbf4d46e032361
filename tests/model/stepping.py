"""Durable steps in small: a message whose handler has two steps, and two processes.

The processes receive the message and run its steps, which may overlap as in an async handler. Each
may die before every call, replies may be lost, and a copy of a call may arrive late. Leases may end
at any moment. The message may die, come back in each way, and be sent again with the same id.
`tests.model.resized.search` visits every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.resized import Step

WAITING, DEAD, GONE = -1, -2, -3  # where the message is; otherwise the process that has it
PROCESSES = NAMES = (0, 1)
ATTEMPTS, DELIVERIES = 2, 3  # until the message dies, and in all
# Items of the entry, and the states of a step in a process.
NONE, BEGUN, DONE, LOST = "", "begun", "done", "lost"
TODO, RUNS, RAN, OVER = "to do", "runs", "ran", "over"


@dataclass(frozen=True)
class Rules:
    """The rules that RMQ follows; a mutant leaves one out."""

    receipts: bool = True  # a call with an old receipt writes nothing
    begins_first: bool = True  # that a step begins is written before its function runs
    done_stays: bool = True  # a step that is done does not begin again
    lost_is_done: bool = True  # a step whose value cannot be stored is done
    one_item: bool = True  # a call replaces one item of the entry, not the whole entry
    dropped: bool = True  # the steps are deleted with the message
    redrive_keeps: bool = True  # a redrive keeps the steps
    fresh_drops: bool = True  # `--fresh` deletes them
    move_drops: bool = True  # as does a move to another topic


Items = tuple[str, str]


class Call(NamedTuple):
    """A call of the script `step`: the item that it writes, under the receipt of a delivery."""

    delivery: int
    name: int
    item: str
    seen: Items  # the entry as the process has read it


class Process(NamedTuple):
    """What a process knows of its delivery: number (0: it has none), entry, states of the steps."""

    delivery: int = 0
    seen: Items | None = None  # None: not read yet
    phases: Items = (TODO, TODO)


class State(NamedTuple):
    """The slot, the processes, and what has happened.

    Attributes:
        message: WAITING, DEAD, GONE, or the process that handles it.
        delivery: number of the last delivery.
        attempts: since the message was sent or redriven.
        items: the entry in Redis.
        first: number of the last delivery before the message was sent or redriven fresh.
        done: which steps are done since then.
        ran: whose functions ran since then.
        is_stale: whether a call with an old receipt has changed the entry.
        copy: a call that arrives late.
        copies, deaths, returns, sends: how many late copies, deaths of processes, returns of the
            dead letter, and sends of the same id may still come.
        has_second: whether the handler has a second step.
    """

    message: int = WAITING
    delivery: int = 0
    attempts: int = 0
    items: Items = (NONE, NONE)
    first: int = 0
    done: tuple[bool, bool] = (False, False)
    ran: tuple[bool, bool] = (False, False)
    is_stale: bool = False
    processes: tuple[Process, Process] = (Process(), Process())
    copy: Call | None = None
    copies: int = 0
    deaths: int = 0
    returns: int = 0
    sends: int = 0
    has_second: bool = False


ONCE = "a step that is done does not run again"
FENCED = "a delivery without a lease writes nothing"
DELETED = "the steps are deleted with the message"
KEPT = "a step whose function ran is known as long as the message lives"
FORGOTTEN = "after a fresh redrive, no step is done"


def broken(before: State, s: State) -> str:
    """Return the promise that a step of the model breaks."""
    if s.is_stale:
        return FENCED
    if s.message == GONE:
        return DELETED if s.items != (NONE, NONE) else ""
    for n in NAMES:
        if before.done[n] and any(_starts(before, s, p, n) for p in PROCESSES):
            return ONCE
        if s.ran[n] and s.items[n] == NONE:
            return KEPT
        if not s.done[n] and s.items[n] in (DONE, LOST):
            return FORGOTTEN
    return ""


def _starts(before: State, s: State, process: int, name: int) -> bool:
    """Whether a process may run the function of a step from now on."""
    old, new = before.processes[process], s.processes[process]
    return old.phases[name] == TODO and new.phases[name] in (RUNS, RAN) and new.delivery > s.first


def steps(rules: Rules, s: State) -> Iterator[Step[State]]:
    """Yield the steps that may come next, and the promise that each breaks."""
    for what, after in (
        *_of_slot(rules, s),
        *(step for n in PROCESSES for step in _of(rules, s, n)),
    ):
        yield what, after, broken(s, after)
    if s.copy is not None:
        after, _ = _write(rules, s, s.copy)
        yield "a late copy arrives", after._replace(copy=None), broken(s, after)


def _delivery_now(s: State) -> int:
    return s.delivery if s.message >= 0 else 0


def _put(pair: Any, place: int, value: object) -> Any:
    return (value, pair[1]) if place == 0 else (pair[0], value)


def _of_slot(rules: Rules, s: State) -> Iterator[tuple[str, State]]:
    if s.message >= 0:
        yield "the lease ends", _given_back(s)
    if s.message == WAITING:
        yield "the message is cancelled", _ended(rules, s)
    if s.message == GONE and s.sends:
        new = _forgotten(s)._replace(message=WAITING, attempts=0, sends=s.sends - 1)
        yield "a message with the same id is sent", new
    if s.message == DEAD:
        yield "the dead letter is purged", _ended(rules, s)
    if s.message == DEAD and s.returns:
        back = s._replace(message=WAITING, attempts=0, returns=s.returns - 1)
        items = s.items if rules.redrive_keeps else (NONE, NONE)
        yield "it is redriven", back._replace(items=items)
        items = (NONE, NONE) if rules.fresh_drops else s.items
        yield "it is redriven fresh", _forgotten(back._replace(items=items))
        yield "it moves to another topic", _ended(rules, s, rules.move_drops)


def _forgotten(s: State) -> State:
    return s._replace(first=s.delivery, done=(False, False), ran=(False, False))


def _given_back(s: State) -> State:
    return s._replace(message=WAITING if s.attempts < ATTEMPTS else DEAD)


def _ended(rules: Rules, s: State, drops: bool = True) -> State:
    items = (NONE, NONE) if rules.dropped and drops else s.items
    return s._replace(message=GONE, items=items)


def _with(s: State, n: int, process: Process, **more: Any) -> State:
    return s._replace(processes=_put(s.processes, n, process), **more)


def _of(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    """Yield the steps of a process."""
    p = s.processes[n]
    if not p.delivery:
        if s.message == WAITING and s.delivery < DELIVERIES:
            new = Process(s.delivery + 1, phases=(TODO, TODO if s.has_second else OVER))
            took = _with(s, n, new, message=n)
            yield (
                f"process {n} receives the message",
                took._replace(delivery=s.delivery + 1, attempts=s.attempts + 1),
            )
        return
    if s.deaths:
        yield f"process {n} dies", _with(s, n, Process(), deaths=s.deaths - 1)
    yield from _settles(rules, s, n)
    for name in NAMES:
        yield from _step(rules, s, n, name)


def _settles(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    p = s.processes[n]
    free = _with(s, n, Process())
    has_lease = s.message == n and s.delivery == p.delivery
    if LOST in p.phases:
        died = free._replace(message=DEAD) if has_lease else free
        yield f"process {n} rejects the message", died
        return
    if RUNS in p.phases or RAN in p.phases:
        return
    yield f"process {n} fails", _given_back(free) if has_lease else free
    if p.phases == (OVER, OVER):
        yield f"process {n} acks", _ended(rules, free) if has_lease else free


def _step(rules: Rules, s: State, n: int, name: int) -> Iterator[tuple[str, State]]:
    """Yield what a process may do next with one of its steps."""
    p, what = s.processes[n], f"process {n}, step {name}: "
    phase = p.phases[name]
    if phase == TODO and p.seen is not None and p.seen[name] in (DONE, LOST):
        yield what + "it knows the value", _moved(s, n, name, _phase_of(p.seen[name]))
    elif phase == TODO and not rules.begins_first:
        yield what + "the function runs", _run(s, n, name)
    elif phase == TODO:
        yield from _calls(rules, s, n, name, BEGUN)
    elif phase == RUNS:
        yield what + "the function runs", _run(s, n, name)
    elif phase == RAN:
        yield from _calls(rules, s, n, name, DONE)
        if rules.lost_is_done:
            yield from _calls(rules, s, n, name, LOST)
        else:
            if p.delivery == _delivery_now(s):
                s = s._replace(done=_put(s.done, name, True))
            yield what + "its value is lost", _moved(s, n, name, LOST)


def _phase_of(item: str) -> str:
    return LOST if item == LOST else OVER


def _moved(s: State, n: int, name: int, phase: str) -> State:
    p = s.processes[n]
    return _with(s, n, p._replace(phases=_put(p.phases, name, phase)))


def _run(s: State, n: int, name: int) -> State:
    if s.processes[n].delivery > s.first:
        s = s._replace(ran=_put(s.ran, name, True))
    return _moved(s, n, name, RAN)


def _calls(rules: Rules, s: State, n: int, name: int, item: str) -> Iterator[tuple[str, State]]:
    """Yield the outcomes of a call of the script."""
    p, what = s.processes[n], f"process {n}, step {name}: {item}"
    call = Call(p.delivery, name, item, p.seen or s.items)
    after, code = _write(rules, s, call)
    yield f"{what}, and the reply is lost", after  # it repeats the call
    if s.copies and s.copy is None:
        yield f"{what} is delayed", s._replace(copy=call, copies=s.copies - 1)
    if code == "stale":
        yield f"{what} is refused", _with(after, n, Process())
        return
    p = p._replace(seen=p.seen or s.items)
    read = _with(after, n, p)
    if code in (DONE, LOST):
        yield f"{what}: it was {code} before", _moved(read, n, name, _phase_of(code))
    elif item == BEGUN:
        yield what, _moved(read, n, name, RUNS)
    else:
        yield what, _moved(read, n, name, _phase_of(item))


def _write(rules: Rules, s: State, call: Call) -> tuple[State, str]:
    """Run the script. Return the state, and "stale", the item that stays, or ""."""
    if call.delivery != _delivery_now(s) and rules.receipts:
        return s, "stale"
    was = s.items[call.name]
    if call.item == BEGUN and was in (DONE, LOST) and rules.done_stays:
        return s, was
    base = s.items if rules.one_item else call.seen
    after = s._replace(items=_put(base, call.name, call.item))
    if call.item in (DONE, LOST):
        after = after._replace(done=_put(s.done, call.name, True))
    is_stale = call.delivery != _delivery_now(s) and after.items != s.items
    return after._replace(is_stale=is_stale), ""
