"""Workers of Celery, their children and Redis die while tasks run: each task is done.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm celery`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.celery.storm import PREFORK, Storm, opened, played
from tests.faults.follow_ups_storm import PLACES
from tests.faults.storm import END_S, seeded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S)]


@pytest.mark.fault("F43")
@pytest.mark.parametrize("place", PLACES)
def test_each_task_is_done_whatever_dies(place: str, name: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    found = played(place, tmp_path, name, rng)

    print(f"FIG celery, {found.figures}")


@pytest.mark.fault("F43", control=True)
@pytest.mark.parametrize(
    ("broken", "faults", "longest_s", "what"),
    [("acks-early", ("child", "worker"), 0.5, "lost"), ("renews-never", (), 2.0, "doubled")],
)
def test_broken_transports_are_found(
    name: str, tmp_path: Path, broken: str, faults: tuple[str, ...], longest_s: float, what: str
) -> None:
    with opened("one") as place:
        storm = Storm(
            place, tmp_path, name, random.Random(1), faults, broken, (PREFORK, PREFORK), 1.0,
            longest_s, ("late",),
        )  # fmt: skip
        found = storm.run()

    assert any(each.startswith(what) for each in found.wrong), found
