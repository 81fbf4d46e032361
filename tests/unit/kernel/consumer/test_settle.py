"""Settlings over several slots and calls, run without a server."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.errors import OutcomeUnknown, ScriptFailed
from rmq.kernel.consumer import settle
from rmq.kernel.consumer.settle import Lease, Leases, Settling
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.settings import BATCH_MAX, Settings
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.errors import KeepsResults
from rmq.kernel.transport.flow.steps import Command, Pipeline


def context(slots: int) -> TopicContext:
    made = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    made.open_with(Settings(slots=slots), b"1")
    return made


def leases(*slots: int) -> Leases:
    return Leases.of(Lease(slot, b"%d" % n, 5000.0 + n) for n, slot in enumerate(slots))


def answer(settling: Settling[Any], *replies: Any) -> Any:
    """The value of a settling whose one step gets these replies."""
    flow = settling.try_run()
    step = next(flow)
    try:
        flow.send(list(replies) if isinstance(step, Pipeline) else replies[0])
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a settling has one step")


def test_letters_come_back_in_the_order_of_the_deliveries() -> None:
    settling = settle.ack(context(2), leases(1, 0, 1, 0))

    assert answer(settling, "10", "01") == ("1001", None)  # slot 1 first, then slot 0


def test_a_slot_that_failed_leaves_its_letters_unknown() -> None:
    error = ScriptFailed("broken")

    assert answer(settle.ack(context(2), leases(0, 1, 0)), "11", error) == ("1?1", error)


def test_an_error_of_every_slot_is_raised() -> None:
    with pytest.raises(ScriptFailed):
        answer(settle.ack(context(1), leases(0, 0)), *[ScriptFailed("broken")] * 1)


def test_leases_of_slots_that_are_gone_are_lost() -> None:
    assert answer(settle.ack(context(1), leases(0, 3)), "1") == ("10", None)


def test_a_call_carries_a_batch_at_most_and_the_last_is_released_first() -> None:
    count = BATCH_MAX + 1
    step = next(settle.release(context(1), leases(*[0] * count), [100] * count, 0).try_run())

    assert isinstance(step, Pipeline)
    first_ids = [command.args[6] for command in step.commands]
    assert first_ids == [b"%d" % BATCH_MAX, b"0"]


def test_calls_that_keep_redis_for_long_carry_fewer() -> None:
    topic, many = context(1), leases(*[0] * 250)
    assert [len(part) for part in settle.ack(topic, many)._positions] == [250]
    for settling in (
        settle.nack(topic, many, [b""] * 250, None),
        settle.reject(topic, many, [b""] * 250, "r"),
    ):
        assert [len(positions) for positions in settling._positions] == [100, 100, 50]

    topic.had_large = True  # Redis frees their bodies
    assert [len(part) for part in settle.ack(topic, many)._positions] == [100, 100, 50]


def test_a_settling_without_a_reply_is_repeated_under_the_same_number() -> None:
    settling = settle.ack(context(1), leases(0))
    flow = settling.try_run()
    first = next(flow)
    with pytest.raises(OutcomeUnknown):
        flow.throw(OutcomeUnknown("no reply"))

    second = next(settling.try_run())

    assert isinstance(first, Command)
    assert first is second


def test_the_session_is_free_again_after_the_reply() -> None:
    topic = context(1)
    settling = settle.ack(topic, leases(0))
    assert answer(settling, "1") == ("1", None)

    assert topic.sessions.acquire().number == 2


def test_new_deadlines_tell_lost_and_unknown_leases_apart() -> None:
    settling = settle.extend(context(3), leases(0, 0, 1, 7), 60_000)
    replies = [settle.Extension(1_790_000_060), None], ScriptFailed("broken")

    assert answer(settling, *replies)[0] == [(1_790_000_060, False), None, (0, False), None]


# --- results -----------------------------------------------------------------------------------


def names(step: Any) -> list[str]:
    """The scripts of a step."""
    commands = step.commands if isinstance(step, Pipeline) else [step]
    return [command.script.name for command in commands]


def test_a_slot_that_keeps_results_gets_ack_then_under_the_same_number() -> None:
    topic = context(1)
    flow = settle.ack(topic, leases(0)).try_run()
    first = next(flow)
    assert names(first) == ["ack"]

    second = flow.throw(KeepsResults("nothing was done"))

    assert names(second) == ["ack_then"]
    assert second.commands[0].args[1] == first.args[1]
    with pytest.raises(StopIteration) as stop:
        flow.send(["1"])
    assert stop.value.value == ("1", None)
    assert topic.keeps_results
    assert names(next(settle.ack(topic, leases(0)).try_run())) == ["ack_then"]


def test_only_the_slots_that_keep_results_are_called_again() -> None:
    topic, error = context(3), ScriptFailed("broken")
    flow = settle.ack(topic, leases(0, 1, 2, 1)).try_run()
    next(flow)

    again = flow.send(["1", KeepsResults("nothing was done"), error])

    assert names(again) == ["ack_then"]
    with pytest.raises(StopIteration) as stop:
        flow.send(["01"])
    assert stop.value.value == ("10?1", error)


def test_a_call_for_results_without_a_reply_is_repeated_as_it_was() -> None:
    settling = settle.ack(context(1), leases(0))
    flow = settling.try_run()
    next(flow)
    called = flow.throw(KeepsResults("nothing was done"))
    with pytest.raises(OutcomeUnknown):
        flow.throw(OutcomeUnknown("no reply"))

    assert next(settling.try_run()) is called.commands[0]


def test_results_go_with_their_deliveries_and_without_ack() -> None:
    step = next(settle.ack(context(2), leases(0, 1, 0), results=[b"s1", b"", b"s3"]).try_run())

    assert names(step) == ["ack_then", "ack_then"]
    assert [command.args[-2:] for command in step.commands] == [[b"s1", b"s3"], [b"", b""]]


def test_equal_results_are_given_once() -> None:
    step = next(settle.ack(context(1), leases(0, 0, 0), results=[b"s1"] * 3).try_run())

    assert step.args[-3:] == [b"1", b"", b"s1"]


def test_a_call_has_at_most_1_mib_of_results() -> None:
    given = [b"s" * 262_144] * 9

    settling = settle.ack(context(1), leases(*[0] * 9), results=given)

    assert [len(part) for part in settling._positions] == [4, 4, 1]
