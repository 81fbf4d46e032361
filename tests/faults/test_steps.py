"""Steps and cursors of handlers, while processes are killed between every two acts of a step.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm steps`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.databases import Database, Postgres, fresh
from tests.faults.follow_ups_storm import PLACES, opened
from tests.faults.steps_storm import Death, Storm, played
from tests.faults.storm import END_S, seeded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S)]


@pytest.mark.fault("F40")
@pytest.mark.parametrize("place", PLACES)
def test_a_step_whose_value_is_stored_never_runs_again_whatever_dies(
    place: str, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    print(f"FIG steps, {played(place, tmp_path, name, rng).figures}")


@pytest.mark.fault("F40")
def test_a_step_with_the_ledger_takes_effect_once_whatever_dies(
    durable: Postgres, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    with fresh(durable) as database:
        print(f"FIG steps, {played('one', tmp_path, name, rng, database).figures}")


def broken_storm(
    name: str, folder: Path, broken: str, deaths: list[Death], database: Database | None = None
) -> list[str]:
    rng = random.Random(1)
    with opened("one") as place:
        return Storm(place, folder, name, rng, broken, database, deaths, others=False).run().wrong


@pytest.mark.fault("F40", control=True)
@pytest.mark.parametrize(
    ("broken", "deaths", "what"),
    [
        ("receipt-not-checked", [("store", n, True) for n in (0, 1, 2)], "wrong value"),
        ("done-not-answered", [], "run again although it was done"),
        ("entry-left", [], "an entry is left"),
        ("stored-first", [("function", n, False) for n in (0, 1, 2)], "wrong value"),
    ],
)
def test_broken_variants_are_found(
    name: str, tmp_path: Path, broken: str, deaths: list[Death], what: str
) -> None:
    wrong = broken_storm(name, tmp_path, broken, deaths)

    assert any(what in each for each in wrong), wrong[:10]


@pytest.mark.fault("F40", control=True)
def test_steps_without_the_ledger_take_effect_twice(
    durable: Postgres, name: str, tmp_path: Path
) -> None:
    deaths = [("store", n, False) for n in (0, 1, 2)]
    with fresh(durable) as database:
        wrong = broken_storm(name, tmp_path, "no-once", deaths, database)

    assert any("rows too many" in each for each in wrong), wrong[:10]
