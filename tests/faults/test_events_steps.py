"""Waits for events, with the steps of all processes in many orders, and deaths between them.

`RMQ_TEST_SEED` plays a seed again.
"""

from __future__ import annotations

import os
import random

import pytest

import rmq
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.single.blocking import Transport
from tests.conftest import Clock
from tests.faults.events_program import BROKEN
from tests.faults.events_steps import Steps, run_in_turns
from tests.property.mutants import loader

SLOW_S = 1800.0  # a minute on a free machine
CHEAP = ("delivered-twice",)  # found by a few seeds


@pytest.fixture(autouse=True)
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transport, "run", run_in_turns)


def first_wrong(client: rmq.Client, name: str, clock: Clock, count: int) -> list[str]:
    """Play some seeds, and return what was wrong with the first one that fails.

    A given seed is the first. The others follow from it, because a control may need several.
    """
    given = os.environ.get("RMQ_TEST_SEED")
    rng = random.Random(int(given)) if given else random.SystemRandom()
    for n in range(count):
        seed = int(given) if given and n == 0 else rng.randrange(2**32)
        wrong = Steps(client, f"{name}-{n}", clock, seed).run()
        if wrong:
            return [f"RMQ_TEST_SEED={seed}", *wrong]
    return []


@pytest.mark.fault("F42")
@pytest.mark.parametrize(
    "count", [12, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(SLOW_S)])]
)
def test_a_message_continues_once_for_each_wait_in_any_order_of_steps(
    client: rmq.Client, name: str, clock: Clock, count: int
) -> None:
    assert first_wrong(client, name, clock, count) == []


@pytest.mark.fault("F42", control=True)
@pytest.mark.parametrize(
    "broken",
    [each if each in CHEAP else pytest.param(each, marks=pytest.mark.slow) for each in BROKEN],
)
def test_broken_scripts_are_found(
    client: rmq.Client, name: str, clock: Clock, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_loader, "load", loader(BROKEN[broken]))
    assert first_wrong(client, name, clock, 200)
