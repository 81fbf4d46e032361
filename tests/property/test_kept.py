"""The history of acked messages against a book: each ack is there once, whatever is done."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings

from rmq.kernel.core import record
from rmq.kernel.transport.lua import script_loader
from tests.faults.history_check import BROKEN
from tests.property.kept import Kept
from tests.property.machine import LARGE
from tests.property.mutants import loader
from tests.property.snapshot import Violation
from tests.property.test_machine import QUICK, explore
from tests.property.test_mutants import hunt
from tests.servers import Server

pytestmark = pytest.mark.timeout(900)

WANTED = ("history has acks", "history was trimmed", "redrive", "purge", "lost reply, sent again")


@pytest.mark.parametrize(
    ("slots", "is_async"),
    [
        pytest.param(1, False, id="1-sync"),
        pytest.param(2, True, id="2-async", marks=pytest.mark.slow),
    ],
)
def test_each_ack_is_in_the_history_once_whatever_is_done(
    ours: Server, monkeypatch: pytest.MonkeyPatch, slots: int, is_async: bool
) -> None:
    class Run(Kept):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    Run.slots, Run.is_async = slots, is_async
    for name in ("MIN_BYTES", "MIN_BYTES_OF_CALL"):
        monkeypatch.setattr(record, name, LARGE)

    missed = explore(Run, 1, WANTED, QUICK if slots > 1 else settings(QUICK, max_examples=4))

    print(f"\nFIG history: {Run.steps} checked steps")
    assert not missed, f"the exploration never reached: {missed}; reached {dict(Run.reached)}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ["adds-twice", "forgets", "adds-what-is-not-acked"])
def test_the_machine_of_histories_catches_every_mutant(
    ours: Server, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    class Run(Kept):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    monkeypatch.setattr(script_loader, "load", loader(BROKEN[mutant]))

    with pytest.raises(Violation) as found:
        hunt(Run)

    print(f"\n{mutant}: {str(found.value)[:200]} (after {Run.steps} steps)")
