"""A short storm, and the two that the check of storms has to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import MISSING
from tests.spark.storm import BROKEN, storm

pytestmark = pytest.mark.timeout(900)  # cold drivers, one for each kill, on a busy machine


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    if MISSING:
        pytest.fail(MISSING)


def test_two_queries_lose_and_double_nothing_under_kills_and_resizes(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=4, seed=7)

    assert outcome.is_exact, outcome
    assert outcome.sent > 0
    assert outcome.lapsed == 0


@pytest.mark.parametrize("broken", BROKEN)
def test_check_of_a_storm_finds_a_broken_source(tmp_path: Path, broken: str) -> None:
    outcome = storm(tmp_path, kills=3, seed=3, broken=broken)

    assert outcome.missing > 0, outcome
