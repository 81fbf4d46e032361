"""Callbacks that are doubled, lost, early or wrong: searched for while everything dies.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm batches`.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.batches_storm import Found, Storm, played
from tests.faults.follow_ups_storm import PLACES, opened
from tests.faults.storm import END_S, seeded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S)]

CONTROL_S = 90.0  # a callback that was lost never comes
STORMS = 3  # until a variant is found; on a busy machine a storm may lack the moment of its fault
# Reporters die between the report of an end and its removal from the slot, and the other way round.
REPORTERS = [
    (kind, script, nth)
    for nth in (1, 0)
    for script in ("batch_end", "member_ends")
    for kind in ("worker", "consumer")
]
# Other faults and deaths of broken variants. `rmq server` would repair their faults.
FAULTS = {
    "slot-of-a-batch-computed": ["resize"] * 4,
    "callback-of-a-paused-topic-dropped": ["pause"] * 50,
}
DEATHS = {"purge-without-an-end": [("purger", "trash", nth) for nth in range(2, 8)]}


@pytest.mark.fault("F41")
@pytest.mark.parametrize("place", PLACES)
def test_each_callback_comes_once_and_not_early(place: str, name: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    print(f"FIG batches, {played(place, tmp_path, name, rng).figures}")


@pytest.mark.fault("F41", control=True)
@pytest.mark.parametrize(
    "broken",
    [
        "counter-instead-of-set", "open-members-ignored", "callback-without-the-state",
        "callback-at-each-report", "forgotten-first", "expiry-without-an-end",
        "purge-without-an-end", "slot-of-a-batch-computed", "callback-of-a-paused-topic-dropped",
    ],
)  # fmt: skip
def test_broken_variants_are_found(name: str, tmp_path: Path, broken: str) -> None:
    found = Found(Counter(), [], Counter())
    for number in range(STORMS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = broken_storm(f"{name}-{number}", folder, broken, number)
        if found.wrong:
            break

    assert found.wrong, found


def broken_storm(name: str, folder: Path, broken: str, seed: int) -> Found:
    """Play a storm in which all other processes have a broken variant."""
    with opened("one") as place:
        storm = Storm(
            place, folder, name, random.Random(seed), broken, FAULTS.get(broken, []), 0,
            DEATHS.get(broken, REPORTERS), end_s=CONTROL_S,
        )  # fmt: skip
        try:
            return storm.run()
        except AssertionError as error:
            if "no end in" not in str(error) and "stands still" not in str(error):
                raise
            return Found(Counter(), [f"a callback does not come: {error}"], Counter())
