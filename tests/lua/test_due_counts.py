"""due_counts.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.topic import scripts

MINUTE_MS = 60_000


def due_counts(box, *boundaries):
    """Run due_counts twice, and return its reply; check that no key changes."""
    command, before = scripts.due_counts(box.keys, boundaries), box.state()
    found = box.run(command)
    assert box.run(command) == found
    assert box.state() == before
    return found


def test_fresh_slot_has_a_zero_for_each_boundary_and_one_more(box):
    assert due_counts(box, 0, 1000) == [0, 0, 0]


def test_each_message_is_counted_at_the_first_boundary_by_which_it_is_due(box):
    box.send(2, due=1000)
    box.send(3, due=MINUTE_MS)
    box.send(4, due=MINUTE_MS + 1)
    box.send(5, due=90 * MINUTE_MS)

    assert due_counts(box, 0, MINUTE_MS, 60 * MINUTE_MS) == [0, 5, 4, 5]
    assert due_counts(box, 1000) == [2, 12]


def test_a_ms_belongs_to_its_boundary_with_all_places_in_it(box):
    box.send(1000, due=1000)
    box.send(24, due=1000)
    box.one(due=1000)  # the ms is full: it goes to the next one

    assert due_counts(box, 999, 1000, 1001) == [0, 1024, 1, 0]


def test_boundaries_count_from_the_servers_clock(box):
    box.one(due=1000)
    box.clock.advance(0.999)
    assert due_counts(box, 0) == [0, 1]
    box.clock.advance(0.001)
    assert due_counts(box, 0) == [1, 0]


def test_priorities_and_retries_that_may_go_at_once_are_not_counted(box):
    box.one()
    box.nack(box.take_one())
    box.send(2, priority=17)
    box.send(3, priority=1_048_575)
    assert due_counts(box, 0, MINUTE_MS) == [0, 0, 0]

    box.one(priority=900, due=1000)
    assert due_counts(box, 0, MINUTE_MS) == [0, 1, 0], "it waits for a time first"


def test_a_retry_that_waits_and_a_snoozed_message_have_a_due_time(box):
    box.send(2)
    failed, snoozed = box.take(2)
    box.nack(failed, wait_ms=5000)
    box.release(snoozed, wait_ms=2 * MINUTE_MS)

    assert due_counts(box, 0, MINUTE_MS) == [0, 1, 1]


def test_a_due_message_that_was_handed_back_is_due(box):
    box.one(due=1000)
    box.clock.advance(2)
    box.release(box.take_one())

    assert box.stats()["due"] == 1
    assert due_counts(box, 0, MINUTE_MS) == [1, 0, 0]


def test_a_merge_window_is_one_message_that_is_due_when_it_closes(box):
    for _ in range(3):
        box.merge(range_ms=30_000)

    assert due_counts(box, 0, 29_999, 30_000) == [0, 0, 1, 0]


def test_due_and_later_are_those_of_stats(box):
    box.send(3, due=1000)
    box.send(4, due=2000)
    box.clock.advance(1)

    assert due_counts(box, 0) == [box.stats()["due"], box.stats()["later"]] == [3, 4]


@pytest.mark.parametrize(
    "boundaries",
    [(), range(61), (1000, 1000), (2000, 1000)],
    ids=["none", "61", "equal", "falling"],
)
def test_boundaries_that_do_not_rise_or_are_too_many_are_refused(box, boundaries):
    with pytest.raises(redis.ResponseError, match="RMQARG"):
        box.run(scripts.due_counts(box.keys, list(boundaries)))


def test_sixty_boundaries_are_taken(box):
    box.one(due=30)

    assert due_counts(box, *range(60)) == [*[0] * 30, 1, *[0] * 30]


def test_what_may_be_taken_now_has_no_due_time_or_one_that_has_come(box):
    assert box.run(scripts.ready_count(box.keys)) == 0
    box.send(3, priority=20)
    box.send(2, due=1000)
    box.send(4, due=60_000)
    box.clock.advance(1)
    before = box.state()

    assert box.run(scripts.ready_count(box.keys)) == 5
    assert box.state() == before
