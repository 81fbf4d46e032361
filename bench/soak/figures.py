"""The cost of each fault: the longest time without an answer, and acked messages per second."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.soak.history import Event

WINDOW_NS = 5_000_000_000  # longest window before and after a fault
CLASSES = ("send", "deliver", "ack")


@dataclass(slots=True)
class Fault:
    """A fault of a run, with its figures.

    Attributes:
        name: Kind of the fault.
        target: Process that it hit; 0 for Redis, or the line to it.
        begun: Start, monotonic ns.
        ended: End, monotonic ns; equal to `begun` for a momentary fault.
        before: Acked messages per second in the 5 s before the fault.
        during: The same during the fault; None for a fault of less than 0.1 s.
        after: The same in the 5 s after the fault.
        rto: Longest time without an answer, s, by operation: from the start of the fault until the
            first answer in the 5 s after its end.
    """

    name: str
    target: int
    begun: int
    ended: int
    before: float | None = None
    during: float | None = None
    after: float | None = None
    rto: dict[str, float] = field(default_factory=dict)


def faults(events: Sequence[Event]) -> list[Fault]:
    """Return the faults that happened, with their figures; events are in the order of time."""
    found: list[Fault] = []
    open_: dict[str, Fault] = {}
    for event in events:
        if event.op != "fault":
            continue
        if event.type == "invoke":
            open_[event.name] = Fault(event.name, event.target, event.t, event.t)
        elif event.type == "ok":
            fault = open_.pop(event.name, None) or Fault(event.name, event.target, event.t, event.t)
            fault.ended = event.t
            found.append(fault)
    found.sort(key=lambda fault: fault.begun)
    times = {
        op: [event.t for event in events if event.op == op and event.type == "ok"] for op in CLASSES
    }
    first, last = beginning(events), events[-1].t if events else 0
    for place, fault in enumerate(found):
        since = max([first, fault.begun - WINDOW_NS, *(one.ended for one in found[:place][-1:])])
        until = min([last, fault.ended + WINDOW_NS, *(one.begun for one in found[place + 1 :][:1])])
        fault.before = rate(times["ack"], since, fault.begun)
        fault.during = rate(times["ack"], fault.begun, fault.ended)
        fault.after = rate(times["ack"], fault.ended, until)
        fault.rto = {op: gap(times[op], fault.begun, fault.ended, until) for op in CLASSES}
    return found


def beginning(events: Sequence[Event]) -> int:
    """Return the start of the run, monotonic ns: controls may have been recorded before it."""
    starts = [event.t for event in events if event.op == "start"]
    return starts[0] if starts else events[0].t if events else 0


def rate(times: Sequence[int], since: int, until: int) -> float | None:
    """Return the events per second of a span; None if it is too short."""
    if until - since < 100_000_000:
        return None
    return (bisect_left(times, until) - bisect_left(times, since)) / ((until - since) / 1e9)


def gap(times: Sequence[int], begun: int, ended: int, until: int) -> float:
    """Return the longest time without an event, s, that began before the fault had ended.

    Args:
        times: Times of the events, sorted.
        begun: Start of the fault.
        ended: End of the fault.
        until: End of the span: the next fault, or the end of the history.
    """
    inside = times[bisect_right(times, begun) : bisect_left(times, max(ended, begun + 1))]
    following = times[bisect_left(times, max(ended, begun + 1)) :][:1]
    marks = [begun, *inside, min([*following, max(until, ended)])]
    return max(b - a for a, b in pairwise(marks)) / 1e9


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value that a share `part` of the sorted values does not exceed."""
    return values[min(len(values) - 1, int(part * len(values)))]
