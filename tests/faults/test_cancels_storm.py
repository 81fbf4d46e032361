"""Messages that are cancelled from another process, while workers and Redis are killed.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm cancels`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.cancels_storm import Storm, opened, played
from tests.faults.follow_ups_storm import PLACES
from tests.faults.storm import END_S, seeded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S)]


@pytest.mark.fault("F38")
@pytest.mark.parametrize("place", PLACES)
def test_each_message_ends_once_as_succeeded_or_cancelled_whatever_dies(
    place: str, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    found = played(place, tmp_path, name, rng)

    print(f"FIG cancels, {found.figures}")


@pytest.mark.fault("F38", control=True)
@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ("rollback-ignores-request", "delivered again after the request"),
        ("release-ignores-request", "delivered again after the request"),
        ("ack-leaves-request", "a request is left"),
    ],
)
def test_broken_scripts_are_found(name: str, tmp_path: Path, broken: str, what: str) -> None:
    # On a busy machine, a storm may end before an ack meets a request.
    wrong: list[str] = []
    for seed in (1, 2, 3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with opened("one") as place:
            storm = Storm(place, folder, f"{name}{seed}", random.Random(seed), broken, others=False)
            wrong += storm.run().wrong
        if any(what in each for each in wrong):
            return
    pytest.fail(f"not found: {what}; found: {wrong}")
