"""group_resume.lua on a real server: the end of a pause, and of what a dead letter holds."""

from __future__ import annotations

import pytest
import redis

from rmq.features.groups import scripts
from rmq.kernel.core.groups import Groups
from tests.lua.box import GONE
from tests.lua.group import pause, release, resume, send_in, states

SLEEPS_UNTIL = 9_999_999_999_999


def test_the_first_held_message_goes_out_and_a_sleeper_is_woken(make_box, raw):
    box = make_box(groups=Groups())
    first, second = send_in(box, "g", 2)
    pause(box, "g")
    box.redis.hset(box.keys.slot, "waiting", SLEEPS_UNTIL)
    ear = raw.pubsub()
    ear.subscribe(box.handle.channel)
    assert ear.get_message(timeout=5)["type"] == "subscribe"
    before = box.state()

    assert resume(box, "g")

    changed = box.changed(before)
    assert changed.pop(("slot", "/g"))[0] % 8 == 1
    assert 100 < changed.pop(("store", first)) < 100.5
    assert changed == {("slot", "waiting"): "0", ("slot", "groups_paused"): "0"}
    assert ear.get_message(timeout=5)["data"] == b"0"
    ear.close()
    assert [box.take_one().id, states(box)["g"].held] == [first, 1]
    assert box.order() == [second]


def test_second_resume_says_so_and_changes_nothing(make_box):
    box = make_box(groups=Groups())
    send_in(box, "g", 2)
    pause(box, "g")
    assert resume(box, "g")
    before = box.state()

    assert not resume(box, "g")
    assert not release(box, "g")
    assert not resume(box, "other")

    assert box.changed(before) == {}


def test_nothing_is_left_of_a_group_without_messages(make_box):
    box = make_box(groups=Groups())
    pause(box, "g")
    before = box.state()

    assert resume(box, "g")

    assert box.changed(before) == {("slot", "/g"): GONE, ("slot", "groups_paused"): "0"}


def test_as_many_go_out_as_may_be_out_at_a_time(make_box):
    box = make_box(groups=Groups(order=False, concurrency=3))
    pause(box, "g")
    sent = send_in(box, "g", 5)
    assert box.prepare(10).ids == []

    assert resume(box, "g")

    assert [lease.id for lease in box.take(10)] == sent[:3]
    assert (states(box)["g"].out, states(box)["g"].held) == (3, 2)


def test_group_that_a_dead_letter_holds_goes_on_when_it_is_released_alone(make_box):
    box = make_box(groups=Groups(on_dead="hold"))
    dead, second, _ = send_in(box, "g", 3)
    send_in(box, "other", 1)
    (lease, _) = sorted(box.take(2), key=lambda lease: lease.id)
    assert (lease.id, box.reject(lease)) == (dead, "d")
    assert box.counter("groups_held") == 1
    assert (states(box)["g"].is_held, states(box)["other"].is_held) == (True, False)
    assert not resume(box, "g"), "it is not paused"
    assert box.prepare(10).ids == []

    assert release(box, "g")

    assert box.counter("groups_held") == 0
    assert box.take_one().id == second
    assert box.order("dead") == [dead], "it stays"


def test_group_that_is_held_and_paused_needs_both(make_box):
    box = make_box(groups=Groups(on_dead="hold"))
    _, second = send_in(box, "g", 2)
    box.reject(box.take_one())
    pause(box, "g")

    assert release(box, "g")
    assert box.prepare(10).ids == []
    assert states(box)["g"].waits_for == "the group is paused"
    assert resume(box, "g")

    assert box.take_one().id == second


def test_counters_of_stopped_groups_are_those_of_the_entries(make_box):
    box = make_box(groups=Groups(on_dead="hold"))
    for name in "abc":
        send_in(box, name, 2)
    box.reject(*box.take(2))
    for name in "bcd":
        pause(box, name)
    resume(box, "d")

    found = box.stats()

    flags = states(box).values()
    counted = sum(state.paused for state in flags), sum(state.is_held for state in flags)
    assert counted == (found["groups_paused"], found["groups_held"]) == (2, 2)


def test_slot_without_groups_has_nothing_to_resume(box):
    before = box.state()

    assert not resume(box, "g")

    assert box.changed(before) == {}


def test_unknown_word_is_refused(make_box):
    box = make_box(groups=Groups())

    with pytest.raises(redis.ResponseError, match="RMQARG what"):
        box.run(scripts.group_resume(box.handle, box.keys, "g", "else"))


def test_a_group_that_was_paused_before_its_first_message_is_counted_in_its_share(make_box):
    box = make_box(groups=Groups())
    pause(box, "a")
    send_in(box, "a", 1, share_key="s")
    send_in(box, "b", 1, share_key="s")
    box.ack(box.take_one())
    assert "%s" in box.state()["slot"], "the share goes with its last group"

    assert resume(box, "a")

    assert states(box)["a"].share_key == "s"
    box.ack(box.take_one())
    assert not {field for field in box.state()["slot"] if str(field).startswith(("%", "/"))}
