"""Steps of opening a topic, run without a server."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from rmq.errors import Unavailable
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.settings import Settings
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scripts import TopicReply
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import Pipeline, RawCommand, Sleep


def test_a_topic_is_ready_for_others_only_when_all_its_slots_are() -> None:
    """Another thread that used the context before its slots were there would find no slot."""
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = opening.open(context)
    next(flow)
    kept = {**Settings(slots=3).to_redis(), "created": "7"}

    slots = flow.send(TopicReply(1, kept))
    assert isinstance(slots, Pipeline)
    assert not context.is_ready
    flow.send([0, 0, 0])
    assert context.is_ready
    flow.close()

    again = opening.open(context)  # by another thread; those at work are not held up
    next(again)
    again.send(TopicReply(0, kept))
    assert context.is_ready
    again.close()


def test_a_reader_waits_for_the_slots_of_a_topic_created_just_now() -> None:
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = opening.open(context, create=False)
    next(flow)

    exists = flow.send(TopicReply(0, {**Settings(slots=3).to_redis(), "created": "7"}))
    assert isinstance(exists, RawCommand)
    assert exists.words == ("EXISTS", b"rmq:{orders_2}:slot")
    assert isinstance(flow.send(0), Sleep)
    assert isinstance(next(flow), RawCommand)
    with pytest.raises(StopIteration) as ended:
        flow.send(1)
    assert ended.value.value is False
    assert not context.is_ready


def test_a_reader_does_not_wait_for_slots_for_ever() -> None:
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = opening.open(context, create=False)
    next(flow)

    steps = [flow.send(TopicReply(0, {**Settings(slots=3).to_redis(), "created": "7"}))]
    with contextlib.suppress(StopIteration):
        while len(steps) < 1000:
            steps.append(flow.send(0 if isinstance(steps[-1], RawCommand) else None))
    assert len(steps) == 2 * opening.SLOT_CHECKS


def away() -> Unavailable:
    """The error of a call that fails fast: the master of its slot is away."""
    error = Unavailable("away")
    error._repeat_for = 1.0
    return error


def opened(*answers: list[Any], layout: str = "") -> tuple[TopicContext, list[Pipeline]]:
    """Open a topic of three slots whose calls get these answers, one list for each try."""
    context, tries = TopicContext("rmq", "orders", JSON, ReplaySessions(), {}), list[Pipeline]()
    kept = {**Settings(slots=3).to_redis(), "created": "7", "revision": "4"}
    if layout:
        kept |= {"layout": "1 3 3", "resizing": layout}
    flow = opening.open(context)
    next(flow)
    step = flow.send(TopicReply(0, kept))
    for replies in answers:
        assert isinstance(step, Pipeline)
        tries.append(step)
        step = flow.send(replies)
    assert isinstance(step, RawCommand), "the topic is listed then"
    flow.close()
    return context, tries


def test_slots_whose_masters_are_away_are_left_out_and_tried_again_soon() -> None:
    context, tries = opened([0, away(), 0])

    assert all(call.fails_fast for call in tries[0].commands)
    assert context.is_ready
    context.fresh_until -= opening.UNREACHABLE_RETRY_S
    assert context.is_old()
    following = opening.ensure_open(context)
    next(following)
    again = following.send(TopicReply(0, {**Settings(slots=3).to_redis(), "created": "7",
                                          "revision": "4"}))  # fmt: skip
    assert isinstance(again, Pipeline)
    with pytest.raises(StopIteration):
        following.send([0, 1, 0])
    assert not context.is_old()


@pytest.mark.parametrize(
    "first", [[1, 0, "away"], ["away", "away", "away"]], ids=["settings-changed", "all-away"]
)
def test_all_slots_are_waited_for_if_others_lacked_the_settings_or_none_answers(
    first: list[Any],
) -> None:
    context, tries = opened([away() if one == "away" else one for one in first], [0, 0, 1])

    assert [call.fails_fast for call in tries[1].commands] == [False] * 3
    assert context.is_ready
    assert not context.is_old()


def test_all_slots_are_waited_for_while_a_resize_goes_on() -> None:
    _, tries = opened([0, 0, 0], layout="9 1 0")
    assert not any(call.fails_fast for call in tries[0].commands)
