"""Results that contradict the queue: searched for while processes and Redis are killed.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm results`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.results_storm import Found, Storm, opened, played
from tests.faults.storm import END_S, seeded

pytestmark = [pytest.mark.timeout(END_S)]


@pytest.mark.fault("F39")
def test_no_result_contradicts_the_queue(name: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    deaths = [(step, 0) for step in ("ack_then", "nack", "prepare")]
    print(f"FIG results, {played(tmp_path, name, rng, deaths=deaths, kills=1).figures}")


@pytest.mark.slow
@pytest.mark.fault("F39")
@pytest.mark.parametrize("number", range(8))
def test_no_result_contradicts_the_queue_with_many_seeds(
    name: str, tmp_path: Path, number: int
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}, {number}")

    print(f"FIG results, {played(tmp_path, name, rng).figures}")


@pytest.mark.slow
@pytest.mark.fault("F39", control=True)
@pytest.mark.parametrize("broken", ["acks-store-no-result", "redrives-keep-the-result"])
def test_broken_variants_are_found(
    name: str, tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = broken_storm(name, tmp_path, broken, monkeypatch)

    assert found.contradictions, found


def broken_storm(name: str, folder: Path, broken: str, monkeypatch: pytest.MonkeyPatch) -> Found:
    """Play a storm in which all processes, and this one, have a broken script."""
    from rmq.kernel.transport.lua import script_loader
    from tests.faults.resulting import BROKEN
    from tests.property.mutants import loader

    with opened() as store:
        monkeypatch.setattr(script_loader, "load", loader(BROKEN[broken]))
        return Storm(store, folder, name, random.Random(1), broken, [("nack", 3)], 0).run()
