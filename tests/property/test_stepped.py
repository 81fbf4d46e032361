"""Steps and cursors against a book: each attempt gets what is stored, and nothing is left over."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings

from rmq.kernel.core import record
from rmq.kernel.transport.lua import script_loader
from tests.property.machine import LARGE
from tests.property.mutants import STEP_FLOWS, STEPS, loader
from tests.property.snapshot import Violation
from tests.property.stepped import Stepped
from tests.property.test_machine import QUICK, explore
from tests.property.test_mutants import hunt
from tests.servers import Server

pytestmark = pytest.mark.timeout(900)

FIRST = 31  # a seed; with it and the next one, two rounds reach everything
WANTED = (
    "step that is done", "step fails", "step runs after it has begun", "stale step",
    "step of a cancelled delivery", "step refused at maxmemory", "cursor that was saved",
    "step without room", "value without room", "step whose value is lost", "cursor without room",
    "dead letter with steps: redrive", "dead letter with steps: fresh",
    "dead letter with steps: to", "dead letter with steps: restore",
    "redrive", "purge", "cancel: cancelled", "lost reply, sent again",
)  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "is_async"),
    [
        pytest.param(1, False, id="1-sync"),
        pytest.param(2, True, id="2-async", marks=pytest.mark.slow),
    ],
)
def test_steps_stay_with_their_message_whatever_is_done_to_it(
    ours: Server, monkeypatch: pytest.MonkeyPatch, slots: int, is_async: bool
) -> None:
    class Run(Stepped):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    Run.slots, Run.is_async = slots, is_async
    wanted: tuple[str, ...] = WANTED
    if slots > 1:  # the field `large` of a slot counts both
        wanted = (*WANTED, "large bodies")
        for name in ("MIN_BYTES", "MIN_BYTES_OF_CALL"):
            monkeypatch.setattr(record, name, LARGE)
    how = QUICK if slots > 1 else settings(QUICK, max_examples=8)

    missed = explore(Run, FIRST if slots == 1 else 0, wanted, how)

    print(f"\nFIG steps: {Run.steps} checked steps")
    assert not missed, f"the exploration never reached: {missed}; reached {dict(Run.reached)}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [*STEPS, *STEP_FLOWS])
def test_the_machine_of_steps_catches_every_mutant(
    ours: Server, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    class Run(Stepped):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    if mutant in STEPS:
        monkeypatch.setattr(script_loader, "load", loader(STEPS[mutant]))
    else:
        STEP_FLOWS[mutant](monkeypatch)

    with pytest.raises(Violation) as found:
        hunt(Run)

    print(f"\n{mutant}: {str(found.value)[:200]} (after {Run.steps} steps)")
