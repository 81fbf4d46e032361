"""The feed of a topic: messages that arrive a few at a time."""

from __future__ import annotations

import pytest

from rmq.worker.receiving import feed
from rmq.worker.receiving.feed import SMALL_BATCH, SmallBatchDetector
from tests.unit.monotonic import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(feed, "time", made)
    return made


def test_messages_that_arrive_one_by_one_in_a_hurry_are_a_trickle(clock: Clock) -> None:
    detector = SmallBatchDetector()
    detector.has_small_batches(1)
    clock.now += 0.0001

    assert detector.has_small_batches(1)


def test_a_message_that_arrives_alone_never_waits(clock: Clock) -> None:
    assert not SmallBatchDetector().has_small_batches(1)


@pytest.mark.parametrize("count", [0, SMALL_BATCH])
def test_nothing_and_a_batch_of_many_are_no_trickle(clock: Clock, count: int) -> None:
    detector = SmallBatchDetector()
    detector.has_small_batches(1)
    clock.now += 0.0001

    assert not detector.has_small_batches(count)
