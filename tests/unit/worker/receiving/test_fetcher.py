"""Whose turn it is: the topic that is due for longest."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rmq
from rmq.errors import Unavailable
from rmq.kernel.core.keys import SlotKeys
from rmq.worker.receiving.feed import NEVER, TopicFeed
from rmq.worker.receiving.fetcher import DueFeeds, Fetcher


class FakeFeed:
    """A feed that is due when the test says."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.next_at = 0.0

    def due_at(self) -> float:
        return self.at


def scheduled(*feeds: Any) -> DueFeeds:
    due = DueFeeds()
    for feed in feeds:
        due.schedule(feed)
    return due


def test_the_feed_that_is_due_for_longest_is_next() -> None:
    late, early = FakeFeed(5), FakeFeed(2)
    due: Any = scheduled(late, early)

    assert due.remove_due(1) == (None, 2)
    assert [due.remove_due(6) for _ in range(3)] == [(early, 2), (late, 5), (None, NEVER)]


def test_feeds_that_are_due_at_the_same_time_take_turns() -> None:
    first, second = FakeFeed(2), FakeFeed(2)
    due: Any = scheduled(first, second)

    taken = []
    for _ in range(4):
        taken.append(feed := due.remove_due(3)[0])
        due.schedule(feed)

    assert taken == [first, second, first, second]


def test_a_feed_that_is_not_due_yet_stays() -> None:
    feed = FakeFeed(5)
    due: Any = scheduled(feed)

    assert due.remove_due(4) == (None, 5)
    assert due.remove_due(5) == (feed, 5)


def test_a_feed_that_is_scheduled_anew_has_its_new_time_only() -> None:
    feed, other = FakeFeed(2), FakeFeed(4)
    due: Any = scheduled(feed, other)

    feed.at = 6
    due.schedule(feed)

    assert due.remove_due(3) == (None, 4)
    assert [due.remove_due(9)[0] for _ in range(3)] == [other, feed, None]


def test_a_feed_that_has_nothing_to_do_is_not_scheduled() -> None:
    due = scheduled(FakeFeed(NEVER))

    assert due.remove_due(1e9) == (None, NEVER)


@pytest.mark.parametrize("held", ["undelivered", "unconfirmed_offers", "unanswered"])
def test_a_feed_that_has_something_to_hand_back_is_due_though_no_slot_has_work(held: str) -> None:
    nothing: Any = None
    with rmq.Client("redis://localhost:1") as client:
        topic = client.topic("orders")
        topic.handler()(lambda body: None)
        (handlers,) = topic._handlers.by_topic.values()
        feed = TopicFeed(handlers, cast(Any, client._transport), nothing)
        feed.state.ready_at = [NEVER]
        assert feed.due_at() == NEVER

        setattr(feed.state, held, [nothing])

        assert feed.due_at() == 0.0
        feed.topic.is_full = True
        assert feed.due_at() == NEVER


class Unreachable:
    """A transport whose calls fail."""

    def __init__(self, repeat_for: float | None) -> None:
        self._repeat_for = repeat_for

    def run(self, flow: Any) -> Any:
        flow.close()
        error = Unavailable("away")
        error._repeat_for = self._repeat_for
        raise error


def check(repeat_for: float | None) -> list[float]:
    """Check the second slot of two, and return when each has work."""
    state = SimpleNamespace(ready_at=[NEVER, NEVER])
    context = SimpleNamespace(slots=[SlotKeys("rmq", "orders", slot) for slot in range(2)])
    feed: Any = SimpleNamespace(state=state, context=context)
    fetcher = Fetcher.__new__(Fetcher)
    fetcher._transport = cast(Any, Unreachable(repeat_for))
    fetcher._check_slots([(feed, 1)])
    return state.ready_at


def test_slots_that_cannot_be_checked_as_their_masters_are_away_are_visited() -> None:
    before = time.monotonic()
    first, second = check(repeat_for=1.0)
    assert first == NEVER
    assert before <= second <= time.monotonic(), "an error would delay the slots of other masters"


def test_a_check_raises_if_redis_as_a_whole_is_away() -> None:
    with pytest.raises(Unavailable):
        check(repeat_for=None)
