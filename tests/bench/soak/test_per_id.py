from __future__ import annotations

import time

import pytest

from bench.soak.per_id import is_linearizable, operations
from tests.bench.soak.histories import Story

LEASE = 3_000


def possible(story: Story) -> bool:
    return is_linearizable(operations(story.events))


@pytest.mark.parametrize(
    "story",
    [
        Story().send(1).deliver(1).settle(1),
        Story().send(1, "unknown").deliver(1).settle(1),
        Story().send(1, "unknown").send(1).deliver(1).settle(1),
    ],
)
def test_what_a_queue_does_is_linearizable(story):
    assert possible(story)


def test_a_message_that_nobody_sent_cannot_be_delivered():
    assert not possible(Story().deliver(1).settle(1))


def test_a_stale_ack_must_not_be_accepted():
    def told(answer: str) -> Story:
        story = Story().send(1).deliver(1).wait(LEASE).deliver(1, 2, pid=3)
        return story.settle(1, 1, answer)

    assert possible(told("fail"))
    assert possible(told("unknown"))  # it may have had no effect
    assert not possible(told("ok"))


def test_an_ack_inside_its_lease_must_not_be_refused():
    assert not possible(Story().send(1).deliver(1).settle(1, answer="fail"))
    assert possible(Story().send(1).deliver(1).wait(LEASE).settle(1, answer="fail"))


def test_an_acked_message_must_not_come_back():
    acked = Story().send(1).deliver(1).settle(1).wait(LEASE)

    assert not possible(acked.deliver(1, 2))


def test_an_ack_with_unknown_outcome_may_take_effect_or_not():
    assert possible(Story().send(1).deliver(1).settle(1, answer="unknown"))
    assert possible(Story().send(1).deliver(1).settle(1, answer="").wait(LEASE).deliver(1, 2))
    repeated = Story().send(1).deliver(1).settle(1, answer="unknown").settle(1)
    assert possible(repeated)


def test_a_lease_must_have_ended_before_the_next_delivery():
    assert not possible(Story().send(1).deliver(1).deliver(1, 2))
    assert possible(Story().send(1).deliver(1).wait(LEASE).deliver(1, 2))


def test_a_lease_that_was_extended_ends_later():
    story = Story().send(1).deliver(1)
    story.event("ok", "extend", 2, id="m1", receipt="m1:1", until=story.events[-1].until + LEASE)

    assert not possible(story.wait(LEASE).deliver(1, 2))
    story.events.pop()
    assert possible(story.wait(LEASE).deliver(1, 2))


def test_a_nack_puts_it_back_or_makes_it_a_dead_letter():
    given_back = Story().send(1).deliver(1).settle(1, op="nack")
    assert possible(given_back.deliver(1, 2).settle(1, 2))

    dead = Story().send(1).deliver(1).settle(1, op="nack").event("ok", "dead", id="m1")
    assert possible(dead)
    assert not possible(dead.deliver(1, 2))


def test_a_send_that_is_repeated_after_the_ack_stores_nothing():
    story = Story().send(1).deliver(1).settle(1).send(1)

    assert possible(story)
    assert not possible(story.deliver(1, 2))


def test_operations_at_the_same_time_may_take_effect_in_either_order():
    story = Story()
    story.event("invoke", "send", id="m1").deliver(1).event("ok", "send", id="m1")

    assert possible(story)


def test_100_000_messages_take_seconds():
    history = operations(Story().send(1).deliver(1).settle(1).events)
    begun = time.thread_time()

    assert all(is_linearizable(history) for _ in range(10_000))

    assert time.thread_time() - begun < 30  # 0.1 s on a machine with nothing else to do
