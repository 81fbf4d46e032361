"""Failovers and restarts that lose acks stop no group, permit or ordered slot for long.

`RMQ_TEST_SEED` plays a seed again; many: `python -m tests.faults.seeds --storm lost-acks`.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.worker.receiving.feed import TopicFeed
from tests.conftest import any_binary
from tests.faults import lost_acks
from tests.faults.storm import seeded


def slow(*failovers: str) -> list[Any]:
    """Return parameters of slow tests."""
    return [pytest.param(failover, marks=pytest.mark.slow) for failover in failovers]


@pytest.mark.fault("F12")
@pytest.mark.parametrize("failover", ["replica", *slow("rdb", "aof", "sentinel", "cluster")])
def test_acks_that_failovers_lose_hold_nothing_for_long(name: str, failover: str) -> None:
    seed, _ = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    played = lost_acks.played(any_binary(), name, seed, failover)

    print(f"FIG acks lost by failovers, {failover}: {played.figures}")


@pytest.mark.fault("F12", control=True)
@pytest.mark.parametrize("failover", ["replica", *slow("rdb", "aof", "sentinel")])
def test_a_worker_that_compares_nothing_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, failover: str
) -> None:
    monkeypatch.setattr(TopicFeed, "release_orphans", lambda self: None)
    monkeypatch.setattr(lost_acks, "BOUND_S", 5.0)

    with pytest.raises(AssertionError, match="after a failover not handled"):
        lost_acks.played(any_binary(), name, 1, failover)


@pytest.mark.slow
@pytest.mark.fault("F12", control=True)
def test_a_worker_that_gives_back_what_it_holds_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_delivery, count = ConsumerFlows.has_delivery, itertools.count(1)

    def forgetful(self: ConsumerFlows, id: bytes) -> bool:
        return has_delivery(self, id) and next(count) % 3 > 0

    monkeypatch.setattr(ConsumerFlows, "has_delivery", forgetful)
    monkeypatch.setattr(lost_acks, "COMPARE_S", 0.2)
    monkeypatch.setattr("rmq.worker.receiving.fetcher.POLL_S", 0.2)

    with pytest.raises(AssertionError, match="without a cause"):
        lost_acks.played(any_binary(), name, 1)
