"""Every state of events in small, and of their broken variants."""

from __future__ import annotations

import pytest

from tests.model.eventing import (
    ENDED,
    FIRST,
    FOUND,
    IN_TIME,
    KNOWN,
    ONCE,
    PLANNED,
    Rules,
    State,
    steps,
)
from tests.model.resized import Found, search

QUICK = {
    "two signals and a death": State(signals=2, deaths=1),
    "a lost registration": State(losses=1, deaths=1),
}
SLOW = {"everything": State(signals=2, deaths=2, losses=1)}
BROKEN: dict[str, tuple[str, State]] = {  # the rule that is left out: the promise that breaks
    "first_stays": (FIRST, State(signals=2)),
    "waits_only": (ONCE, State(signals=2)),
    "tells_event": (FOUND, State()),
    "lists": (FOUND, State(deaths=1)),
    "again": (KNOWN, State()),
    "this_wait": (PLANNED, State()),
    "limit": (IN_TIME, State()),
    "ends": (ENDED, State()),
}


def searched(rules: Rules, first: State) -> Found:
    return search(rules, first, steps, most=1_000_000)


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_state_of_events_breaks_a_promise(slow: bool) -> None:
    total = 0
    for name, first in (SLOW if slow else QUICK).items():
        found = searched(Rules(), first)
        assert not found.broken, "\n  ".join((name, found.broken, *found.trace))
        total += found.states
    print(f"\nFIG model, events: {total} states")
    assert total > 3_000, "a bound became smaller by accident"


@pytest.mark.parametrize("rule", BROKEN)
def test_the_search_catches_events_without_a_rule(rule: str) -> None:
    promise, first = BROKEN[rule]

    found = searched(Rules(**{rule: False}), first)

    print(f"\nwithout {rule}: {found.broken or 'nothing'}\n  " + "\n  ".join(found.trace))
    assert found.broken == promise
