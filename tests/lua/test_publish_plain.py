"""publish.lua on a real server: entries of messages that differ in their bodies alone."""

from __future__ import annotations

import msgpack
import pytest
import redis

from rmq.features.spark import scripts
from rmq.features.spark.scripts import PublishReply
from rmq.kernel.core import record
from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import Box, ordered, stored

PLACE = "stage:s"
DAY_MS = 86_400_000
HEAD = record.head(0, 0, 100)


def after(id: bytes, steps: int) -> bytes:
    """The id whose stamp comes so many later."""
    return (int.from_bytes(id[:8], "big") + steps).to_bytes(8, "big") + id[8:]


def push(box: Box, bodies: list[bytes], *, first: bytes = b"", head: bytes = HEAD) -> list[bytes]:
    """Stage these; the ids they get."""
    first = first or box.ids(max(1, len(bodies)))[0]
    entry = [b"p", head, member_of(first), len(bodies)]
    before = box.redis.llen(box.keys.stage_stem + b"s")
    command = scripts.stage_push(box.keys, "s", before, DAY_MS, entry, bodies)
    assert box.run(command) == before + 1 + len(bodies)
    return [after(first, n) for n in range(len(bodies))]


def publish(box: Box):
    return box.run(scripts.publish(box.handle, box.keys, box.session(), "s"))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_plain_entry_is_moved_in_one_step_and_the_next_one_stays(box):
    one, two = push(box, [b"a", b""], head=record.head(0, 0, 900))
    push(box, [b"c"])
    before = box.state()

    assert publish(box) == PublishReply(2, 2, 0, 0)

    assert box.changed(before) == {
        ("slot", "accepted"): "2",
        ("slot", "order"): "2",
        ("store", one): ordered(900, 1),
        ("store", two): ordered(900, 2),
        ("records", one): stored(1, b"a", priority=900),
        ("records", two): stored(2, b"", priority=900),
        (PLACE,): before[PLACE][3:],
    }
    assert publish(box) == PublishReply(0, 1, 0, 0)
    last = box.state()
    assert box.twice(
        lambda: scripts.publish(box.handle, box.keys, box.session(), "s")
    ) == PublishReply(0, 0, 0, 0)
    assert box.state() == last
    assert last[PLACE] == [b""]


@pytest.mark.parametrize("count", [1, 7, 8, 99, 100, 101, 129, 1000])
def test_any_number_of_messages_is_numbered_and_ordered_as_they_were_staged(box, count):
    box.redis.hset(box.keys.slot, "accepted", 2**32 - 50)  # the low bytes of the number turn over
    first = box.keys.id_of((2**60 + 2**32 - 70).to_bytes(8, "big") + b"12345")
    given = push(box, numbered(count), first=first)

    assert publish(box) == PublishReply(0, count, 0, 0)

    state = box.state()
    for n, id in enumerate(given):
        assert state["store"][id] == ordered(100, n + 1)
        number = (2**32 - 50 + n + 1) % 2**32
        assert state["records"][id] == stored(number, b"%d" % n, priority=100)
    assert len(state["store"]) == len(state["records"]) == count
    assert [lease.id for lease in box.take(1000)] == given


# Each priority with an order at which its fraction has room, nearly none, or none; both sides of
# powers of two, and of the orders beyond which Lua would print fewer digits.
@pytest.mark.parametrize(
    ("priority", "order"),
    [
        (17, 0), (17, 2**48), (31, 6_990), (32, 2**42), (100, 2**30 - 500), (100, 2**48),
        (127, 2**33), (900, 6_990), (65_535, 2**33), (65_535, 2**30 - 500), (1_048_575, 0),
        (1_048_575, 2**33), (1_048_575, 2**42),
    ],
)  # fmt: skip
def test_scores_are_those_of_a_send_to_the_last_bit(box, priority, order):
    head, scores = record.head(0, 0, priority), []
    box.one(priority=20)  # else the order begins anew
    for way in ("publish", "send"):
        box.redis.hset(box.keys.slot, "order", order)
        if way == "send":
            given = box.send(300, priority=priority)
        else:
            given = push(box, [b"body"] * 300, head=head)
            assert publish(box) == PublishReply(0, 300, 0, 0)
        scores.append([box.score(id) for id in given])

    assert scores[0] == scores[1]


def test_order_begins_anew_in_an_empty_slot_as_for_a_send(box):
    box.redis.hset(box.keys.slot, mapping={"order": 2**30 + 1, "front": -(2**30) - 1})
    (id,) = push(box, [b"a"])

    publish(box)

    assert box.score(id) == ordered(100, 1)
    assert box.redis.hmget(box.keys.slot, "order", "front") == [b"1", b"0"]


def test_headers_in_front_of_the_body_are_kept(box):
    rest = record.length_prefixed(msgpack.packb({"a": "b"})) + b"body"
    (id,) = push(box, [rest], head=record.head(1, record.HEADERS, 100))

    publish(box)

    read = record.read(box.state()["records"][id])
    assert (read.headers, read.body, read.codec) == ({"a": "b"}, b"body", 1)


