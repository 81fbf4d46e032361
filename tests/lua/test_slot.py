"""slot.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq import commands
from tests.lua.box import Box


def command(box: Box, stamp: bytes) -> commands.Command[int]:
    return commands.slot(box.keys, stamp, box.settings.for_slot())


def test_slot_gets_the_stamp_and_the_settings_that_scripts_read(box):
    box.redis.delete(box.keys.slot)

    assert box.run(command(box, b"17")) == 1

    assert box.state() == {"slot": {"created": "17"} | box.settings.for_slot()}


def test_run_again_it_leaves_settings_and_counters_alone(box):
    box.one()
    before = box.state()

    assert box.twice(lambda: command(box, box.created)) == 0
    assert box.state() == before


def test_slot_of_another_topic_is_left_alone(box):
    before = box.state()

    assert box.twice(lambda: command(box, b"another stamp")) == -1
    assert box.state() == before


def test_wrong_type_is_an_error_and_the_key_stays(box):
    box.redis.delete(box.keys.slot)
    box.redis.rpush(box.keys.slot, "x")
    before = box.state()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        box.run(command(box, b"17"))

    assert box.state() == before
