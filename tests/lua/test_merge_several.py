"""merge.lua with several messages in one call, which do what as many calls of one do."""

from __future__ import annotations

import random

import pytest

from rmq.kernel.core import ids as core_ids, record
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts
from tests.lua.box import Box


def held(box) -> dict[str, object]:
    """What a slot holds, without its name: places of one ms by their order alone."""
    keys, raw = box.keys, box.redis
    store = raw.zrange(keys.store, 0, -1, withscores=True)
    counters = ("accepted", "merged", "dropped", "settled_turn")
    return {
        "store": [(member, score if score < 1e12 else int(score)) for member, score in store],
        "records": raw.hgetall(keys.records),
        "windows": raw.hgetall(keys.merge),
        "settled": [raw.smembers(key) for key in (keys.settled0, keys.settled1)],
        "counters": raw.hmget(keys.slot, counters),
    }


def some_merges(dice: random.Random, ids: list[bytes], count: int) -> list[dict[str, object]]:
    """Options of merges, some of which repeat an id, and of an id: new, or one of `ids`."""
    made = []
    for _ in range(count):
        range_ms = dice.choice([1000, 1000, 5000])
        made.append(
            {
                "id": dice.choice(ids),
                "body": bytes(dice.randrange(30)),
                "key": dice.choice([b"a", b"a", b"b", b"c", b"%d" % dice.randrange(99)]),
                "mode": dice.choice(["first", "last", "collect", "collect"]),
                "range_ms": range_ms,
                "max_wait": dice.choice([0, range_ms, 9000]),
                "priority": dice.choice([0, 0, 50]),
                "expires": dice.choice([None, None, 700]),
                "codec": dice.choice([0, 0, 0, 1]),
                "most": dice.choice([70, 70, 1000]),
            }
        )
    return made


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= 8)) for seed in range(40)]
)
@pytest.mark.parametrize("window", [0, 60_000])
def test_one_call_does_what_a_call_for_each_message_does(make_box, clock, seed, window):
    dice, one = random.Random(seed), make_box(dedup_window_ms=window)
    each = Box(one.redis, f"{one.handle.name}-each", clock, dedup_window_ms=window)
    ids = [*one.ids(40), *one.ids(40, kept=True)]
    dice.shuffle(ids)

    for _ in range(4):
        merges = some_merges(dice, ids, dice.randrange(1, 40))
        reply = one.run(one.merge_many([one.merge_command(**merge) for merge in merges]))
        replies = [each.run(each.merge_command(**merge)) for merge in merges]

        assert reply.codes == "".join(single.codes for single in replies)
        assert reply.into == b"".join(single.into for single in replies)
        assert reply.offset == replies[-1].offset
        assert held(one) == held(each)
        clock.advance(dice.choice([0, 0.5, 1.2, 3]))
        if dice.random() < 0.5:
            taken = [[member_of(lease.id) for lease in box.take(2)] for box in (one, each)]
            assert taken[0] == taken[1]


