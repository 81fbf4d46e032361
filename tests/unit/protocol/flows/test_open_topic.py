"""Steps of opening a topic, run without a server."""

from __future__ import annotations

import contextlib

import pytest

from rmq.core.codec import JSON
from rmq.core.replay_session import ReplaySessions
from rmq.core.settings import Settings
from rmq.core.topic_context import TopicContext
from rmq.protocol.commands import TopicReply
from rmq.protocol.flows import open_topic
from rmq.protocol.steps import Pipeline, RawCommand, Sleep


def test_a_topic_is_ready_for_others_only_when_all_its_slots_are() -> None:
    """Another thread that used the context before its slots were there would find no slot."""
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = open_topic.open(context)
    next(flow)
    kept = {**Settings(slots=3).to_redis(), "created": "7"}

    slots = flow.send(TopicReply(1, kept))
    assert isinstance(slots, Pipeline)
    assert not context.is_ready
    flow.send([0, 0, 0])
    assert context.is_ready
    flow.close()

    again = open_topic.open(context)  # by another thread; those at work are not held up
    next(again)
    again.send(TopicReply(0, kept))
    assert context.is_ready
    again.close()


def test_a_reader_waits_for_the_slots_of_a_topic_created_just_now() -> None:
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = open_topic.open(context, create=False)
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
    flow = open_topic.open(context, create=False)
    next(flow)

    steps = [flow.send(TopicReply(0, {**Settings(slots=3).to_redis(), "created": "7"}))]
    with contextlib.suppress(StopIteration):
        while len(steps) < 1000:
            steps.append(flow.send(0 if isinstance(steps[-1], RawCommand) else None))
    assert len(steps) == 2 * open_topic.SLOT_LOOKS
