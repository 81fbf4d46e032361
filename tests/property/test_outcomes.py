"""Results and follow-ups against the model: none contradicts the queue, none is lost or doubled."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings

import rmq
from tests.property.outcomes import Outcomes
from tests.property.test_machine import QUICK, explore
from tests.servers import Server

pytestmark = pytest.mark.timeout(900)

FIRST = 3  # a seed: with it and the next one, two rounds reach everything
WANTED = (
    "follow-up stored", "follow-up duplicate", "follow-up in the same slot",
    "follow-up in another topic", "follow-up consumed", "follow-up refused",
    "follow-ups planned", "reject with follow-ups", "stale ack with follow-ups",
    "pending for a paused topic", "pending for a full topic",
    "died between ack and send", "target deleted", "copies of dead letters", "pending copies",
    "result: succeeded", "result: dead", "result: cancelled", "result: handed_over",
    "result: purged", "results read", "results past their keeping", "results removed",
    "lost reply, sent again",
)  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "is_async"),
    [
        pytest.param(1, False, id="1-sync"),
        pytest.param(3, True, id="3-async", marks=pytest.mark.slow),
        pytest.param(2, False, id="2-sync", marks=pytest.mark.slow),
    ],
)
def test_results_and_follow_ups_agree_with_the_queues_whatever_is_done(
    ours: Server, slots: int, is_async: bool
) -> None:
    class Run(Outcomes):
        server = ours
        reached: ClassVar[Counter[str]] = Counter()

    Run.slots, Run.is_async = slots, is_async
    wanted = WANTED
    if slots > 1:
        Run.retry, Run.max_retries, Run.on_expire = rmq.Levels((1.0, 3.0)), 3, "drop"
        wanted = (*WANTED, "follow-up in another slot", "result: expired")
    how = QUICK if slots > 1 else settings(QUICK, max_examples=8)

    missed = explore(Run, FIRST if slots == 1 else 0, wanted, how)

    print(f"\nFIG outcomes: {Run.steps} checked steps, {dict(Run.reached)}")
    assert not missed, f"the exploration never reached: {missed}; reached {dict(Run.reached)}"
