"""stage_push.lua on a real server."""

from __future__ import annotations

import msgpack
import pytest
import redis

from rmq.features.spark import scripts
from tests.lua.box import Box

NAME = "q:7:a"


def push(box: Box, position: int, *entry: bytes):
    return scripts.stage_push(box.keys, NAME, position, 60_000, list(entry) or [b"one"])


def packed(*entry: bytes) -> bytes:
    return msgpack.packb(list(entry), use_bin_type=False)


def test_push_adds_an_entry_and_keeps_the_stage_for_so_long(box):
    before = box.state()

    assert box.run(push(box, 0, b"a", b"b")) == 1

    assert box.changed(before, replay=True) == {(f"stage:{NAME}",): [packed(b"a", b"b")]}
    assert 59_000 < box.redis.pttl(box.keys.stage_stem + NAME.encode()) <= 60_000


def test_push_sent_twice_adds_one_entry(box):
    assert box.twice(lambda: push(box, 0, b"a")) == 1
    assert box.twice(lambda: push(box, 1, b"b")) == 2

    assert box.state()[f"stage:{NAME}"] == [packed(b"a"), packed(b"b")]


def test_entry_of_several_elements_is_put_there_as_a_whole_and_once(box):
    def pushed():
        return scripts.stage_push(box.keys, NAME, 0, 60_000, [b"p"], [b"a", b"", b"c"])

    assert box.twice(pushed) == 4
    assert box.twice(lambda: push(box, 4, b"b")) == 5

    assert box.state()[f"stage:{NAME}"] == [packed(b"p"), b"a", b"", b"c", packed(b"b")]


@pytest.mark.parametrize("position", [0, 2, 3, 5])
def test_part_of_an_entry_is_no_copy_of_it(box, position):
    box.run(push(box, 0))
    box.run(scripts.stage_push(box.keys, NAME, 1, 60_000, [b"p"], [b"a", b"b"]))
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQSTAGE"):
        box.run(scripts.stage_push(box.keys, NAME, position, 60_000, [b"p"], [b"a", b"b"]))

    assert box.state() == before


def test_entry_of_more_than_a_thousand_messages_is_refused(box):
    rests = [b"a"] * 1001
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG entry"):
        box.run(scripts.stage_push(box.keys, NAME, 0, 60_000, [b"p"], rests))

    assert box.state() == before
    assert box.run(scripts.stage_push(box.keys, NAME, 0, 60_000, [b"p"], rests[1:])) == 1001


def test_each_push_keeps_the_stage_anew(box):
    key = box.keys.stage_stem + NAME.encode()
    box.run(push(box, 0))
    box.redis.pexpire(key, 5000)

    box.run(push(box, 1))

    assert box.redis.pttl(key) > 59_000


@pytest.mark.parametrize("position", [0, 1, 4, 1000])
def test_stage_of_another_length_than_its_writer_says_is_an_error(box, position):
    for place in range(3):
        box.run(push(box, place))
    before = box.state()

    with pytest.raises(redis.ResponseError, match=f"RMQSTAGE rmq:.*:stage:{NAME}"):
        box.run(push(box, position))

    assert box.state() == before


def test_entry_of_some_megabytes_comes_back_as_it_was(box):
    body = bytes(range(256)) * 16_384
    box.run(push(box, 0, body))

    assert box.state()[f"stage:{NAME}"] == [packed(body)]
