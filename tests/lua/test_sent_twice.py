"""A changing command that arrives twice: done once, answered twice; and not after a later one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rmq.core.replay_session import ReplaySession
from rmq.protocol import commands, scripts
from rmq.protocol.commands import PublishReply
from rmq.protocol.steps import Command
from tests.lua.box import Box
from tests.lua.calls import STAGE, furnish

Build = Callable[[ReplaySession], Command[Any]]


def _two_pages(box: Box) -> Build:
    box.send(10)
    return lambda lane: commands.purge(box.keys, lane, "store", limit=5)


def _named(box: Box) -> Build:
    ids = box.send(3)
    return lambda lane: commands.purge(box.keys, lane, "store", ids=ids)


def _dead_page(box: Box) -> Build:
    box.send(4)
    box.reject(*box.take(4))
    return lambda lane: commands.purge(box.keys, lane, "dead", limit=2)


def _dead(box: Box) -> Build:
    ids = box.send(3)
    box.reject(*box.take(2))
    return lambda lane: commands.redrive(box.handle, box.keys, lane, ids)


def _priority(box: Box) -> Build:
    (id,) = box.send(1)
    return lambda lane: commands.set_priority(box.keys, lane, id, 900)


def _delay(box: Box) -> Build:
    (id,) = box.send(1)
    return lambda lane: commands.reschedule(box.handle, box.keys, lane, id, 60_000)


def _staged(box: Box) -> Build:
    furnish(box)
    return lambda lane: commands.publish(box.handle, box.keys, lane, STAGE)


CASES: dict[str, tuple[Callable[[Box], Build], Any]] = {
    "purge of a page": (_two_pages, 5),
    "purge by id": (_named, 3),
    "purge of dead letters": (_dead_page, 2),
    "redrive": (_dead, "110"),
    "set_priority": (_priority, "changed"),
    "reschedule": (_delay, None),
    "publish": (_staged, PublishReply(1, 1, 0, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_second_copy_gets_the_first_answer_and_changes_nothing(box: Box, case: str) -> None:
    make, answer = CASES[case]
    build = make(box)
    lane, before = box.lane(), box.state()

    reply = box.twice(lambda: build(lane))

    assert answer is None or reply == answer
    assert box.changed(before), "the call changed nothing: the test has shown nothing"


@pytest.mark.parametrize("case", CASES)
def test_the_next_number_of_the_lane_is_another_command(box: Box, case: str) -> None:
    build = CASES[case][0](box)
    lane = box.lane()
    first = box.run(build(lane))
    lane.number += 1

    second = box.run(build(lane))

    goes_on = {
        "purge of a page": 5,
        "purge of dead letters": 2,
        "publish": PublishReply(0, 1, 0, 0),
    }
    none = {"purge by id": 0, "redrive": "000", "set_priority": "unchanged"}
    if case == "reschedule":
        assert second[0] == first[0] == "rescheduled"
    else:
        assert second == {**goes_on, **none}[case]


@pytest.mark.parametrize("case", CASES)
def test_a_copy_that_comes_after_a_later_number_is_refused(box: Box, case: str) -> None:
    build = CASES[case][0](box)
    lane = box.lane()
    late = build(lane)
    later = ReplaySession(lane.name)
    later.number = lane.number + 1
    box.send(1)
    box.run(commands.prepare(box.keys, later, 10, 30_000, False))
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQLATE"):
        box.run(late)

    assert box.state() == before


def test_every_script_that_changes_something_at_a_clients_word_is_in_a_lane_or_says_why() -> None:
    """A new script must say what becomes of a command that is sent twice."""
    in_lanes = {name for name in scripts.names() if "replayed(" in scripts.load(name).text}
    assert in_lanes == {
        "ack", "cancel", "extend", "nack", "prepare", "publish", "purge", "redrive", "reject",
        "release", "reschedule", "set_priority",
    }  # fmt: skip
