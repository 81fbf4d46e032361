"""lib/replay.lua on a real server: sessions in the slot's hash, and what becomes of silent ones."""

from __future__ import annotations

import pytest

from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.topic import scripts
from rmq.kernel.topic.sessions import ReplaySession

KEPT_S = 300


def sessions(box) -> set[bytes]:
    return {name for name in box.redis.hkeys(box.keys.slot) if name.startswith(b"@")}


def test_answer_is_kept_in_the_slot_under_the_name_of_the_session(box):
    session = box.session(known=False)
    session.count_to(41)

    box.run(box.send_command(box.ids(), session=session))

    kept = box.redis.hget(box.keys.slot, session.name)
    assert kept == b"41:%010d:1:" % (box.clock.now_ms // 1000)


def test_silent_sessions_are_removed_as_new_ones_begin(box):
    for _ in range(200):
        box.run(box.send_command(box.ids(), session=box.session(known=False)))
    assert len(sessions(box)) == 200
    box.clock.advance(KEPT_S - 1)
    busy = box.session(known=False)
    box.run(box.send_command(box.ids(), session=busy))
    assert len(sessions(box)) == 201, "none was silent for so long"
    box.clock.advance(2)

    new = []
    for _ in range(100):
        new.append(box.session(known=False))
        box.run(box.send_command(box.ids(), session=new[-1]))
        if len(new) == 10:
            # Each answer may have 13 KB, so each new session looks at few of them.
            assert len(sessions(box)) > 201 - 100

    assert sessions(box) == {busy.name, *(session.name for session in new)}


def test_silent_sessions_are_removed_by_tidy(box):
    box.run(box.send_command(box.ids(), session=box.session(known=False)))
    box.run(scripts.tidy(box.keys, 10))
    assert len(sessions(box)) == 1

    box.clock.advance(KEPT_S + 1)
    box.run(scripts.tidy(box.keys, 10))

    assert sessions(box) == set()
    settings = set(box.settings.for_slot())
    assert settings <= {name.decode() for name in box.redis.hkeys(box.keys.slot)}


@pytest.mark.parametrize("call", [b"", b"@no-number", b"created 1", b" 1", b"@ "])
def test_call_that_names_no_session_is_refused_and_no_field_changes(box, call):
    box.send(3)
    (lease,) = box.leases(
        box.run(consumer_scripts.prepare(box.keys, box.session(), 1, 30_000, False))
    )
    before = box.redis.hgetall(box.keys.slot)

    for command in (
        box.send_command(box.ids(2)),
        producer_scripts.send_uniform(
            box.handle, box.keys, box.session(), b"\0\0\0d", box.ids()[:1], [b""]
        ),
        consumer_scripts.prepare(box.keys, box.session(), 1, 30_000, False),
        box.ack_command([lease], box.session()),
        box.nack_command([lease], box.session()),
    ):
        before = box.redis.hgetall(box.keys.slot)
        command.args[1] = call
        with pytest.raises(Exception, match="RMQARG session"):
            box.run(command)
        assert box.redis.hgetall(box.keys.slot) == before


def test_session_that_the_slot_forgot_looks_its_messages_up(box):
    """A repeat that comes after the answer was removed must not store a message twice."""
    session = ReplaySession(b"@slow", 1)
    (id,) = box.ids()
    command = producer_scripts.send_uniform(box.handle, box.keys, session, b"\0\0\0d", [id], [b"x"])
    box.run(command)
    box.redis.hdel(box.keys.slot, session.name)
    box.take_one()  # in flight now

    assert box.run(command).codes == "d"
    assert box.order() == []
