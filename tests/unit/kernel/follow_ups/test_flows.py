"""A sweep for pending follow-ups while masters or all of Redis are away, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.errors import Unavailable
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.settings import Settings
from rmq.kernel.follow_ups import flows, sweep
from rmq.kernel.follow_ups.scripts import PendingReply, PendingTarget, SettleReply, entry_of
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import Command, Pipeline
from tests.unit.monotonic import Clock

NONE = PendingReply(1_000, 0, 0, 0, 0, [])
SOME = PendingReply(1_000, 2, 2, 0, 0, [PendingTarget(f"other:{n}", 0, 1, 1) for n in range(2)])
ENTRIES = SettleReply(b"1", [entry_of(1, bytes(17))])
SENT = SettleReply(b"", [])


def away() -> Unavailable:
    """The error of a call that fails fast: the master of its slot is away."""
    error = Unavailable("away")
    error._repeat_for = 1.0
    return error


def three_slots() -> TopicContext:
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    context.open_with(Settings(slots=3), b"1")
    return context


def swept(context: TopicContext, *replies: Any) -> tuple[list[str], Any]:
    """Return the verbs of a sweep's calls, with the slots they ask, and what it returns."""
    flow, asked = sweep.try_sweep(context, 0), []
    answers = iter(replies)
    try:
        step: Any = next(flow)
        while True:
            commands = step.commands if isinstance(step, Pipeline) else [step]
            for command in commands:
                assert isinstance(command, Command)
                assert command.fails_fast, f"{command} waits for a master that is away"
                asked.append(command.script.name)
            answer = next(answers)
            failed = isinstance(answer, Exception)
            step = flow.throw(answer) if failed else flow.send(answer)
    except StopIteration as stop:
        return asked, stop.value


def test_slots_of_a_master_that_is_away_are_skipped_and_the_others_are_swept() -> None:
    asked, _ = swept(three_slots(), [away(), NONE, SOME], SENT, SENT)
    assert asked == ["pending"] * 3 + ["pending_settle"] * 2


def test_a_target_whose_master_is_away_is_put_off_and_the_next_is_sent() -> None:
    # The topic of the target is read, and its entries are tried again later.
    asked, first = swept(three_slots(), [NONE, NONE, SOME], ENTRIES, away(), SENT, SENT)
    assert asked[3:] == ["pending_settle", "topic", "pending_settle", "pending_settle"]
    assert first == 0


def test_a_sweep_makes_no_other_call_once_redis_as_a_whole_is_away() -> None:
    with pytest.raises(Unavailable):
        swept(three_slots(), [SOME, SOME, SOME], Unavailable("gone"))
    with pytest.raises(Unavailable):
        swept(three_slots(), [SOME, SOME, SOME], ENTRIES, Unavailable("gone"))


def test_a_slow_sweep_ends_and_says_where_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sweep, "time", clock)
    context = three_slots()
    flow = sweep.try_sweep(context, 0)
    next(flow)
    flow.send([NONE, SOME, SOME])
    clock.now += sweep.SWEEP_MAX_S + 0.1
    with pytest.raises(StopIteration) as stop:
        flow.send(SENT)
    assert stop.value.value == 1
    assert context.had_pending


def test_a_process_that_was_stopped_for_longer_than_its_claim_asks_before_it_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else another process might bury an entry that this one stores (tests/model/following.py)."""
    clock = Clock()
    monkeypatch.setattr(flows, "time", clock)
    flow = flows.send_target(three_slots(), three_slots().slots[0], "other:0")
    assert next(flow).script.name == "pending_settle"  # type: ignore[union-attr]

    clock.now += flows.CLAIM_S + 0.1

    assert flow.send(ENTRIES).script.name == "pending_settle"  # type: ignore[union-attr]
    assert flow.send(ENTRIES).script.name == "topic"  # type: ignore[union-attr]
    flow.close()
