"""Every state of follow-ups in small, and of their broken variants."""

from __future__ import annotations

import pytest

from tests.model.following import (
    NEVER,
    NOT_BOTH,
    NOT_LOST,
    ONCE,
    Rules,
    first_state,
    steps,
)
from tests.model.resized import Found, search

SIZES = [(1, 2, 2), (2, 1, 2), (2, 2, 1)]  # follow-ups, deaths, deletions and creations
BROKEN: dict[str, str] = {  # the rule that is left out: the promise that breaks
    "receipts": NEVER,
    "one_step": NOT_LOST,
    "numbers": ONCE,
    "remove_last": NOT_LOST,
    "claims": NOT_BOTH,
    "in_time": NOT_BOTH,
}


def searched(rules: Rules, size: tuple[int, int, int] = SIZES[0]) -> Found:
    return search(rules, first_state(*size), steps, most=1_000_000)


def test_no_state_of_follow_ups_breaks_a_promise() -> None:
    total = 0
    for size in SIZES:
        found = searched(Rules(), size)
        assert not found.broken, "\n  ".join((str(size), found.broken, *found.trace))
        total += found.states
    print(f"\nFIG model, follow-ups: {total} states")
    assert total > 10_000, "a bound became smaller by accident"


@pytest.mark.parametrize("rule", BROKEN)
def test_the_search_catches_follow_ups_without_a_rule(rule: str) -> None:
    found = searched(Rules(**{rule: False}))

    print(f"\nwithout {rule}: {found.broken or 'nothing'}\n  " + "\n  ".join(found.trace))
    assert found.broken == BROKEN[rule]
