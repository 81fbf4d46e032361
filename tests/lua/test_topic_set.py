"""topic_set.lua on a real server."""

from __future__ import annotations

from rmq.features.topic_admin import scripts
from rmq.kernel.core.settings import Settings


def change(box, created=None, **values):
    return scripts.topic_set(box.handle, created or box.created, values)


def test_settings_are_changed_and_the_revision_grows(box):
    before = box.topic_fields()

    reply = box.run(change(box, lease_ms="60000", on_expire="drop"))

    assert box.topic_fields() == before | {
        "lease_ms": "60000",
        "on_expire": "drop",
        "revision": "1",
    }
    assert (reply.state, reply.kept) == (1, box.topic_fields())


def test_run_twice_the_second_run_changes_nothing(box):
    first = box.run(change(box, lease_ms="60000"))

    second = box.run(change(box, lease_ms="60000"))

    assert (first.state, second.state) == (1, 0)
    assert second.kept == first.kept == box.topic_fields()


def test_settings_of_another_revision_are_left_alone(box):
    box.run(change(box, lease_ms="60000"))
    before = box.topic_fields()

    for revision in (0, 2):
        changed = scripts.topic_set(box.handle, box.created, {"lease_ms": "7000"}, revision)
        assert box.run(changed).state == -2
        assert box.topic_fields() == before

    changed = scripts.topic_set(box.handle, box.created, {"lease_ms": "7000"}, 1)
    assert box.run(changed).state == 1
    assert box.topic_fields() == before | {"lease_ms": "7000", "revision": "2"}
    assert box.run(changed).state == 0  # the second run of a call whose reply was lost


def test_slot_of_the_topic_is_not_touched(box):
    box.one()
    before = box.state()

    box.run(change(box, **Settings(max_length=5).to_redis()))

    assert box.state() == before
