"""Steps of receive, run without a server."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from rmq.errors import ScriptFailed, Unavailable
from rmq.kernel.consumer import receive
from rmq.kernel.consumer.scripts import Batch, RollbackReply
from rmq.kernel.consumer.state import ReceiveState
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.settings import Settings
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import AwaitSignal, Command

RECORD = bytes([1 << 5, 0, 0, 100, 0, 0, 0, 1]) + b"1"
EMPTY = Batch(-1, False, 0, 0, 0, b"", [], [])
FULL = Batch(-1, False, 1_790_000_000, 1, 1, b"", [bytes(16)], [RECORD])


def receive_state(slots: int, subscribed: bool = True) -> ReceiveState:
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    context.open_with(Settings(slots=slots), b"1")
    state = ReceiveState(context, 30_000)
    state.subscription.connection = object() if subscribed else None
    state.sweep_at = float("inf")  # a second after the start, which is soon on a busy machine
    return state


def describe(step: Any) -> str:
    """Name a step: the verb and the slot, or the wait for a signal."""
    if isinstance(step, AwaitSignal):
        return "await signal"
    assert isinstance(step, Command)
    if step.script.name != "prepare":
        return step.script.name
    return f"prepare {step.keys[0].decode().split('_')[1][0]}"


def run_with_replies(flow: Generator[Any, Any, Any], *replies: Any) -> tuple[list[str], Any]:
    """Run a flow on these replies; return its steps, and its value if it ended."""
    steps = []
    try:
        step = next(flow)
        for reply in replies:
            steps.append(describe(step))
            step = flow.send(reply)
        steps.append(describe(step))
    except StopIteration as stop:
        return steps, stop.value
    flow.close()
    return steps, None


def test_a_single_slot_is_visited_without_asking_it_first() -> None:
    steps, _ = run_with_replies(receive.receive(receive_state(1), 1, 5), EMPTY, {0}, EMPTY)
    assert steps == ["prepare 0", "await signal", "prepare 0", "await signal"]


def test_a_consumer_without_a_subscription_visits_again_before_it_sleeps() -> None:
    state = receive_state(2, subscribed=False)
    flow = receive.receive(state, 1, 5)
    steps = [describe(next(flow)), describe(flow.send([-1, -1]))]
    state.subscription.connection = object()
    steps += [describe(flow.send(set())), describe(flow.send(EMPTY)), describe(flow.send(EMPTY))]
    assert steps == ["next_ready", "await signal", "prepare 0", "prepare 1", "await signal"]


def test_a_slot_that_gave_messages_is_asked_before_the_consumer_sleeps() -> None:
    state = receive_state(2)
    steps, batches = run_with_replies(receive.receive(state, 1, 5), [0, 0], FULL)
    assert (steps, len(batches)) == (["next_ready", "prepare 0"], 1)
    state.all_checked_at += 60  # a busy machine may pause for longer than a check is valid

    # Slot 1 seemed to have work, and another consumer took it. Slot 0 does not know yet that the
    # consumer may sleep: its next message would send no signal, and wait for the poll of a second.
    steps, _ = run_with_replies(receive.receive(state, 1, 5), EMPTY, [-1, -1])

    assert steps == ["prepare 1", "next_ready", "await signal"]


def test_a_signal_sends_the_consumer_to_the_slot_that_it_names() -> None:
    steps, batches = run_with_replies(
        receive.receive(receive_state(3), 1, 5), [-1, -1, -1], {2}, FULL
    )
    assert (steps, len(batches)) == (["next_ready", "await signal", "prepare 2"], 1)


def test_a_call_that_does_not_wait_asks_once_and_never_subscribes() -> None:
    steps, batches = run_with_replies(receive.receive(receive_state(3), 1, 0), [-1, -1, -1])
    assert (steps, batches) == (["next_ready"], [])


def test_expired_leases_are_rolled_back_and_taken() -> None:
    expired = EMPTY._replace(expired=True, wait_us=0)
    steps, batches = run_with_replies(
        receive.receive(receive_state(1), 1, 0), expired, RollbackReply(1, 0, False), FULL
    )
    assert steps == ["prepare 0", "rollback_expired_leases", "prepare 0"]
    assert len(batches) == 1


def test_an_interrupt_while_the_reply_is_under_way_hands_the_batch_back() -> None:
    flow = receive.receive(receive_state(1), 1, 5)
    first = next(flow)

    again = flow.throw(KeyboardInterrupt())
    assert (again.keys, again.args) == (first.keys, [*first.args, 1])  # the same number and batch
    release = flow.send(FULL)
    assert describe(release) == "release"
    with pytest.raises(KeyboardInterrupt):
        flow.send("1")


def test_messages_of_one_slot_survive_the_error_of_the_next() -> None:
    state = receive_state(2)
    flow = receive.receive(state, 10, 5)
    next(flow)
    flow.send([0, 0])
    flow.send(FULL)
    with pytest.raises(StopIteration) as stop:
        flow.throw(ScriptFailed("slot 1 is broken"))
    assert [keys.index for keys, _ in stop.value.value] == [0]


def test_an_ordered_receive_takes_from_one_slot_only() -> None:
    state = receive_state(3)
    state.ordered = True
    steps, batches = run_with_replies(receive.receive(state, 10, 5), [0, 0, 0], EMPTY, FULL)
    assert steps == ["next_ready", "prepare 0", "prepare 1"]
    assert [keys.index for keys, _ in batches] == [1]


def test_an_interrupted_receive_returns_what_it_has_and_takes_no_more() -> None:
    state = receive_state(2)
    flow = receive.receive(state, 10, 5)
    next(flow)
    flow.send([0, -1])
    state.interrupted = True
    with pytest.raises(StopIteration) as stop:
        flow.send(FULL)
    assert len(stop.value.value) == 1

    steps, batches = run_with_replies(receive.receive(state, 10, 5), [0, 0])
    assert (steps, batches) == (["next_ready"], [])  # it may ask, and takes nothing


def test_a_topic_that_has_fewer_slots_now_waits_for_no_master_of_the_others() -> None:
    state = receive_state(3)
    away = Unavailable("its master is away")
    away._repeat_for = 60.0
    assert state.unreachable_slots.note(2, away)
    state.context.open_with(Settings(slots=2), b"2")

    steps, batches = run_with_replies(receive.receive(state, 1, 0), [-1, -1])

    assert (steps, batches) == (["next_ready"], [])
    assert not state.unreachable_slots


@pytest.mark.parametrize("slots", [2, 4])
def test_a_topic_that_is_opened_again_while_its_consumer_sleeps_is_asked_for_all_its_slots(
    slots: int,
) -> None:
    state = receive_state(3)
    flow = receive.receive(state, 1, 5)
    assert describe(next(flow)) == "next_ready"
    assert describe(flow.send([-1] * 3)) == "await signal"
    state.context.open_with(Settings(slots=slots), b"2")
    state.all_checked_at = 0.0

    command: Any = flow.send(set())

    assert describe(command) == "next_ready"
    assert len(command.keys) == 3 * slots
    flow.close()
