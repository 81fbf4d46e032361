"""Everything at once: dead pools, failovers behind one address, handlers that hang, dying workers.

A run in CI is short. `RMQ_TEST_LONG=1 pytest tests/faults/test_hostile.py -s` plays three seeds for
five minutes each; `python -m tests.faults.hostile --seed 1 --seconds 300` plays one by hand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import any_binary
from tests.faults.hostile import DRAIN_S, NETWORK, PROCESS, Hostile, Pair, figures, pair

LONG = bool(os.environ.get("RMQ_TEST_LONG"))
SECONDS = 300.0 if LONG else 10.0
SEEDS = (1, 2, 3) if LONG else (int(os.environ.get("RMQ_TEST_SEED") or 1),)

pytestmark = pytest.mark.timeout(SECONDS + DRAIN_S + 300)


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair(any_binary()) as made:
        yield made


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.fault("F35")
def test_nothing_is_lost_and_every_duplicate_has_a_cause(
    servers: Pair, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = time.monotonic()
    run = Hostile(servers, tmp_path, seed)
    accounts = run.run(SECONDS)

    with capsys.disabled():
        print(f"\nFIG hostile, seed {seed}: {figures(run, accounts, time.monotonic() - begun)}")
    for one in accounts:
        assert one.lost == []
        assert one.unexplained == []
        assert one.state == "valid", one.overlaps
    for pull in run.pulls:
        verdict = pull.verdict(run.fired.total())
        assert verdict.state == "valid", verdict
        assert verdict.duplicates == 0
        assert pull.leases_lost == 0
    wanted = {*NETWORK, *PROCESS} if LONG else set()
    assert wanted <= set(run.fired)
    assert sum(run.fired.values()) >= SECONDS / 4


@pytest.mark.fault("F35", control=True)
def test_workers_that_ack_before_they_handle_are_seen_to_lose_messages(
    servers: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative control."""
    begun = time.monotonic()
    run = Hostile(servers, tmp_path, 1, mutant="acks_first")
    accounts = run.run(10.0)

    with capsys.disabled():
        print(f"\nFIG hostile control: {figures(run, accounts, time.monotonic() - begun)}")
    assert any(one.lost for one in accounts)
    assert all(one.state == "invalid" for one in accounts if one.lost)
