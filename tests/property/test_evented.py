"""Messages that wait for events against a book: each wait ends once, and nothing is left over."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.errors import FlakyFailure

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.property.evented import Evented
from tests.property.mutants import EVENTS, loader
from tests.property.snapshot import Violation
from tests.property.test_machine import QUICK, explore
from tests.property.test_mutants import hunt
from tests.servers import Server

pytestmark = pytest.mark.timeout(900)

FIRST = 19  # a seed; with it and the next one, two rounds reach everything
WANTED = (
    "event after the wait", "event before the wait", "event for several messages", "time limit",
    "second signal", "delivery with an event", "waits again", "stale wait",
    "waits for an event that it has", "waits though its cancellation was requested",
    "suspended at maxmemory", "signal refused at maxmemory",
    "reschedule of a message that waits", "cancel of a message that waits",
    "set_priority of a message that waits", "redrive", "purge", "lost reply, sent again",
)  # fmt: skip
RARE = ("died while it waited", "get of a message that waits")


@pytest.mark.parametrize(
    ("slots", "is_async"),
    [
        pytest.param(1, False, id="1-sync"),
        pytest.param(2, True, id="2-async", marks=pytest.mark.slow),
    ],
)
def test_each_wait_ends_once_whatever_is_done_to_its_message(
    ours: Server, slots: int, is_async: bool
) -> None:
    class Run(Evented):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    Run.slots, Run.is_async = slots, is_async
    wanted: tuple[str, ...] = WANTED
    if slots > 1:
        wanted = (*WANTED, *RARE)
        Run.retry, Run.max_retries = rmq.Levels((1.0, 3.0)), 3
    how = QUICK if slots > 1 else settings(QUICK, max_examples=8)

    missed = explore(Run, FIRST if slots == 1 else 0, wanted, how)

    print(f"\nFIG events: {Run.steps} checked steps")
    assert not missed, f"the exploration never reached: {missed}; reached {dict(Run.reached)}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", EVENTS)
def test_the_machine_of_events_catches_every_mutant(
    ours: Server, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    class Run(Evented):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    monkeypatch.setattr(script_loader, "load", loader(EVENTS[mutant]))

    with pytest.raises((Violation, FlakyFailure)) as found:
        hunt(Run)

    print(f"\n{mutant}: {str(found.value)[:200]} (after {Run.steps} steps)")
