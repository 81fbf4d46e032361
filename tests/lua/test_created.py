"""A topic was created anew: who opened the one before is refused, and changes nothing."""

from __future__ import annotations

import pytest
import redis

from tests.lua.calls import CALLS
from tests.lua.furnished import furnish

# What routes messages to slots, or takes them from there, by what a client has read of the topic.
ROUTED = (
    "merge", "next_ready", "pending_send", "prepare", "publish", "query_take", "redrive_send",
    "send",
)  # fmt: skip


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


@pytest.mark.parametrize(
    "script", ["sample", "topic_pause", "topic_resize", "topic_resume", "topic_set"]
)
def test_a_topic_of_another_stamp_or_none_or_being_deleted_is_left_alone(box, script):
    furnished = furnish(box)
    if script == "topic_resume":
        box.run(CALLS["topic_pause"](furnished))
    before = box.topic_fields()

    def left_alone(stamp: bytes) -> bool:
        command = CALLS[script](furnished)
        command.args[command.args.index(box.created)] = stamp
        reply = box.run(command)
        return getattr(reply, "state", -1 if reply is False else 1) == -1

    assert left_alone(b"17")
    assert box.topic_fields() == before
    box.run(CALLS["topic_close"](furnished))
    assert left_alone(box.created)
    assert box.topic_fields() == before | {"deleting": "1"}
    box.redis.delete(box.handle.key)
    assert left_alone(box.created)
    assert not box.redis.exists(box.handle.key, box.handle.history_key)


def test_a_staged_merge_is_not_published_into_another_life(box):
    furnished = furnish(box)
    box.redis.hset(box.keys.slot, "created", "1790000000000009")
    box.redis.delete(box.keys.records)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        box.run(CALLS["publish"](furnished))

    assert box.state() == before
