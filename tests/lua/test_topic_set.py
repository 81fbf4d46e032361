"""topic_set.lua on a real server."""

from __future__ import annotations

from rmq.features.topic_admin import scripts
from rmq.kernel.core.settings import Settings


def fields(box):
    return {k.decode(): v.decode() for k, v in box.redis.hgetall(box.handle.key).items()}


def change(box, created=None, **values):
    return scripts.topic_set(box.handle, created or box.created, values)


def test_settings_are_changed_and_the_revision_grows(box):
    before = fields(box)

    reply = box.run(change(box, lease_ms="60000", on_expire="drop"))

    assert fields(box) == before | {"lease_ms": "60000", "on_expire": "drop", "revision": "1"}
    assert (reply.state, reply.kept) == (1, fields(box))


def test_run_twice_the_second_run_changes_nothing(box):
    first = box.run(change(box, lease_ms="60000"))

    second = box.run(change(box, lease_ms="60000"))

    assert (first.state, second.state) == (1, 0)
    assert second.kept == first.kept == fields(box)


def test_topic_of_another_stamp_or_none_or_being_deleted_is_left_alone(box):
    before = fields(box)

    assert box.run(change(box, b"17", lease_ms="60000")).state == -1
    assert fields(box) == before
    box.run(scripts.topic_close(box.handle, box.created, True))
    assert box.run(change(box, lease_ms="60000")).state == -1
    assert fields(box) == before | {"deleting": "1"}
    box.redis.delete(box.handle.key)
    assert box.run(change(box, lease_ms="60000")).state == -1
    assert not box.redis.exists(box.handle.key)


def test_settings_of_another_revision_are_left_alone(box):
    box.run(change(box, lease_ms="60000"))
    before = fields(box)

    for revision in (0, 2):
        changed = scripts.topic_set(box.handle, box.created, {"lease_ms": "7000"}, revision)
        assert box.run(changed).state == -2
        assert fields(box) == before

    changed = scripts.topic_set(box.handle, box.created, {"lease_ms": "7000"}, 1)
    assert box.run(changed).state == 1
    assert fields(box) == before | {"lease_ms": "7000", "revision": "2"}
    assert box.run(changed).state == 0  # the second run of a call whose reply was lost


def test_slot_of_the_topic_is_not_touched(box):
    box.one()
    before = box.state()

    box.run(change(box, **Settings(max_length=5).to_redis()))

    assert box.state() == before
