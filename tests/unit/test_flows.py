"""Conversations, driven by hand: no server, no sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import pytest

from rmq.core.codec import JSON
from rmq.core.replay_session import ReplaySessions
from rmq.core.settings import Settings
from rmq.core.topic_context import TopicContext
from rmq.protocol.commands import Batch, TopicReply
from rmq.protocol.flows import open_topic, receive
from rmq.protocol.flows.receive import Reception
from rmq.protocol.steps import AwaitSignal, Command, Pipeline, RawCommand, Sleep

RECORD = bytes([1 << 5, 0, 0, 100, 0, 0, 0, 1]) + b"1"
EMPTY = Batch(-1, False, 0, 0, 0, b"", [], [])
FULL = Batch(-1, False, 1_790_000_000, 1, 1, b"", [bytes(16)], [RECORD])


def reception(slots: int, listening: bool = True) -> Reception:
    handle = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    handle.mark_open(Settings(slots=slots), b"1")
    made = Reception(handle, 30_000)
    made.subscription.held = object() if listening else None
    return made


def say(step: Any) -> str:
    """A step in a word: the verb and the slot, or that it listens."""
    if isinstance(step, AwaitSignal):
        return "listen"
    assert isinstance(step, Command)
    if step.script.name != "prepare":
        return step.script.name
    return f"prepare {step.keys[0].decode().split('_')[1][0]}"


def converse(flow: Generator[Any, Any, Any], *answers: Any) -> tuple[list[str], Any]:
    """The steps of a flow that is given these answers, and what it returned, if it did."""
    heard = []
    try:
        step = next(flow)
        for answer in answers:
            heard.append(say(step))
            step = flow.send(answer)
        heard.append(say(step))
    except StopIteration as stop:
        return heard, stop.value
    flow.close()
    return heard, None


def test_a_topic_is_ready_for_others_only_when_all_its_slots_are() -> None:
    """A handle may be shared: who came between the topic and its slots found no slot."""
    handle = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = open_topic.open(handle)
    next(flow)
    kept = {**Settings(slots=3).to_redis(), "created": "7"}

    slots = flow.send(TopicReply(1, kept))
    assert isinstance(slots, Pipeline)
    assert not handle.is_ready
    flow.send([0, 0, 0])
    assert handle.is_ready
    flow.close()

    again = open_topic.open(handle)  # by another thread; those at work are not held up
    next(again)
    again.send(TopicReply(0, kept))
    assert handle.is_ready
    again.close()


def test_who_only_looks_waits_for_the_slots_of_a_topic_made_just_now() -> None:
    handle = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = open_topic.open(handle, create=False)
    next(flow)

    asked = flow.send(TopicReply(0, {**Settings(slots=3).to_redis(), "created": "7"}))
    assert isinstance(asked, RawCommand)
    assert asked.words == ("EXISTS", b"rmq:{orders_2}:slot")
    assert isinstance(flow.send(0), Sleep)
    assert isinstance(next(flow), RawCommand)
    with pytest.raises(StopIteration) as ended:
        flow.send(1)
    assert ended.value.value is False
    assert not handle.is_ready


def test_who_only_looks_does_not_wait_for_ever() -> None:
    handle = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    flow = open_topic.open(handle, create=False)
    next(flow)

    steps = [flow.send(TopicReply(0, {**Settings(slots=3).to_redis(), "created": "7"}))]
    with contextlib.suppress(StopIteration):
        while len(steps) < 1000:
            steps.append(flow.send(0 if isinstance(steps[-1], RawCommand) else None))
    assert len(steps) == 2 * open_topic.SLOT_LOOKS


def test_one_slot_is_visited_without_a_look_and_slept_on() -> None:
    heard, _ = converse(receive.receive(reception(1), 1, 5), EMPTY, {0}, EMPTY)
    assert heard == ["prepare 0", "listen", "prepare 0", "listen"]


def test_a_consumer_that_does_not_listen_yet_visits_again_before_it_sleeps() -> None:
    made = reception(2, listening=False)
    flow = receive.receive(made, 1, 5)
    heard = [say(next(flow)), say(flow.send([-1, -1]))]
    made.subscription.held = object()
    heard += [say(flow.send(set())), say(flow.send(EMPTY)), say(flow.send(EMPTY))]
    assert heard == ["next_ready", "listen", "prepare 0", "prepare 1", "listen"]


def test_a_slot_that_gave_messages_is_told_before_we_sleep() -> None:
    made = reception(2)
    heard, batches = converse(receive.receive(made, 1, 5), [0, 0], FULL)
    assert (heard, len(batches)) == (["next_ready", "prepare 0"], 1)

    # Slot 1 seemed to have work, and another consumer took it. Nobody has told slot 0 that we may
    # sleep: its next message would send no signal, and wait for the look once a second.
    heard, _ = converse(receive.receive(made, 1, 5), EMPTY, [-1, -1])

    assert heard == ["prepare 1", "next_ready", "listen"]


def test_a_signal_sends_the_consumer_to_the_slot_that_it_names() -> None:
    heard, batches = converse(receive.receive(reception(3), 1, 5), [-1, -1, -1], {2}, FULL)
    assert (heard, len(batches)) == (["next_ready", "listen", "prepare 2"], 1)


def test_a_call_that_does_not_wait_looks_once_and_never_listens() -> None:
    heard, batches = converse(receive.receive(reception(3), 1, 0), [-1, -1, -1])
    assert (heard, batches) == (["next_ready"], [])


def test_lapsed_leases_are_rolled_back_and_looked_for_again() -> None:
    from rmq.protocol.commands import RollbackReply

    lapsed = EMPTY._replace(expired=True, wait_us=0)
    heard, batches = converse(
        receive.receive(reception(1), 1, 0), lapsed, RollbackReply(1, 0, False), FULL
    )
    assert heard == ["prepare 0", "rollback", "prepare 0"]
    assert len(batches) == 1


def test_an_interrupt_while_the_reply_is_under_way_hands_the_batch_back() -> None:
    flow = receive.receive(reception(1), 1, 5)
    first = next(flow)

    again = flow.throw(KeyboardInterrupt())
    assert (again.keys, again.args) == (first.keys, [*first.args, 1])  # the same number and batch
    release = flow.send(FULL)
    assert say(release) == "release"
    with pytest.raises(KeyboardInterrupt):
        flow.send("1")


def test_what_one_slot_gave_survives_the_error_of_the_next() -> None:
    made = reception(2)
    flow = receive.receive(made, 10, 5)
    next(flow)
    flow.send([0, 0])
    flow.send(FULL)
    with pytest.raises(StopIteration) as stop:
        flow.throw(RuntimeError("slot 1 is broken"))
    assert [keys.index for keys, _ in stop.value.value] == [0]


def test_in_order_the_first_slot_that_gives_any_is_the_only_one() -> None:
    made = reception(3)
    made.ordered = True
    heard, batches = converse(receive.receive(made, 10, 5), [0, 0, 0], EMPTY, FULL)
    assert heard == ["next_ready", "prepare 0", "prepare 1"]
    assert [keys.index for keys, _ in batches] == [1]


def test_an_interrupted_receive_returns_what_it_has_and_takes_no_more() -> None:
    made = reception(2)
    flow = receive.receive(made, 10, 5)
    next(flow)
    flow.send([0, -1])
    made.interrupted = True
    with pytest.raises(StopIteration) as stop:
        flow.send(FULL)
    assert len(stop.value.value) == 1

    heard, batches = converse(receive.receive(made, 10, 5), [0, 0])
    assert (heard, batches) == (["next_ready"], [])  # at most it asks; it takes nothing