def test_sleeping_consumer_is_woken(box):
    with box.redis.pubsub() as ear:
        ear.subscribe(box.handle.channel)
        ear.get_message(timeout=1)
        box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 60_000)
        push(box, [b"a"])
        publish(box)

        assert ear.get_message(timeout=1)["data"] == b"%d" % box.index
    assert box.redis.hget(box.keys.slot, "waiting") == b"0"


@pytest.mark.parametrize("living", [0, 2])
def test_where_the_first_or_the_last_lives_already_all_are_looked_up(box, living):
    (first,) = box.ids(kept=True)  # a stage's ids are not; these show whether they are looked up
    push(box, [b"b"], first=after(first, 1))
    publish(box)
    assert box.ack(box.take_one()) == "1"
    box.redis.delete(box.keys.stage_stem + b"s")
    box.run(box.send_command([after(first, living)]))
    given = push(box, [b"a", b"b", b"c"], first=first)
    before = box.state()

    assert publish(box) == PublishReply(0, 1, 2, 0)

    new = given[2 - living]
    assert box.changed(before) == {
        ("slot", "accepted"): "3",
        ("slot", "order"): "3",
        ("store", new): ordered(100, 3),
        ("records", new): stored(3, [b"a", b"b", b"c"][2 - living], priority=100),
        (PLACE,): [b""],
    }


def test_full_slot_refuses_the_entry_and_it_stays(make_box):
    box = make_box(max_length=3)
    box.one()
    given = push(box, [b"a", b"b", b"c"])
    before = box.state()

    assert box.twice(lambda: scripts.publish(box.handle, box.keys, box.session(), "s")) is None

    assert box.state() == before
    assert box.ack(box.take_one()) == "1"
    assert publish(box) == PublishReply(0, 3, 0, 0)
    assert box.order()[::-1] == given
    assert [record.read(box.state()["records"][id]).body for id in given] == [b"a", b"b", b"c"]


def test_drop_lowest_drops_for_them_as_for_others(make_box):
    box = make_box(max_length=1, overflow="drop_lowest")
    low = box.one(priority=20)
    (high,) = push(box, [b"a"])

    assert publish(box) == PublishReply(0, 1, 0, 0)

    assert box.order() == [high]
    assert low not in box.state()["records"]


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("place", ["slot", "store", "records", "stage"])
def test_wrong_type_is_an_error_and_no_key_changes(box, place, count):
    push(box, numbered(count))
    key = box.keys.stage_stem + b"s" if place == "stage" else getattr(box.keys, place)
    box.redis.delete(key)
    box.redis.set(key, b"another's")
    before = box.state()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        publish(box)

    assert box.state() == before


@pytest.mark.parametrize("left", [1, 2, 3])
def test_entry_that_has_lost_elements_moves_nothing(box, left):
    push(box, [b"a", b"b", b"c"])
    box.redis.ltrim(box.keys.stage_stem + b"s", 0, left - 1)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQSTAGE"):
        publish(box)

    assert box.state() == before


ID = b"i" * 16


@pytest.mark.parametrize(
    "entry",
    [
        [b"p"], [b"p", HEAD, ID], [b"p", HEAD, ID, 0], [b"p", HEAD, ID, -1], [b"p", HEAD, ID, b"1"],
        [b"p", HEAD, ID, 1001], [b"p", HEAD, ID, 1.5], [b"p", HEAD, ID[1:], 1],
        [b"p", HEAD[1:], ID, 1], [b"p", 7, ID, 1], [b"p", HEAD, 7, 1], [b"p", b"\0\0\0\x10", ID, 1],
        [b"p", b"\0\xff\xff\xff", ID, 1],
        *([b"p", bytes((flag,)) + HEAD[1:], ID, 1] for flag in (1, 2, 4, 8)),
    ],
)  # fmt: skip
def test_entry_that_nobody_wrote_so_moves_nothing(box, entry):
    box.run(scripts.stage_push(box.keys, "s", 0, DAY_MS, entry, [b"body"] * 3))
    before = box.state()

    with pytest.raises(redis.ResponseError, match=r"RMQ(STAGE|ARG)"):
        publish(box)

    assert box.state() == before


@pytest.mark.parametrize("count", [3, 300])
def test_at_maxmemory_the_entry_stays_in_its_stage(tight, count):
    given = push(tight, numbered(count))
    command = scripts.publish(tight.handle, tight.keys, tight.session(), "s")
    tight.redis.script_load(command.script.text)
    tight.redis.config_set("maxmemory", 1)
    before = tight.state()

    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        tight.run(command)

    assert tight.state() == before
    tight.redis.config_set("maxmemory", 0)
    assert tight.run(command) == PublishReply(0, count, 0, 0)
    assert set(tight.state()["records"]) == set(given)


def test_what_was_published_lives_as_any_other_message(box):
    (id,) = push(box, [b"a"])
    publish(box)

    assert box.run(topic_scripts.get(box.keys, id)) is not None
    assert box.nack(box.take_one()) == "r"
    assert box.ack(box.take_one()) == "1"
    assert id not in box.state().get("records", {})
