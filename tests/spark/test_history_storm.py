"""Short storms around two queries over a history, and those that their check has to find."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.conftest import MISSING
from tests.spark.history_storm import compare, storm
from tests.spark.long import long

pytestmark = pytest.mark.timeout(900)  # cold drivers, one for each kill, on a busy machine


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    if MISSING:
        pytest.fail(MISSING)


def test_each_of_two_queries_reads_each_row_once_under_kills_and_resizes(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=3, seed=7)

    assert outcome.is_exact, outcome
    assert outcome.sent > 0


@long("test_history_storm.py")
@pytest.mark.parametrize("broken", ["reads-on", "skips-logged"])
def test_check_of_a_storm_finds_a_broken_reader(tmp_path: Path, broken: str) -> None:
    outcome = storm(tmp_path, kills=4, seed=3, broken=broken)

    assert outcome.double if broken == "reads-on" else outcome.missing, outcome


@pytest.mark.parametrize(
    ("second", "kept", "is_exact"),
    [
        ([[1], [2, 0]], 3, True),
        ([[1, 2, 0, 1]], 3, False),
        ([[1, 2]], 3, False),
        ([[0, 1, 2]], 2, False),
    ],
)
def test_check_of_a_storm_wants_each_number_once_for_each_query(
    tmp_path: Path, second: list[list[int]], kept: int, is_exact: bool
) -> None:
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / "first-0").write_text("[0, 1, 2]")
    for number, rows in enumerate(second):
        (tmp_path / "batches" / f"second-{number}").write_text(json.dumps(rows))

    assert compare(tmp_path, 3, kept, Counter()).is_exact == is_exact