@pytest.mark.parametrize("known", [True, False])
def test_ids_of_a_run_are_those_that_follow_the_first(box, known):
    run = core_ids.make_range(0, 0, 300)
    options = box.merge_command(run[0], mode="last").args[5]
    parts = [part for n in range(300) for part in (b"", *rest(box, b"%d" % (n // 2)))]
    parts[0] = options[:-13]
    session = box.session(known)

    reply = box.twice(lambda: scripts.merge(box.handle, box.keys, session, run, parts))

    assert reply == scripts.SendReply(150, "sm" * 150, b"".join(run.members()[::2]))
    assert box.order() == [box.keys.id_of(member) for member in run.members()[::2]]


def rest(box, key: bytes) -> tuple[bytes, bytes]:
    """The envelope and the body of a message with a merge key."""
    _, envelope, body = box.merge_command(box.ids()[0], key=key).args[5:]
    return envelope, body


def test_a_call_of_several_that_is_repeated_gives_the_first_answer(box):
    waiting, _ = box.merge(mode="collect")
    commands = [box.merge_command(id, b"b", key, "collect") for id, key in zip(
        box.ids(4), (b"key", b"other", b"other", b"key"), strict=True)]  # fmt: skip
    call = box.merge_many(commands)

    reply = box.twice(lambda: call)

    assert (reply.offset, reply.codes) == (2, "msmm")
    bodies = record.collected_bodies(record.read(box.state()["records"][waiting]).body)
    assert bodies == [b"body", b"b", b"b"]


def test_a_call_of_several_is_refused_as_a_whole(make_box):
    box = make_box(max_length=2)
    box.merge()
    several = [box.merge_command(id, key=key) for id, key in zip(
        box.ids(3), (b"key", b"1", b"2"), strict=True)]  # fmt: skip
    before = box.state()

    assert box.run(box.merge_many(several)) == scripts.SendReply(0, "F")
    assert box.state() == before
    assert box.run(box.merge_many(several[:2])).codes == "ms"

    box.redis.hset(box.keys.slot, "paused_send", "x")
    before = box.state()
    assert box.run(box.merge_many(several[1:])) == scripts.SendReply(0, "P")
    assert box.state() == before


def test_a_call_of_several_makes_room_for_all_that_open_a_window(make_box):
    box = make_box(max_length=4, overflow="drop_lowest")
    first, second, third = (box.one(priority=priority) for priority in (17, 18, 19))
    ids = box.ids(4)
    keys = (b"key", b"1", b"key", b"2")
    several = [box.merge_command(id, key=key) for id, key in zip(ids, keys, strict=True)]

    reply = box.run(box.merge_many(several))

    assert reply == scripts.SendReply(6, "ssms", ids[0].member)
    assert set(box.order()) == {third, ids[0], ids[1], ids[3]}
    assert box.counter("dropped") == 2
    assert not {first, second} & set(box.state()["records"])
    several = [box.merge_command(id, key=b"%d" % n) for n, id in enumerate(box.ids(5))]
    before = box.state()
    assert box.run(box.merge_many(several)).codes == "F"
    assert box.state() == before


def test_long_waiting_records_are_left_to_another_call(box):
    waiting = [box.merge(key=b"%d" % n, mode="collect", body=bytes(60_000))[0] for n in range(6)]
    several = [
        box.merge_command(id, b"b", b"%d" % (n % 7), "collect") for n, id in enumerate(box.ids(14))
    ]
    before = box.state()

    reply = box.run(box.merge_many(several))

    assert reply == scripts.SendReply(6, "mmm", b"".join(id.member for id in waiting[:3]))
    assert {place[1] for place in box.changed(before) if place[0] == "records"} == set(waiting[:3])
    rest = box.merge_many(several[3:])
    assert box.run(rest) == scripts.SendReply(7, "mmms", b"".join(id.member for id in waiting[3:]))


@pytest.mark.parametrize("bad", ["id", "time_range", "options"])
def test_one_message_that_cannot_be_read_refuses_the_whole_call(box, bad):
    several = [box.merge_command(id, key=b"%d" % n) for n, id in enumerate(box.ids(3))]
    call = box.merge_many(several)
    if bad == "id":
        call.args[8] += b"x"
    elif bad == "options":
        call.args[8] = b"x"
    else:
        call.args[9] = bytes(6) + call.args[9][6:]
    before = box.state()

    with pytest.raises(Exception, match=f"RMQARG {bad}"):
        box.run(call)

    assert box.state() == before


def test_of_a_run_no_other_id_may_be_given(box):
    several = [box.merge_command(id, key=b"%d" % n) for n, id in enumerate(box.ids(3))]
    call = box.merge_many(several)
    call.args[8] = call.args[8][:-13]

    with pytest.raises(Exception, match="RMQARG id"):
        box.run(call)


def test_a_call_of_several_makes_a_table_of_a_small_merge_index(box):
    box.merge(key=b"first")
    assert box.redis.object("encoding", box.keys.merge) in (b"listpack", b"ziplist")

    box.run(
        box.merge_many([box.merge_command(id, key=b"%d" % n) for n, id in enumerate(box.ids(20))])
    )

    assert box.redis.object("encoding", box.keys.merge) == b"hashtable"
    assert set(box.redis.hkeys(box.keys.merge)) == {b"first", *(b"%d" % n for n in range(20))}
