"""Every state of a batch in small, and of its broken variants."""

from __future__ import annotations

import pytest

from tests.model.batching import (
    DEAD_WAITS,
    EARLY,
    ENDS,
    FIRST,
    KNOWN,
    MEMBER,
    NOT_LOST,
    Rules,
    State,
    steps,
)
from tests.model.resized import Found, search

DEATH = State(deaths=1)
WAIT = State(returns=1, has_wait=True)
ADDS = State(deaths=1, by_member=True, closes=1)
QUICK = {"a death": DEATH, "dead letters that return": WAIT, "a member adds a member": ADDS}
SLOW = {
    "dead letters that return, and a death": State(deaths=1, returns=1, has_wait=True),
    "two processes report ends": State(returns=1, reporters=2),
    "two processes, a death": State(deaths=1, reporters=2),
    "two deaths, a close by the server": State(deaths=2, closes=1),
}
BROKEN: dict[str, tuple[str, State]] = {  # the rule that is left out: the promise that breaks
    "id_first": (MEMBER, DEATH),
    "first_end": (FIRST, DEATH),
    "forget_last": (KNOWN, DEATH),
    "compare": (KNOWN, WAIT),
    "when_closed": (EARLY, DEATH),
    "when_empty": (EARLY, DEATH),
    "one_step": (ENDS, DEATH),
    "wait": (DEAD_WAITS, WAIT),
    "refuse": (EARLY, ADDS),
    "read_ends": (NOT_LOST, DEATH),
    "unchanged": (NOT_LOST, DEATH),
    "repeats_change": (NOT_LOST, DEATH),
    "same_step": (NOT_LOST, DEATH),
    "elsewhere": (NOT_LOST, WAIT),
}


def searched(rules: Rules, first: State) -> Found:
    return search(rules, first, steps, most=1_000_000)


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_state_of_a_batch_breaks_a_promise(slow: bool) -> None:
    total = 0
    for name, first in (SLOW if slow else QUICK).items():
        found = searched(Rules(), first)
        assert not found.broken, "\n  ".join((name, found.broken, *found.trace))
        total += found.states
    print(f"\nFIG model, batches: {total} states")
    assert total > 50_000, "a bound became smaller by accident"


@pytest.mark.parametrize("rule", BROKEN)
def test_the_search_catches_a_batch_without_a_rule(rule: str) -> None:
    promise, first = BROKEN[rule]

    found = searched(Rules(**{rule: False}), first)

    print(f"\nwithout {rule}: {found.broken or 'nothing'}\n  " + "\n  ".join(found.trace))
    assert found.broken == promise
