"""A topic was created anew: who opened the one before is refused, and changes nothing."""

from __future__ import annotations

import pytest
import redis

from tests.lua.calls import CALLS
from tests.lua.furnished import furnish

# What routes messages to slots, or takes them from there, by what a client has read of the topic.
ROUTED = ("merge", "next_ready", "prepare", "publish", "query_take", "redrive_send", "send")


@pytest.mark.parametrize("script", ROUTED)
def test_a_caller_that_opened_another_life_of_the_topic_is_refused(box, script):
    command = CALLS[script](furnish(box))
    box.redis.hset(box.keys.slot, "created", "1790000000000009")
    before = box.state()

    for _ in range(2):
        with pytest.raises(redis.ResponseError, match=f"RMQANEW {box.keys.slot.decode()}"):
            box.run(command)

    assert box.state() == before


@pytest.mark.parametrize("script", ROUTED)
def test_a_caller_that_has_not_read_the_stamp_is_refused(box, script):
    command = CALLS[script](furnish(box))
    place = command.args.index(box.created)
    command.args[place] = b""
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        box.run(command)

    assert box.state() == before


def test_a_staged_merge_is_not_published_into_another_life(box):
    furnished = furnish(box)
    box.redis.hset(box.keys.slot, "created", "1790000000000009")
    box.redis.delete(box.keys.records)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        box.run(CALLS["publish"](furnished))

    assert box.state() == before
