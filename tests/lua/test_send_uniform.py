"""send.lua on a real server: messages that differ in their bodies alone."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.core import record
from rmq.kernel.producer import scripts
from rmq.kernel.topic.context import ReplaySession
from tests.lua.box import ordered, stored

HEAD = record.head(0, 0, 900)


def uniform(box, session, bodies, first=b"", head=HEAD):
    first = first or box.ids(max(1, len(bodies)))[0]
    given = [(int.from_bytes(first[:8]) + n).to_bytes(8) + first[8:] for n in range(len(bodies))]
    return given, scripts.send_uniform(box.handle, box.keys, session, head, [first], bodies)


@pytest.mark.parametrize("known", [True, False], ids=["session goes on", "new session"])
@pytest.mark.parametrize("count", [1, 2, 15, 300, 1000])
def test_uniform_messages_are_stored_as_others_are(box, known, count):
    for _ in range(14):
        box.one(priority=900)  # so the next ones are beyond the sixteenth
    bodies = [b"%d" % n for n in range(count)]
    session = box.session(known)
    given, command = uniform(box, session, bodies)
    before = box.state()

    assert box.run(command) == scripts.SendReply(14 + count, "")

    expected = {
        ("slot", "accepted"): str(14 + count),
        ("slot", "order"): str(14 + count),
        (f"replay:{session.name[1:].decode()}",): b"1:%d:" % (14 + count),
    }
    for number, (id, body) in enumerate(zip(given, bodies, strict=True), 15):
        expected["store", id] = ordered(900, number)
        expected["records", id] = stored(number, body, priority=900)
    assert box.changed(before, replay=True) == expected


@pytest.mark.parametrize("known", [True, False], ids=["session goes on", "new session"])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_uniform_messages_sent_twice_with_one_number_are_stored_once(box, known, count):
    session = box.session(known)
    _, command = uniform(box, session, [b"x"] * count)

    assert box.twice(lambda: command).letters == ""

    for lease in box.take(count):
        assert box.ack(lease) == "1"
    assert box.twice(lambda: command).letters == ""
    assert box.order() == []
    later = ReplaySession(session.name)
    later.number = session.number + 1
    box.run(uniform(box, later, [b"next"])[1])
    with pytest.raises(redis.ResponseError, match="RMQLATE"):
        box.run(command)


@pytest.mark.parametrize("known", [True, False], ids=["session goes on", "new session"])
def test_uniform_messages_of_which_some_are_here_add_the_others(box, known):
    (first,) = box.ids()
    given, command = uniform(box, box.session(), [b"0"], first=first)
    box.run(command)

    again, command = uniform(box, box.session(known), [b"a", b"b", b"c"], first=first)
    assert box.run(command) == scripts.SendReply(3, "dss")

    assert again[:1] == given
    assert [box.state()["records"][id][8:] for id in again] == [b"0", b"b", b"c"]
    for lease in box.take(3):
        box.ack(lease)
    _, command = uniform(box, box.session(known), [b"0"], first=first)
    assert box.run(command).letters == "", "an id that nobody keeps is not remembered"


@pytest.mark.parametrize("count", [1, 3])
def test_uniform_messages_meet_the_limits_of_the_slot(make_box, count):
    box = make_box(max_length=2)
    box.send(2)
    before = box.state()

    assert box.run(uniform(box, box.session(), [b"x"] * count)[1]) == scripts.SendReply(0, "F")
    assert box.state() == before


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("head", [b"", b"\0\0\0", record.head(0, 0, 16), record.head(0, 0, 2**20)])
def test_uniform_messages_with_a_bad_head_are_refused(box, head, count):
    before = box.state()
    _, command = uniform(box, box.session(), [b"x"] * count, head=head)

    with pytest.raises(redis.ResponseError, match="RMQARG"):
        box.run(command)
    assert box.state() == before


@pytest.mark.parametrize("count", [1, 3])
def test_uniform_messages_wake_a_sleeping_consumer(box, count):
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)

    box.run(uniform(box, box.session(), [b"x"] * count)[1])

    assert box.counter("waiting") == 0
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms - 1)
    box.run(uniform(box, box.session(), [b"x"] * count)[1])
    assert box.counter("waiting") == box.clock.now_ms - 1
