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
    with opened("one") as place:
        found = Storm(place, tmp_path, name, random.Random(1), broken, others=False).run()

    assert any(what in each for each in found.wrong), found
