"""slot.lua on a real server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rmq.kernel.topic import scripts
from rmq.kernel.transport.flow.steps import Command
from tests.lua.box import Box


def command(box: Box, stamp: bytes, revision: int = 0, **new: Any) -> Command[int]:
    settings = dataclasses.replace(box.settings, **new)
    return scripts.slot(box.handle, box.keys, stamp, settings.for_slot(), revision)


def note(box: Box) -> Any:
    """Remove the long value that keeps the hash a table; how Redis keeps it."""
    kept = box.redis.object("encoding", box.keys.slot)
    assert len(box.redis.hget(box.keys.slot, "note")) > 64  # hash-max-listpack-value
    box.redis.hdel(box.keys.slot, "note")
    return kept


def test_slot_gets_the_stamp_and_the_settings_that_scripts_read(box):
    box.redis.delete(box.keys.slot)

    assert box.run(command(box, b"17")) == 1

    assert note(box) == b"hashtable"
    assert box.state() == {"slot": {"created": "17", "no_expiry": "1"} | box.settings.for_slot()}


def test_run_again_it_leaves_settings_and_counters_alone(box):
    box.one()
    before = box.state()

    assert box.twice(lambda: command(box, box.created)) == 0
    assert box.state() == before


def test_slot_of_another_topic_is_left_alone(box):
    before = box.state()

    for stamp in (b"17", b"another stamp"):
        assert box.twice(lambda stamp=stamp: command(box, stamp)) == -1
    assert box.state() == before


def test_newer_revision_changes_settings_and_nothing_else(box):
    box.one()
    box.ack(box.take_one())
    before = box.state()

    assert box.run(command(box, box.created, 1, max_length=10, overflow="block")) == 1

    assert box.changed(before) == {
        ("slot", "capacity"): "10", ("slot", "overflow"): "block", ("slot", "revision"): "1",
    }  # fmt: skip
    after = box.state()
    assert box.run(command(box, box.created, 1, max_length=20)) == 0, "it has this revision"
    assert box.run(command(box, box.created, 0)) == 0, "and an older one comes late"
    assert box.state() == after


def test_slot_whose_max_retries_was_changed_marks_it_and_says_the_retries_of_each_take(box):
    box.send(2)
    assert box.prepare().retries_left == b""

    assert box.run(command(box, box.created, 1, max_retries=5)) == 1
    assert box.run(command(box, box.created, 2, max_retries=5, max_length=9)) == 1

    assert box.state()["slot"]["max_retries"] == "+5"
    assert box.prepare().retries_left == bytes([5])


def test_slot_with_messages_keeps_the_smaller_chunk(make_box):
    box = make_box(max_body=1024 * 1024)
    large = box.settings.for_slot()["chunk"]
    box.one(body=b"x" * 1024 * 1024)

    box.run(command(box, box.created, 1, max_body=1024))

    assert box.state()["slot"]["chunk"] == large == "4"
    box.ack(box.take_one())
    box.run(command(box, box.created, 2, max_body=1024))
    assert box.state()["slot"]["chunk"] == "1000"


@pytest.mark.parametrize("window_s", [1, 7, 59, 61, 100, 86_400])
def test_ids_are_remembered_over_a_change_of_the_dedup_window(box, window_s):
    settled = []
    for _ in range(3):
        settled.append(box.one(kept=True))
        box.ack(box.take_one())
        box.clock.advance(1)

    assert box.run(command(box, box.created, 1, dedup_window_ms=window_s * 1000)) == 1

    assert box.run(box.send_command(settled)).codes == "ddd"
    settled.append(box.one(kept=True))
    box.ack(box.take_one())
    assert box.run(box.send_command(settled[-1:])).codes == "d"
    for _ in range(4):  # and are forgotten in the end
        box.clock.advance(max(window_s, 60))
        box.one()
        box.ack(box.take_one())
    assert box.run(box.send_command(settled)).codes == ""


@pytest.mark.parametrize("window_s", [59, 61, 3600, 86_400, 172_801])
def test_changed_dedup_window_remembers_nothing_that_was_forgotten(box, window_s):
    settled = [box.one(kept=True) for _ in range(2)]
    box.ack(*box.take(2))
    box.clock.advance(172_800)
    assert box.state()["settled0" if "settled0" in box.state() else "settled1"]

    assert box.run(command(box, box.created, 1, dedup_window_ms=window_s * 1000)) == 1

    assert not {"settled0", "settled1"} & set(box.state())
    assert box.run(box.send_command(settled)).codes == ""


def test_changed_dedup_window_keeps_the_newer_ids_alone_where_only_they_are_remembered(box):
    box.clock.advance(60 - box.clock.now_ms / 1000 % 60)  # a turn of the window begins
    old = box.one(kept=True)
    box.ack(box.take_one())
    box.clock.advance(60)
    young = box.one(kept=True)
    box.ack(box.take_one())
    box.clock.advance(60)

    assert box.run(command(box, box.created, 1, dedup_window_ms=3_600_000)) == 1

    assert box.run(box.send_command([young])).codes == "d"
    assert box.run(box.send_command([old])).codes == ""


def test_dedup_window_that_was_off_remembers_nothing_of_before(box):
    settled = box.one(kept=True)
    box.ack(box.take_one())
    box.run(command(box, box.created, 1, dedup_window_ms=0))

    assert box.run(command(box, box.created, 2, dedup_window_ms=86_400_000)) == 1

    assert not {"settled0", "settled1"} & set(box.state())
    assert box.run(box.send_command([settled])).codes == ""


def test_empty_slot_of_an_older_topic_is_begun_anew(box):
    box.one()
    box.ack(box.take_one())
    newer = b"%d" % (int(box.created) + 1)

    assert box.run(command(box, newer)) == 1

    assert note(box) == b"hashtable"
    begun = {"created": newer.decode(), "no_expiry": "1"}
    assert box.state()["slot"] == begun | box.settings.for_slot()


def test_slot_of_an_older_topic_with_a_message_is_left_alone(box):
    box.one()
    before = box.state()

    assert box.twice(lambda: command(box, b"%d" % (int(box.created) + 1))) == -1
    assert box.state() == before
