"""Results that contradict the queue: searched for while all that they need dies or changes.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm results`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rmq.kernel.transport.lua import script_loader
from tests.faults.resulting import BROKEN
from tests.faults.results_storm import MOST, PLACES, Storm, opened, played
from tests.faults.storm import END_S, seeded
from tests.property.mutants import loader

pytestmark = [pytest.mark.timeout(END_S)]
# What a storm says of a broken variant.
SAYS = {
    "acks-store-no-result": "is gone, and its result is ",  # none, or its progress
    "redrives-keep-the-result": "is alive, and its result is 'd'",
    "result-before-the-receipt": "and its result is 's'",
    "rollback-stores-no-result": "is dead, and its result is ''",
    "expiry-stores-no-result": "and its result is ''",
    "requests-end-without-result": "is gone, and its result is ''",
    "purges-store-no-result": "is gone, and its result is ''",
    "late-progress": "and its result is 'r'",
}
STORMS_MAX = 6  # of a control that is found in about half of the storms


@pytest.mark.fault("F39")
def test_no_result_contradicts_the_queue(name: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    deaths = [(step, 0) for step in ("ack_then", "nack", "prepare")]
    found = played("one", tmp_path, name, rng, deaths=deaths, faults=["redis"])
    print(f"FIG results, {found.figures}")


@pytest.mark.slow
@pytest.mark.fault("F39")
@pytest.mark.parametrize("place", PLACES)
def test_no_result_contradicts_the_queue_whatever_dies(
    place: str, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    print(f"FIG results, {played(place, tmp_path, name, rng).figures}")


@pytest.mark.slow
@pytest.mark.fault("F39", control=True)
@pytest.mark.parametrize("broken", SAYS)
def test_broken_variants_are_found(
    name: str, tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = broken_storm("one", name, tmp_path, broken, monkeypatch)

    assert any(SAYS[broken] in each for each in found), found


@pytest.mark.slow
@pytest.mark.fault("F39", control=True)
@pytest.mark.parametrize("place", ["sentinel", "cluster"])
def test_acks_without_results_are_found_after_a_failover(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = broken_storm(place, name, tmp_path, "acks-store-no-result", monkeypatch)

    assert any(SAYS["acks-store-no-result"] in each for each in found), found


def broken_storm(
    place: str, name: str, folder: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Play a storm in which all processes, and this one, have a broken script."""
    with opened(place) as redis:
        if place != "one":
            redis.fail(random.Random(1))
        monkeypatch.setattr(script_loader, "load", loader(BROKEN[broken]))
        return Storm(
            redis, folder, name, random.Random(1), broken, [("nack", 3)], [], least=MOST
        ).run().contradictions  # fmt: skip


@pytest.mark.slow
@pytest.mark.fault("F39", control=True)
@pytest.mark.parametrize("place", ["losing-sentinel", "losing-cluster"])
def test_results_that_a_failover_loses_are_found(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is durable, but this is about sends: acks of the moment are lost with results.

    A failover loses an ack in about half of the storms, because few acks come at its moment.
    """
    monkeypatch.setattr(Storm, "_is_lost", lambda *_: False)  # acks are never lost
    said: list[str] = []
    for seed in range(1, STORMS_MAX + 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with opened(place) as redis:
            said += Storm(redis, folder, f"{name}-{seed}", random.Random(seed)).run().contradictions
        if any("was acked as" in each for each in said):
            return
    pytest.fail(f"no lost ack was found in {STORMS_MAX} storms: {said}")
