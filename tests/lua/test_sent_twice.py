"""A changing command that arrives twice: done once, answered twice; and not after a later one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rmq.features.dead_letters import scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.features.spark.scripts import PublishReply
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader as transport_scripts
from tests.lua.box import Box
from tests.lua.furnished import STAGE, furnish
from tests.lua.moving import bury, entry, hold
from tests.sources import full_text

Build = Callable[[ReplaySession], Command[Any]]


def _two_pages(box: Box) -> Build:
    box.send(10)
    return lambda session: topic_scripts.purge(box.handle, box.keys, session, "store", limit=5)


def _named(box: Box) -> Build:
    ids = box.send(3)
    return lambda session: topic_scripts.purge(box.handle, box.keys, session, "store", ids=ids)


def _dead_page(box: Box) -> Build:
    box.send(4)
    box.reject(*box.take(4))
    return lambda session: topic_scripts.purge(box.handle, box.keys, session, "dead", limit=2)


def _dead(box: Box) -> Build:
    ids = box.send(3)
    box.reject(*box.take(2))
    return lambda session: scripts.redrive(box.handle, box.keys, session, ids)


def _priority(box: Box) -> Build:
    (id,) = box.send(1)
    return lambda session: messages_scripts.set_priority(box.keys, session, id, 900)


def _delay(box: Box) -> Build:
    (id,) = box.send(1)
    return lambda session: messages_scripts.reschedule(box.handle, box.keys, session, id, 60_000)


def _staged(box: Box) -> Build:
    furnish(box)
    return lambda session: queries_scripts.publish(box.handle, box.keys, session, STAGE)


def _late(box: Box) -> Build:
    return lambda session: consumer_scripts.lateness_report(box.keys, session, [1, 2, 3])


def _cancel(box: Box) -> Build:
    id = box.one(due=5000)
    return lambda session: messages_scripts.cancel(box.handle, box.keys, session, id)


def _settling(verb: str) -> Callable[[Box], Build]:
    def make(box: Box) -> Build:
        box.send(3)
        leases = box.take(2)
        return lambda session: getattr(box, f"{verb}_command")(leases, session)

    return make


def _trash(box: Box) -> Build:
    ids = bury(box, 2)
    return lambda session: scripts.trash(box.keys, session, ids, 1000)


def _restore(box: Box) -> Build:
    ids = bury(box, 2)
    box.run(scripts.trash(box.keys, box.session(), ids, 60_000))
    return lambda session: scripts.restore(box.keys, session, ids)


def _moved(box: Box) -> Build:
    ids = bury(box, 3)
    hold(box, *ids[:2])
    outcomes = [(entry(ids[0]), True), (entry(ids[1]), False), (entry(ids[2]), True)]
    return lambda session: scripts.redrive_settle(box.keys, session, outcomes)


CASES: dict[str, tuple[Callable[[Box], Build], Any]] = {
    "purge of a page": (_two_pages, 5),
    "purge by id": (_named, 3),
    "purge of dead letters": (_dead_page, 2),
    "redrive": (_dead, "110"),
    "set_priority": (_priority, "changed"),
    "reschedule": (_delay, None),
    "publish": (_staged, PublishReply(1, 1, 0, 0)),
    "lateness_report": (_late, True),
    "ack": (_settling("ack"), "11"),
    "nack": (_settling("nack"), "rr"),
    "reject": (_settling("reject"), "dd"),
    "release": (_settling("release"), "11"),
    "cancel": (_cancel, "cancelled"),
    "trash": (_trash, "11"),
    "restore": (_restore, "11"),
    "redrive_settle": (_moved, "1r0"),
}
# A command that finds nothing more to do says so, and changes nothing.
NOTHING_MORE = {
    "purge by id": 0,
    "redrive": "000",
    "set_priority": "unchanged",
    **dict.fromkeys(("ack", "nack", "reject", "release", "trash", "restore"), "00"),
    "cancel": "gone",
    "redrive_settle": "000",
}


@pytest.mark.parametrize("case", CASES)
def test_the_second_copy_gets_the_first_answer_and_changes_nothing(box: Box, case: str) -> None:
    make, answer = CASES[case]
    build = make(box)
    session, before = box.session(), box.state()

    reply = box.twice(lambda: build(session))

    assert answer is None or reply == answer
    assert box.changed(before), "the call changed nothing: the test has shown nothing"


@pytest.mark.parametrize("case", CASES)
def test_the_next_number_of_the_session_is_another_command(box: Box, case: str) -> None:
    build = CASES[case][0](box)
    session = box.session()
    first = box.run(build(session))
    session.count_to(session.number + 1)
    before = box.state()

    second = box.run(build(session))

    goes_on = {
        "purge of a page": 5,
        "purge of dead letters": 2,
        "publish": PublishReply(0, 1, 0, 0),
        "lateness_report": True,
    }
    if case == "reschedule":
        assert second[0] == first[0] == "rescheduled"
    elif case in goes_on:
        assert second == goes_on[case]
    else:
        assert second == NOTHING_MORE[case]
        assert box.changed(before) == {}


@pytest.mark.parametrize("case", CASES)
def test_a_copy_that_comes_after_a_later_number_is_refused(box: Box, case: str) -> None:
    build = CASES[case][0](box)
    session = box.session()
    late = build(session)
    later = ReplaySession(session.name, session.number + 1)
    box.send(1)
    box.run(consumer_scripts.prepare(box.keys, later, 10, 30_000, False))
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQLATE"):
        box.run(late)

    assert box.state() == before


def test_every_script_that_changes_something_at_a_clients_word_is_in_a_session_or_says_why() -> (
    None
):
    """A new script must say what becomes of a command that is sent twice."""
    in_sessions = {name for name in transport_scripts.names() if "fail('LATE'" in full_text(name)}
    assert in_sessions == {
        "ack", "ack_then", "cancel", "extend", "lateness_report", "merge", "nack", "prepare",
        "publish", "purge", "redrive", "redrive_settle", "reject", "release", "reschedule",
        "restore", "send", "set_priority", "trash",
    }  # fmt: skip
