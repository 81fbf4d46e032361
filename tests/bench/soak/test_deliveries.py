from __future__ import annotations

from bench.soak import deliveries
from bench.soak.deliveries import Message
from tests.bench.soak.histories import START_MS, Story

LEASE = 3_000


def message(story: Story) -> Message:
    found = Message("m1")
    for event in story.events:
        found.add(event)
    return found


def test_a_release_explains_the_next_delivery():
    story = Story().send(1).deliver(1).settle(1, op="release").deliver(1, 2)

    causes, wrong = deliveries.repeated(message(story))

    assert (causes, wrong) == ({"nack": 1}, [])


def test_a_nack_that_was_refused_explains_nothing():
    story = Story().send(1).deliver(1).settle(1, op="nack", answer="fail").deliver(1, 2)

    causes, wrong = deliveries.repeated(message(story))

    assert causes == {"unexplained": 1}
    assert "attempt 2 came without a nack" in wrong[0]


def test_deliveries_overlap_until_the_first_is_settled_or_its_lease_ends():
    assert deliveries.overlaps(message(Story().send(1).deliver(1).deliver(1, 2)))
    assert not deliveries.overlaps(message(Story().send(1).deliver(1).settle(1).deliver(1, 2)))
    assert not deliveries.overlaps(message(Story().send(1).deliver(1).wait(LEASE).deliver(1, 2)))


def test_a_delivery_that_was_seen_late_is_judged_in_its_turn():
    """Its process was stopped after Redis had answered; another took it when the lease was over."""
    story = Story().send(1).wait(LEASE).deliver(1, 2)
    story.deliver(1, 1, since=1, until=START_MS + LEASE)

    assert deliveries.repeated(message(story)) == ({"lease expired": 1}, [])
    assert not deliveries.overlaps(message(story))


def test_a_lower_attempt_of_a_call_that_began_later_stays_wrong():
    story = Story().send(1).wait(LEASE).deliver(1, 2)
    story.deliver(1, 1, since=story.events[-1].t + 1)

    assert deliveries.repeated(message(story))[0] == {"unexplained": 1}
    assert deliveries.overlaps(message(story))


def test_the_same_delivery_twice_is_no_overlap():
    assert not deliveries.overlaps(message(Story().send(1).deliver(1).deliver(1)))


def test_a_call_that_began_before_the_ack_may_still_return_it():
    assert deliveries.returned(message(Story().send(1).deliver(1).settle(1).deliver(1, 2)))
    assert not deliveries.returned(
        message(Story().send(1).deliver(1).settle(1).deliver(1, 2, since=1))
    )


def test_early_is_told_in_ms():
    story = Story().send(1, due=START_MS + 535).deliver(1)

    assert deliveries.early(message(story)) == 500
    assert deliveries.lateness(message(story)) == 0
