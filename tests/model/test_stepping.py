"""Every state of durable steps in small, and of their broken variants."""

from __future__ import annotations

import pytest

from tests.model.resized import Found, search
from tests.model.stepping import (
    DELETED,
    FENCED,
    FORGOTTEN,
    KEPT,
    ONCE,
    Rules,
    State,
    steps,
)

QUICK = {
    "a death and a late copy": State(deaths=1, copies=1),
    "a return of the dead letter, and a send with the same id": State(returns=1, sends=1),
}
SLOW = {
    "two steps at the same time": State(has_second=True),
    "everything": State(deaths=1, copies=1, returns=1, sends=1),
}
RETURNED = State(returns=1)
BROKEN: dict[str, tuple[str, State]] = {  # the rule that is left out: the promise that breaks
    "receipts": (FENCED, State()),
    "begins_first": (KEPT, State()),
    "done_stays": (ONCE, State()),
    "lost_is_done": (ONCE, State()),
    "one_item": (KEPT, State(has_second=True)),
    "dropped": (DELETED, State()),
    "redrive_keeps": (KEPT, RETURNED),
    "fresh_drops": (FORGOTTEN, RETURNED),
    "move_drops": (DELETED, RETURNED),
}


def searched(rules: Rules, first: State) -> Found:
    return search(rules, first, steps, most=1_000_000)


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_state_of_steps_breaks_a_promise(slow: bool) -> None:
    total = 0
    for name, first in (SLOW if slow else QUICK).items():
        found = searched(Rules(), first)
        assert not found.broken, "\n  ".join((name, found.broken, *found.trace))
        total += found.states
    print(f"\nFIG model, steps: {total} states")
    assert total > 20_000, "a bound became smaller by accident"


@pytest.mark.parametrize("rule", BROKEN)
def test_the_search_catches_steps_without_a_rule(rule: str) -> None:
    promise, first = BROKEN[rule]

    found = searched(Rules(**{rule: False}), first)

    print(f"\nwithout {rule}: {found.broken or 'nothing'}\n  " + "\n  ".join(found.trace))
    assert found.broken == promise
