"""topic_close.lua on a real server."""

from __future__ import annotations

from rmq.features.topic_admin import scripts


def test_topic_is_marked_and_the_mark_taken_away(box):
    def run(closed: bool) -> bool:
        for _ in range(2):
            reply = box.run(scripts.topic_close(box.handle, box.created, closed))
        return reply

    before = box.redis.hgetall(box.handle.key)

    assert run(True)
    assert box.redis.hgetall(box.handle.key) == before | {b"deleting": b"1"}
    assert run(False)
    assert box.redis.hgetall(box.handle.key) == before


def test_topic_of_another_stamp_or_none_is_left_alone(box):
    before = box.redis.hgetall(box.handle.key)

    assert not box.run(scripts.topic_close(box.handle, b"17", True))
    assert box.redis.hgetall(box.handle.key) == before
    box.redis.delete(box.handle.key)
    assert not box.run(scripts.topic_close(box.handle, box.created, True))
    assert not box.redis.exists(box.handle.key)
