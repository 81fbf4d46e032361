"""Members: what every key of a slot has for the id of a message."""

from __future__ import annotations

import msgpack
import pytest
import redis

from rmq.features.spark import scripts
from tests.lua.box import MEMBER, merging
from tests.lua.calls import CALLS
from tests.lua.furnished import RUN, furnish
from tests.lua.query import ME, read, take

ZSETS = ("store", "prepare", "dead")


def test_every_key_names_a_message_by_its_member(box):
    furnished = furnish(box)
    keys = box.keys
    members: set[bytes] = set()
    for place in ZSETS:
        found = set(box.redis.zrange(getattr(keys, place), 0, -1))
        assert found, place
        members |= found
    for place in ("records", "failures"):
        found = set(box.redis.hkeys(getattr(keys, place)))
        assert found, place
        members |= found
    for place in (keys.settled0, keys.settled1):
        members |= set(box.redis.smembers(place))
    members |= {opened[:MEMBER] for opened in box.redis.hvals(keys.merge)}
    members |= set(box.redis.lrange(keys.querylog_stem + RUN.encode(), 0, -1))

    assert {len(member) for member in members} == {MEMBER}
    ids = {box.keys.id_of(member) for member in members}
    assert {furnished.waiting, furnished.dead, furnished.settled, furnished.leased.id} <= ids
    assert all(id.slot == box.index and id.check == box.handle.check for id in ids)
    opened = [int(held[MEMBER:]) for held in box.redis.hvals(keys.merge)]
    assert all(abs(at - box.clock.now_ms) < 60_000 for at in opened)


def test_the_answer_of_a_take_is_kept_as_members(box):
    (id,) = box.send()

    box.prepare(session=(session := box.session()))

    kept = box.redis.hget(box.keys.slot, session.name)
    assert kept.split(b":", 4)[4] == id.member


def test_the_holder_of_a_slot_in_order_is_a_member(box):
    id = box.one()
    (lease,) = box.take(ordered=True)

    box.nack(lease, wait_ms=5000)

    assert box.redis.hget(box.keys.slot, "holder") == id.member


def test_a_query_log_has_members_and_its_reader_gets_ids(box):
    (id,) = box.send()

    take(box)

    assert box.redis.lrange(box.keys.querylog_stem + ME.run.encode(), 0, -1) == [id.member]
    assert box.run(scripts.query_read(box.keys, ME.run, 0, 9, 9)).members == id.member
    assert read(box).ids == [id]


@pytest.mark.parametrize("verb", ["send", "merge", "locate"])
def test_a_whole_id_is_refused(box, verb):
    furnished = furnish(box)
    command = CALLS[verb](furnished)
    before = box.state()

    args = [
        box.keys.id_of(arg) if isinstance(arg, bytes) and len(arg) == MEMBER else arg
        for arg in command.args
    ]

    if verb == "merge":
        options = command.args[5]
        args[5] = options[:-MEMBER] + box.keys.id_of(options[-MEMBER:])

    assert args != list(command.args)
    with pytest.raises(redis.ResponseError, match="RMQARG id"):
        box.raw(verb, command.keys, args)
    assert box.state() == before


@pytest.mark.parametrize("kind", ["list", "merge", "uniform"])
def test_a_staged_whole_id_is_refused(box, kind):
    (id,) = box.ids()
    head, rest = box.part()
    entry, rests = {
        "list": ([id, head, rest], []),
        "merge": ([b"m", id, *merging(id)[2:]], []),
        "uniform": ([b"p", head, id, 1], [b"body"]),
    }[kind]
    key = box.keys.stage_stem + b"s"
    box.redis.rpush(key, msgpack.packb(entry, use_bin_type=False), *rests)
    before = box.state()

    with pytest.raises(redis.ResponseError, match=r"RMQ(ARG (id|member)|STAGE)"):
        box.run(scripts.publish(box.handle, box.keys, box.session(), "s"))

    assert box.state() == before
