"""Follow-ups in small: a message of a source slot, its follow-ups in a target slot, two processes.

The processes handle the message, ack it with its follow-ups, and send the pending entries. Each may
die or stop before every step. The topic of the target may be deleted and created again, and leases
and claims may end at any moment. `tests.model.resized.search` visits every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.resized import Step

WAITING, SETTLED = -1, -2  # where the message is; otherwise the process that has it
PROCESSES = (0, 1)
ATTEMPTS, CLAIMS = 2, 4  # at most


@dataclass(frozen=True)
class Rules:
    """The rules that RMQ follows; a mutant leaves one out."""

    receipts: bool = True  # an ack with an old receipt stores nothing
    one_step: bool = True  # the ack and its entries are stored in one step
    numbers: bool = True  # the target ignores entries up to its highest number
    remove_last: bool = True  # an entry is removed after it was sent
    claims: bool = True  # an entry becomes a dead letter only under the claim of the process
    in_time: bool = True  # a process sends only while it has the claim


class Process(NamedTuple):
    """What a process knows.

    Attributes:
        owns: whether it handles the message, which it will ack.
        entries: those that it has read, and sends next.
        sent: number up to which they are in the target.
        refused: the entry that the target has refused for good.
        claim: number of its claim.
    """

    owns: bool = False
    entries: tuple[int, ...] = ()
    sent: int = 0
    refused: int = 0
    claim: int = 0


class State(NamedTuple):
    """The slots and the processes.

    Attributes:
        message: WAITING, SETTLED, or the process that handles it.
        entries: numbers of the pending entries; a follow-up's number is its place, from 1.
        claim: number of the newest claim.
        is_claimed: whether its time is not over.
        exists: whether the topic of the target exists.
        highest: the number that the target has noted.
        stored, dead: how often each follow-up is in the target, or a dead letter.
        left: whether each was in a topic that was deleted.
        deaths, changes: how many deaths, and deletions or creations, may still come.
    """

    message: int = WAITING
    attempts: int = 0
    entries: tuple[int, ...] = ()
    claim: int = 0
    is_claimed: bool = False
    exists: bool = True
    highest: int = 0
    stored: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    left: tuple[bool, ...] = ()
    processes: tuple[Process, Process] = (Process(), Process())
    deaths: int = 2
    changes: int = 2


def first_state(follow_ups: int, deaths: int, changes: int) -> State:
    """Return the state before anything has happened."""
    none = (0,) * follow_ups
    left = (False,) * follow_ups
    return State(stored=none, dead=none, left=left, deaths=deaths, changes=changes)


ONCE = "a follow-up is stored once"
NOT_BOTH = "a follow-up is not stored and also a dead letter"
NEVER = "without an ack, no follow-up is stored"
NOT_LOST = "a follow-up of an acked message is pending, stored, or a dead letter"


def broken(s: State) -> str:
    """Return the promise that a state breaks."""
    for number, (stored, dead, left) in enumerate(zip(s.stored, s.dead, s.left, strict=True), 1):
        if stored > 1 or dead > 1:
            return ONCE
        if stored and dead:
            return NOT_BOTH
        if s.message != SETTLED and (stored or dead or number in s.entries):
            return NEVER
        if s.message == SETTLED and not (number in s.entries or stored or dead or left):
            return NOT_LOST
    return ""


def steps(rules: Rules, s: State) -> Iterator[Step[State]]:
    """Yield the steps that may come next, and the promise that each breaks."""
    for what, after in (*_of_slots(s), *(step for n in PROCESSES for step in _of(rules, s, n))):
        yield what, after, broken(after)


def _of_slots(s: State) -> Iterator[tuple[str, State]]:
    if s.message >= 0:
        yield "the lease ends", s._replace(message=WAITING)
    if s.is_claimed:
        yield "the claim ends", s._replace(is_claimed=False)
    if s.changes and s.exists:
        left = tuple(was or n > 0 for was, n in zip(s.left, s.stored, strict=True))
        none = (0,) * len(left)
        yield (
            "the target is deleted",
            s._replace(exists=False, stored=none, left=left, highest=0, changes=s.changes - 1),
        )
    if s.changes and not s.exists:
        yield "the target is created again", s._replace(exists=True, changes=s.changes - 1)


def _with(s: State, n: int, process: Process, **more: object) -> State:
    both = (process, s.processes[1]) if n == 0 else (s.processes[0], process)
    return s._replace(processes=both, **more)  # type: ignore[arg-type]


def _of(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    """Yield the steps of a process."""
    p = s.processes[n]
    if p != Process() and s.deaths:
        yield f"process {n} dies", _with(s, n, Process(), deaths=s.deaths - 1)
    if s.message == WAITING and not p.owns and s.attempts < ATTEMPTS:
        took = _with(s, n, p._replace(owns=True), message=n, attempts=s.attempts + 1)
        yield f"process {n} receives the message", took
    if p.owns:
        yield from _ack(rules, s, n)
    elif p.entries and not p.sent and not p.refused:
        if not rules.in_time or s.claim == p.claim:
            yield from _send(rules, s, n)
        else:
            yield f"process {n} has lost its claim", _with(s, n, Process())
    elif p.sent or p.refused:
        yield from _settle(rules, s, n)
    elif s.entries and not s.is_claimed and s.claim < CLAIMS:
        yield f"process {n} begins to send", _claimed(s, n)


def _claimed(s: State, n: int, **more: object) -> State:
    process = Process(entries=s.entries, claim=s.claim + 1)
    return _with(s, n, process, claim=s.claim + 1, is_claimed=True, **more)


def _ack(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    if s.message != n and rules.receipts:
        yield f"the ack of process {n} is refused", _with(s, n, Process())
        return
    entries = tuple(range(1, len(s.stored) + 1))
    if rules.one_step:
        stored = s._replace(entries=entries, message=SETTLED if s.message == n else s.message)
        yield f"process {n} acks", _claimed(stored, n)
    else:
        acked = s._replace(message=SETTLED)
        yield f"process {n} acks, and dies before it stores", _with(acked, n, Process())


def _send(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    p = s.processes[n]
    last = p.entries[-1]
    if not rules.remove_last and set(p.entries) <= set(s.entries):
        left = tuple(each for each in s.entries if each not in p.entries)
        yield f"process {n} removes its entries", s._replace(entries=left)
        return
    if not s.exists:
        yield f"process {n} is refused", _with(s, n, p._replace(refused=p.entries[0]))
        return
    new = [each for each in p.entries if each > s.highest or not rules.numbers]
    stored = tuple(count + (place in new) for place, count in enumerate(s.stored, 1))
    after = _with(s, n, p._replace(sent=last), stored=stored, highest=max(s.highest, last))
    yield f"process {n} sends", after


def _settle(rules: Rules, s: State, n: int) -> Iterator[tuple[str, State]]:
    p = s.processes[n]
    if p.sent:
        s = s._replace(entries=tuple(each for each in s.entries if each > p.sent))
    elif s.entries[:1] == (p.refused,) and (p.claim == s.claim or not rules.claims):
        dead = tuple(count + (place == p.refused) for place, count in enumerate(s.dead, 1))
        s = s._replace(entries=s.entries[1:], dead=dead)
    what = f"process {n} removes {'the sent entries' if p.sent else 'the refused entry'}"
    if s.entries and p.claim == s.claim:
        process = Process(entries=s.entries, claim=p.claim)
        yield what, _with(s, n, process, is_claimed=True)
    else:
        yield what, _with(s, n, Process())
