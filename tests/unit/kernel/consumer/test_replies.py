"""Settlings of several slots, of which some have no answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.kernel.consumer import settle
from rmq.kernel.consumer.replies import MissingReplies
from rmq.kernel.consumer.settle import Lease, Leases, Settling
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import Command, Sleep

SLOTS = [SlotKeys("rmq", "t", index) for index in range(3)]


def settling() -> Settling[str]:
    context: Any = SimpleNamespace(slots=SLOTS, sessions=ReplaySessions())

    def build(keys: Any, session: Any, part: Any, positions: Any) -> Command[Any]:
        session.number += 1
        return Command(None, [keys.slot], [session.call], str)  # type: ignore[arg-type]

    leases = Leases.of([Lease(slot, b"%d" % slot, 1.0) for slot in range(3)])
    return Settling(context, leases, build, settle._CODES, None)


def answer(flow: Any, *replies: Any) -> tuple[Any, Any]:
    """Answer the one step of a flow; return the step, and what the flow returned."""
    step = next(flow)
    with pytest.raises(StopIteration) as stop:
        flow.send(list(replies))
    return step, stop.value.value


def calls(step: Any) -> list[Any]:
    return [(call.keys[0], call.args[0]) for call in step.commands]


def test_what_has_no_answer_is_kept_and_run_again_under_its_numbers() -> None:
    one = settling()
    lost = OutcomeUnknown("lost")

    first, (letters, error) = answer(one.try_run(fails_fast=True), "1", lost, "1")
    assert all(call.fails_fast for call in first.commands)
    assert (letters, error, one.unanswered) == ("1?1", lost, True)

    flow = one.try_run()
    step = next(flow)
    assert (step.keys[0], step.args[0]) == calls(first)[1]
    with pytest.raises(StopIteration) as stop:
        flow.send("1")
    assert stop.value.value == ("?1?", None)
    assert not one.unanswered


def test_what_may_have_been_done_before_is_kept_when_it_cannot_be_repeated() -> None:
    one = settling()
    flow = one.try_run()
    next(flow)
    with pytest.raises(OutcomeUnknown):
        flow.throw(OutcomeUnknown("lost"))

    _, (letters, error) = answer(one.try_run(), "1", Unavailable("away"), "1")
    assert letters == "1?1"
    assert isinstance(error, Unavailable)
    assert one.unanswered


def test_what_was_surely_not_done_is_not_kept() -> None:
    one = settling()
    _, (letters, error) = answer(one.try_run(), "1", Unavailable("away"), "1")
    assert letters == "1?1"
    assert isinstance(error, RMQError)
    assert not one.unanswered


def test_missing_replies_of_other_slots_keep_nobody_waiting() -> None:
    missing = MissingReplies()
    one = settling()
    answer(one.try_run(), "1", OutcomeUnknown("lost"), "1")
    noted: list[str] = []
    missing.add("ack", [], one, lambda _, letters: noted.append(letters))

    assert list(missing.repeat([SLOTS[0].slot, SLOTS[2].slot])) == []
    flow = missing.repeat([SLOTS[1].slot])
    assert isinstance(next(flow), Command)
    # Another thread that settles in this slot waits; one that settles elsewhere does not.
    assert isinstance(next(missing.repeat([SLOTS[1].slot])), Sleep)
    assert list(missing.repeat([SLOTS[0].slot])) == []
    with pytest.raises(StopIteration):
        flow.send("1")
    assert noted == ["?1?"]
    assert not missing.waiting
    assert not missing.repeating
