"""Every state of a history in small, and of its broken variants."""

from __future__ import annotations

import pytest

from tests.model.keeping import KEPT, MISSED, ONCE, ONLY, WAITING, Rules, State, steps
from tests.model.resized import search

TWO, THREE = State((WAITING,) * 2), State((WAITING,) * 3, deaths=0, sweeps=1)
BROKEN = {  # the rule that is left out: the promise that breaks
    "receipts": ONLY,
    "one_step": ONCE,
    "ids_grow": MISSED,
    "oldest_first": KEPT,
    "notes_gone": MISSED,
    "checks_after": MISSED,
}


@pytest.mark.parametrize(
    "first", [TWO, pytest.param(THREE, marks=pytest.mark.slow)], ids=["two", "three"]
)
def test_no_state_of_a_history_breaks_a_promise(first: State) -> None:
    found = search(Rules(), first, steps, most=2_000_000)

    assert not found.broken, "\n  ".join((found.broken, *found.trace))
    print(f"\nFIG model, history: {found.states} states")
    assert found.states > 5_000, "a bound became smaller by accident"


@pytest.mark.parametrize("rule", BROKEN)
def test_the_search_catches_a_history_without_a_rule(rule: str) -> None:
    found = search(Rules(**{rule: False}), TWO, steps, most=2_000_000)

    print(f"\nwithout {rule}: {found.broken or 'nothing'}\n  " + "\n  ".join(found.trace))
    assert found.broken == BROKEN[rule]
