"""Batches against the model: each callback comes once, never early, and with the right counts."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.errors import FlakyFailure

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.property.batch_mutants import BATCH_FLOWS, BATCHES
from tests.property.batched import Batched
from tests.property.mutants import loader
from tests.property.snapshot import Violation
from tests.property.test_machine import QUICK, explore
from tests.property.test_mutants import hunt
from tests.servers import Server

pytestmark = pytest.mark.timeout(900)

FIRST = 46  # a seed: with it and the next one, two rounds reach everything
WANTED = (
    "batch open", "batch closed", "batch done", "batch that waits for dead letters",
    "callback", "callback waits", "member stored", "member duplicate", "duplicate from outside",
    "closed batch refuses members", "member adds to a closed batch",
    "died before it sent the members", "lost members", "died while it reported ends",
    "reported, and not forgotten", "purged while its death is reported",
    "member ended in another topic", "dead member: redrive", "dead member: purge",
    "cancelled members", "closed by its timeout",
    *(f"member ended: {letter}" for letter in "sdcphl"), "lost reply, sent again",
)  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "is_async"),
    [
        pytest.param(1, False, id="1-sync"),
        pytest.param(3, True, id="3-async", marks=pytest.mark.slow),
        pytest.param(2, False, id="2-sync", marks=pytest.mark.slow),
    ],
)
def test_each_batch_has_one_callback_whatever_is_done(
    ours: Server, slots: int, is_async: bool
) -> None:
    class Run(Batched):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    Run.slots, Run.is_async = slots, is_async
    wanted = WANTED
    if slots > 1:
        Run.retry, Run.max_retries, Run.on_expire = rmq.Levels((1.0, 3.0)), 3, "drop"
        Run.results = rmq.Results(keep=7)
        wanted = (*WANTED, "member ended: e")
    how = QUICK if slots > 1 else settings(QUICK, max_examples=8)

    missed = explore(Run, FIRST if slots == 1 else 0, wanted, how)

    print(f"\nFIG batches: {Run.steps} checked steps, {dict(Run.reached)}")
    assert not missed, f"the exploration never reached: {missed}; reached {dict(Run.reached)}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [*BATCHES, *BATCH_FLOWS])
def test_the_machine_of_batches_catches_every_mutant(
    ours: Server, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    class Run(Batched):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    if mutant in BATCHES:
        monkeypatch.setattr(script_loader, "load", loader(BATCHES[mutant]))
    else:
        monkeypatch.setattr(*BATCH_FLOWS[mutant])

    with pytest.raises((Violation, FlakyFailure)) as found:
        hunt(Run)

    print(f"\n{mutant}: {str(found.value)[:200]} (after {Run.steps} steps)")
