"""Linearizability of each message: is there an order of its operations that one queue could do?

Ids are independent, so each message is a small automaton:

    absent -> store <-> prepare(receipt) -> acked | dead

The search is by Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with remembered
states. It takes an operation that no other operation must precede, applies it and continues. If
nothing fits, it goes back. An operation with an unknown outcome may take effect at any time after
its call, or never. A lease may expire at its end without an operation.

It finds errors that counts of messages do not show: an ack that was accepted with an old receipt,
and a delivery after an ack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.soak.history import Event

NEVER = 1 << 62
ROUNDING_MS = 5  # the recorder and Redis each round the time
LIMIT = 20_000  # steps of one search; a message has about ten operations

ABSENT, STORE, PREPARE, ACKED, DEAD = "absent", "store", "prepare", "acked", "dead"
_SETTLING = ("ack", "nack", "release", "extend")


class Operation(NamedTuple):
    """An operation on a message: its kind, its outcome, and the times of its call."""

    op: str
    outcome: str  # ok, fail or unknown
    begun: int  # monotonic ns
    ended: int
    wall: int  # epoch ms of its end
    receipt: str = ""
    until: int = 0


class State(NamedTuple):
    """The state of a message."""

    phase: str
    receipt: str = ""  # of the last delivery
    until: int = 0  # the end of its lease


def operations(events: Sequence[Event]) -> list[Operation]:
    """Return the operations of one message from its events, which are in the order of time."""
    found: list[Operation] = []
    pending: dict[tuple[int, str, str], Event] = {}
    for event in events:
        key = event.pid, event.op, event.receipt
        if event.op == "deliver" or event.op == "dead":
            if event.type == "ok":
                since = event.since or event.t
                found.append(
                    Operation(
                        event.op, "ok", since, event.t, event.wall, event.receipt, event.until
                    )
                )
        elif event.op == "send" or event.op in _SETTLING:
            if event.type == "invoke":
                if key in pending:
                    found.append(_unknown(pending[key]))
                pending[key] = event
                continue
            begun = pending.pop(key, event)
            if event.type == "unknown":
                found.append(_unknown(begun))
            elif event.op != "send" or event.type == "ok":  # a send that failed did nothing
                found.append(
                    Operation(
                        event.op, event.type, begun.t, event.t, event.wall, event.receipt,
                        event.until,
                    )
                )  # fmt: skip
    found += [_unknown(event) for event in pending.values()]
    return sorted(found, key=lambda operation: operation.begun)


def _unknown(event: Event) -> Operation:
    return Operation(event.op, "unknown", event.t, NEVER, NEVER, event.receipt, event.until)


def successors(state: State, operation: Operation) -> tuple[State, ...]:
    """Return the states after an operation; empty if it cannot happen in this state."""
    op, receipt = operation.op, operation.receipt
    if op == "send":
        return (State(STORE),) if state.phase == ABSENT else (state,)  # a later send is a duplicate
    expired = state.phase == PREPARE and operation.wall + ROUNDING_MS >= state.until
    if op == "deliver":
        if state.phase == STORE or expired:
            return (State(PREPARE, receipt, operation.until),)
        return (state,) if state.phase == PREPARE and state.receipt == receipt else ()
    if op == "dead":
        # From the store: its last delivery was to a consumer that died before it could record it.
        return (State(DEAD, state.receipt),) if state.phase in (STORE, DEAD) or expired else ()
    if operation.outcome == "fail":  # its receipt was refused
        if state.phase != PREPARE or state.receipt != receipt:
            return (state,)
        return (State(STORE, receipt),) if expired else ()
    if state.receipt != receipt:
        return ()
    if state.phase == PREPARE:
        if op == "ack":
            return (State(ACKED, receipt),)
        if op == "extend":
            return (State(PREPARE, receipt, max(state.until, operation.until)),)
        given_back = State(STORE, receipt)
        return (given_back, State(DEAD, receipt)) if op == "nack" else (given_back,)
    # The same call, repeated after an unknown outcome, is executed once.
    same = {"ack": (ACKED,), "nack": (STORE, DEAD), "release": (STORE,)}
    return (state,) if state.phase in same.get(op, ()) else ()


def is_linearizable(history: Sequence[Operation]) -> bool:
    """Return whether some order of the operations of one message is possible.

    Args:
        history: Operations in the order in which they began.
    """
    definite = sum(1 << i for i, one in enumerate(history) if one.outcome != "unknown")
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, State(ABSENT))]
    while stack:
        done, state = stack.pop()
        if done & definite == definite:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if len(seen) > LIMIT:
            return True  # not refuted
        first_end = min(
            one.ended for i, one in enumerate(history) if not done >> i & 1 and definite >> i & 1
        )
        for i, operation in enumerate(history):
            if operation.begun > first_end:
                break
            if not done >> i & 1:
                for following in successors(state, operation):
                    stack.append((done | 1 << i, following))
    return False


def explain(history: Sequence[Operation]) -> str:
    """Return the operations of a message in one line."""
    return ", ".join(f"{one.op} {one.outcome}" for one in history)
