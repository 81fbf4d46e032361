"""Visit and check every state of the model, breadth first: the first trace is the shortest."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.model.canonical import canonical
from tests.model.protocol import Rules
from tests.model.world import Bounds, State, Step, first_state, steps


class Found(NamedTuple):
    """The result of a search: a broken promise and its trace, or nothing."""

    states: int
    edges: int
    depth: int
    seen: Counter[str]  # what happened, and how often
    broken: str
    trace: list[str]

    def figures(self) -> str:
        return f"{self.states} states, {self.edges} steps between them, depth {self.depth}"


Check = Callable[[State, Step, State], str]


def search(
    rules: Rules,
    bounds: Bounds,
    check: Check,
    is_end: Callable[[State], bool],
    most: int = 5_000_000,
) -> Found:
    """Explore; stop at the first state that breaks a promise.

    When all states are known, look back from the ends: a state from which no steps without a fault
    lead to one of them breaks the promise that every message is settled or dead at last.
    """
    first = first_state(bounds)
    states, places = [first], {first: 0}  # also of states as they were reached
    parents: list[tuple[int, Step | None]] = [(0, None)]
    depths = array("l", [0])
    sources, targets = array("l"), array("l")  # of steps that are no faults
    edges, seen = 0, Counter[str]()

    def told(place: int, last: Step | None = None) -> list[str]:
        words = [last.told()] if last else []
        while place:
            place, step = parents[place]
            assert step is not None
            words.append(step.told())
        return words[::-1]

    at = 0
    while at < len(states):
        state = states[at]
        for step, reached in steps(rules, bounds, state):
            broken = check(state, step, reached)
            if broken:
                return Found(len(states), edges, depths[at] + 1, seen, broken, told(at, step))
            place = places.get(reached)
            if place is None:
                after = canonical(reached)
                place = places.get(after)
                if place is None:
                    place = places[after] = len(states)
                    states.append(after)
                    parents.append((at, step))
                    depths.append(depths[at] + 1)
                places[reached] = place
            if place == at:
                continue
            edges += 1
            seen[step.what if step.call is None else f"{step.call.verb}: {step.what}"] += 1
            if not step.is_fault:
                sources.append(at)
                targets.append(place)
        at += 1
        if len(states) > most:
            raise AssertionError(f"more than {most} states")
    stuck = _stuck(states, sources, targets, is_end)
    broken = "" if stuck is None else "no message may be stuck: nothing settles it from here"
    trace = [] if stuck is None else told(stuck)
    return Found(len(states), edges, depths[-1], seen, broken, trace)


def _stuck(
    states: list[State], sources: array[int], targets: array[int], is_end: Callable[[State], bool]
) -> int | None:
    """The first state from which no end is reached."""
    before: list[list[int]] = [[] for _ in states]
    for source, target in zip(sources, targets, strict=True):
        before[target].append(source)
    reached = bytearray(len(states))
    todo = [place for place, state in enumerate(states) if is_end(state)]
    for place in todo:
        reached[place] = 1
    while todo:
        for place in before[todo.pop()]:
            if not reached[place]:
                reached[place] = 1
                todo.append(place)
    place = reached.find(0)
    return None if place < 0 else place
