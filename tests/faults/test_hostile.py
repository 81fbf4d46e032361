"""Everything at once: dead pools, failovers behind one address, handlers that hang, dying workers.

A run in CI is short. `RMQ_TEST_LONG=1 pytest tests/faults/test_hostile.py -s` plays three seeds for
five minutes each; `python -m tests.faults.hostile --seed 1 --seconds 300` plays one by hand, and
`python -m tests.faults.seeds --storm hostile` many short ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import any_binary
from tests.faults.hostile import Hostile, Pair, figures, pair, played
from tests.faults.storm import END_S

LONG = bool(os.environ.get("RMQ_TEST_LONG"))
SECONDS = 300.0 if LONG else 8.0
CONTROL_MESSAGES = 600  # of which some fail, and are not delivered again
SEEDS = (1, 2, 3) if LONG else (int(os.environ.get("RMQ_TEST_SEED") or 1),)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + END_S + 60)]


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair(any_binary()) as made:
        yield made


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.fault("F35")
def test_nothing_is_lost_and_every_duplicate_has_a_cause(
    servers: Pair, seed: int, tmp_path: Path
) -> None:
    try:
        found = played(servers, tmp_path, seed, SECONDS)
    except AssertionError as error:
        raise AssertionError(f"RMQ_TEST_SEED={seed}: {error}") from error

    print(f"FIG hostile, seed {seed}: {found.figures}")
    assert not (LONG and found.dropped), found  # a short one has some of the faults


@pytest.mark.fault("F35", control=True)
def test_workers_that_ack_before_they_handle_are_seen_to_lose_messages(
    servers: Pair, tmp_path: Path
) -> None:
    """Negative control."""
    begun = time.monotonic()
    run = Hostile(servers, tmp_path, 1, mutant="acks_first")
    accounts = run.run(3.0, CONTROL_MESSAGES)

    print(f"FIG hostile control: {figures(run, accounts, time.monotonic() - begun)}")
    assert any(one.lost for one in accounts)
    assert all(one.state == "invalid" for one in accounts if one.lost)
