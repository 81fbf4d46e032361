"""Every state of a resize in small, and of its broken variants."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.resized import Found, Numbers, Rules, Shares, number_steps, search, share_steps

NUMBERS = {
    "it grows, one is late": Numbers(late=1),
    "it shrinks, one is late": Numbers(late=1, existed=True),
    "it grows, and one clock is behind": Numbers(skew=4),
    "it shrinks, and one clock is behind": Numbers(skew=4, existed=True),
}
SHARES = {"1 slot, then 2": Shares(1), "2 slots, then 1": Shares(2)}
GROWS = "a later delivery of a basis has a larger number"
BROKEN: dict[str, tuple[str, str]] = {  # the rule that is left out: the promise that breaks
    "by_clock": ("it grows, one is late", GROWS),
    "floor": ("it grows, and one clock is behind", GROWS),
    "hold": ("it shrinks, one is late", "a newer message does not overtake one that is awaited"),
    "parts": ("2 slots, then 1", "no more messages wait than max_length, and one for each slot"),
    "deal": ("1 slot, then 2", "nothing is refused while the topic has room"),
}


def searched(name: str, rules: Rules) -> Found:
    first: Any = NUMBERS.get(name) or SHARES[name]
    steps: Any = number_steps if name in NUMBERS else share_steps
    return search(rules, first, steps)


def test_no_state_of_a_resize_breaks_a_promise() -> None:
    total = 0
    for name in NUMBERS | SHARES:
        found = searched(name, Rules())
        assert not found.broken, "\n  ".join((name, found.broken, *found.trace))
        total += found.states
    print(f"\nFIG model, resize: {total} states")
    assert total > 10_000, "a bound became smaller by accident"


@pytest.mark.parametrize("rule", BROKEN)
def test_the_search_catches_a_resize_without_a_rule(rule: str) -> None:
    name, broken = BROKEN[rule]

    found = searched(name, Rules(**{rule: False}))

    print(f"\nwithout {rule}, {name}: {found.broken or 'nothing'}\n  " + "\n  ".join(found.trace))
    assert found.broken == broken
