"""Waits for events that end twice, never, early or wrongly: searched for while everything dies.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm events`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.events_storm import Found, Storm, played
from tests.faults.follow_ups_storm import PLACES, opened
from tests.faults.storm import END_S, seeded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S)]

CONTROL_S = 45.0  # a message whose registration is lost waits for hours
# Processes that suspend messages die before they register them.
REGISTRARS = [
    (kind, script, nth)
    for nth in (1, 0)
    for script in ("event_register", "event_checks")
    for kind in ("worker", "consumer")
]


@pytest.mark.fault("F42")
@pytest.mark.parametrize("place", PLACES)
def test_each_message_continues_once_for_each_wait(place: str, name: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    print(f"FIG events, {played(place, tmp_path, name, rng).figures}")


@pytest.mark.fault("F42", control=True)
@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ("registration-forgotten", "it does not end"),
        ("event-before-the-wait-ignored", "it does not end"),
        ("delivered-twice", "doubled"),
        ("woken-without-the-event", "no event"),
        ("last-signal-wins", "other bodies|stored twice"),
        ("timed-out-early", "timed out early"),
    ],
)
def test_broken_variants_are_found(name: str, tmp_path: Path, broken: str, what: str) -> None:
    found = broken_storm(name, tmp_path, broken)

    assert any(re.search(what, each) for each in found.wrong), found


def broken_storm(name: str, folder: Path, broken: str) -> Found:
    """Play a storm in which all processes have a broken variant, and only they fail."""
    with opened("one") as place:
        storm = Storm(place, folder, name, random.Random(1), broken, False, REGISTRARS, CONTROL_S)
        try:
            return storm.run()
        except AssertionError as error:
            if "no end in" not in str(error) and "stands still" not in str(error):
                raise
            return Found(0, Counter(), [f"it does not end: {error}"], Counter())
