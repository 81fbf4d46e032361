"""send.lua on a real server: messages that differ in their bodies alone."""

from __future__ import annotations

import functools
import random

import pytest
import redis

import rmq
from rmq.kernel.core import record
from rmq.kernel.producer import scripts
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.lua.script_loader import full_text
from tests.lua.both_ways import compare
from tests.lua.box import ordered, stored
from tests.lua.group import check, grouped, parts_of

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

    assert box.twice(lambda: command).codes == ""

    for lease in box.take(count):
        assert box.ack(lease) == "1"
    assert box.twice(lambda: command).codes == ""
    assert box.order() == []
    later = ReplaySession(session.name, session.number + 1)
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
    assert box.run(command).codes == "", "an id that nobody keeps is not remembered"


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


RUN = "if names[i] == names[i - 1] then"  # where the next message of a group is held with others


@functools.cache
def one_by_one(instead: str = "if false then") -> str:
    """The text of send with another condition for holding messages together."""

    def changed(part: str, text: str) -> str:
        if part != "lib/groups/enter_groups":
            return text
        assert text.count(RUN) == 1
        return text.replace(RUN, instead)

    return full_text("send", changed)


def runs(box, made):
    """A send of messages of some groups, of which many follow one of the same group."""
    priority = made.choice([100, 100, 300])
    rests = []
    for _ in range(made.randrange(1, 6)):
        name, weight = made.choice("abc"), made.choice([1, 1, 1, 4])
        head, rest = parts_of(name, priority=priority, weight=weight)
        rests += [rest] * made.choice([1, 2, 5, 12, 40])
    return uniform(box, box.session(), rests, head=head)[1]


@pytest.mark.parametrize("concurrency", [1, 3, 1000])
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 0)) for seed in range(3)]
)
def test_messages_that_follow_one_of_their_group_are_held_as_each_alone(
    make_box, concurrency, seed
):
    made = random.Random(seed)
    box = grouped(make_box, rmq.Groups(order=concurrency == 1, concurrency=concurrency))
    for _ in range(15):
        compare(box, runs(box, made), one_by_one())

        check(box)
        leases = box.take(made.choice([1, 5, 30]))
        box.ack(*leases)
        check(box)


def test_control_messages_that_are_held_another_way_are_noticed(make_box):
    box = grouped(make_box)
    broken = one_by_one(RUN).replace("score + step,", "score + 2 * step,")
    assert broken != one_by_one(RUN)

    head, rest = parts_of("a")
    command = uniform(box, box.session(), [rest] * 5, head=head)[1]

    with pytest.raises(AssertionError):
        compare(box, command, broken)
