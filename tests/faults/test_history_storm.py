"""The history of acked messages, while all that it needs dies or changes.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm history`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rmq.kernel.transport.lua import script_loader
from tests.faults.follow_ups_storm import PLACES
from tests.faults.history_check import BROKEN
from tests.faults.history_storm import Storm, played
from tests.faults.results_storm import MOST, opened
from tests.faults.storm import END_S, seeded
from tests.property.mutants import loader

pytestmark = [pytest.mark.timeout(END_S)]
# What a storm says of a broken variant.
SAYS = {
    "adds-twice": "twice",
    "forgets": "is not in the history",
    "adds-what-is-not-acked": "was not acked",
    "trims-the-newest": "are counted",  # in this variant, too many entries go for a part
    "trims-silently": "was removed without a word",
    "trims-too-much": "has removed too much",
}


@pytest.mark.fault("F45")
def test_each_acked_message_is_in_the_history_once(name: str, tmp_path: Path) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    deaths = [(step, 0) for step in ("ack", "ack_then", "query_settle")]
    found = played("one", tmp_path, name, rng, deaths=deaths, faults=["redis"])
    print(f"FIG history, {found.figures}")


@pytest.mark.slow
@pytest.mark.fault("F45")
@pytest.mark.parametrize("small", [False, True], ids=["large", "small"])
@pytest.mark.parametrize("place", PLACES)
def test_each_acked_message_is_in_the_history_once_whatever_dies(
    place: str, small: bool, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    print(f"FIG history, {played(place, tmp_path, name, rng, small).figures}")


@pytest.mark.slow
@pytest.mark.fault("F45", control=True)
@pytest.mark.parametrize("broken", SAYS)
def test_broken_variants_are_found(
    name: str, tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_loader, "load", loader(BROKEN[broken]))
    with opened("one") as redis:
        storm = Storm(
            redis, tmp_path, name, random.Random(1), broken, deaths=[("nack", 3)], faults=[],
            least=MOST, small=broken.startswith("trims"),
        )  # fmt: skip
        found = storm.run().contradictions

    assert any(SAYS[broken] in each for each in found), found
