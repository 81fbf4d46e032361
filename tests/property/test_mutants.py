"""Negative controls: the machine must notice every broken script."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

import rmq
from rmq.kernel.core import record
from rmq.kernel.transport.lua import script_loader
from tests.property.driver import Driver
from tests.property.grouped import Grouped
from tests.property.machine import LARGE, Machine
from tests.property.mutants import (
    FOLLOW_UPS,
    GROUPS,
    IN_ORDER,
    LARGE_BODIES,
    MUTANTS,
    OFFLOADED,
    RESULTS,
    TwoStepDriver,
    few_places,
    loader,
    offload,
)  # fmt: skip
from tests.property.outcomes import Outcomes
from tests.property.snapshot import Violation
from tests.servers import Server

pytestmark = pytest.mark.timeout(1200)  # as many hunts as there are mutants

HUNT = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

ROUNDS = 16  # of other seeds, until it is caught: a nack of a wrong receipt needs 6000 steps


@pytest.mark.slow
def test_the_machine_catches_every_mutant(ours: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    caught: dict[str, str] = {}
    every = MUTANTS | IN_ORDER | LARGE_BODIES | OFFLOADED
    for name, changes in every.items():

        class Run(Machine):
            server = ours
            reached: ClassVar[Counter[str]] = Counter()
            driver_class = TwoStepDriver if name == "pop, then add" else Driver

        if name in IN_ORDER:
            Run.consumes, Run.retry, Run.max_retries = "ordered", rmq.Levels((1.0, 3.0)), 3

        with monkeypatch.context() as patch:
            if name in OFFLOADED:
                Run.offloads = True
                offload(patch)
            patch.setattr(script_loader, "load", loader(changes))
            if name in LARGE_BODIES:
                patch.setattr(record, "MIN_BYTES", LARGE)
                patch.setattr(record, "MIN_BYTES_OF_CALL", LARGE)
            for number in range(ROUNDS):
                seed(number)(Run)
                try:
                    run_state_machine_as_test(Run, settings=HUNT)
                except Violation as found:
                    caught[name] = f"{found} (after {Run.steps} steps)"
                    break
                except FlakyFailure as flaky:
                    # A broken script may break a promise at some moments only, so that Hypothesis
                    # does not find the violation again.
                    found_once = flaky.subgroup(Violation)
                    if found_once is None:
                        raise
                    caught[name] = f"{found_once.exceptions[0]} (after {Run.steps} steps)"
                    break

    print(f"\nmutants caught {len(caught)}/{len(every)}")
    for name, found in caught.items():
        print(f"  {name}: {found}")
    assert set(caught) == set(every), f"not caught: {set(every) - set(caught)}"


def hunt(run: type[Grouped] | type[Machine]) -> None:
    for number in range(ROUNDS):
        seed(number)(run)
        run_state_machine_as_test(run, settings=HUNT)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", GROUPS)
def test_the_machine_of_groups_catches_every_mutant(
    ours: Server, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    class Run(Grouped):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()
        groups = rmq.Groups(on_dead="hold" if "dead" in mutant else "continue")

    if "leave" in mutant:
        Run.groups = rmq.Groups(order=False, concurrency=3)
    if "lane" in mutant:
        few_places(monkeypatch)
    monkeypatch.setattr(script_loader, "load", loader(GROUPS[mutant]))

    with pytest.raises(Violation) as found:
        hunt(Run)

    print(f"\n{mutant}: {str(found.value)[:200]} (after {Run.steps} steps)")


@pytest.mark.slow
@pytest.mark.parametrize("mutant", RESULTS | FOLLOW_UPS)
def test_the_machine_of_outcomes_catches_every_mutant(
    ours: Server, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    class Run(Outcomes):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    monkeypatch.setattr(script_loader, "load", loader((RESULTS | FOLLOW_UPS)[mutant]))

    with pytest.raises((Violation, FlakyFailure)) as found:
        hunt(Run)

    print(f"\n{mutant}: {str(found.value)[:200]} (after {Run.steps} steps)")
