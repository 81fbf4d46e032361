"""group_pause.lua on a real server, and what a paused group does."""

from __future__ import annotations

import pytest
import redis

from rmq.features.groups import scripts
from rmq.kernel.core.groups import Groups
from rmq.kernel.core.retry import Exponential
from tests.lua.group import check, held_place, held_score, pause, resume, send_in, states


def test_the_waiting_head_is_held_again_before_the_others_and_the_pause_is_counted(make_box):
    box = make_box(groups=Groups())
    head, second = send_in(box, "g", 2)
    before = box.state()

    assert pause(box, "g") == 1

    changed = box.changed(before)
    entry = changed.pop(("slot", "/g"))
    lane, priority, place = held_place(box.score(second))
    before_it = held_score(lane, priority, place - 1)
    assert changed == {("store", head): before_it, ("slot", "groups_paused"): "1"}
    assert entry[0] % 8 == 3, "one at a time, paused"
    assert box.order() == [head, second]
    assert box.prepare(10).ids == []
    assert (states(box)["g"].out, states(box)["g"].held, states(box)["g"].paused) == (0, 2, True)


def test_second_pause_says_so_and_changes_nothing(make_box):
    box = make_box(groups=Groups())
    send_in(box, "g", 2)
    assert pause(box, "g") == 1
    before = box.state()

    assert pause(box, "g") == 0

    assert box.changed(before) == {}


def test_group_without_messages_is_paused_and_what_is_sent_then_is_held(make_box):
    box = make_box(groups=Groups())

    assert pause(box, "new") == 1
    send_in(box, "new", 2)

    assert box.prepare(10).ids == []
    assert states(box)["new"].held == 2


def test_message_in_flight_stays_and_its_ack_lets_nothing_out(make_box):
    box = make_box(groups=Groups())
    send_in(box, "g", 3)
    lease = box.take_one()

    assert pause(box, "g") == 1

    assert states(box)["g"].in_flight
    assert box.ack(lease) == "1"
    assert box.prepare(10).ids == []
    assert (states(box)["g"].out, states(box)["g"].held) == (0, 2)


def test_retry_that_is_due_is_held_before_the_others(make_box):
    box = make_box(groups=Groups(), retry=Exponential(1, 1, jitter=0))
    first, *_ = send_in(box, "g", 3)
    assert box.nack(box.take_one()) == "r"
    assert pause(box, "g") == 1
    assert states(box)["g"].retried is not None, "it waits for its time"
    box.clock.advance(5)

    assert box.prepare(10).ids == []

    assert box.order()[0] == first
    assert states(box)["g"].held == 3


@pytest.mark.parametrize("verb", ["nack", "release", "rollback"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_retry_or_release_at_once_is_held_before_the_others(make_box, verb, when):
    box = make_box(groups=Groups())
    first, second = send_in(box, "g", 2)
    lease = box.take_one(1000)

    def give_back() -> None:
        if verb == "rollback":
            box.clock.advance(3)
            box.rollback()
        else:
            getattr(box, verb)(lease)

    if when == "before":
        give_back()
    assert pause(box, "g") == 1
    if when == "after":
        give_back()

    check(box)
    assert box.prepare(10).ids == []
    assert box.order() == [first, second]
    assert resume(box, "g")
    (again,) = box.take(10)
    assert (again.id, again.left) == (first, lease.left - (verb != "release"))


def test_of_a_group_with_several_out_those_that_are_out_go_on(make_box):
    box = make_box(groups=Groups(order=False, concurrency=2))
    sent = send_in(box, "g", 5)

    assert pause(box, "g") == 1

    leases = box.take(10)
    assert [lease.id for lease in leases] == sent[:2]
    assert box.ack(*leases) == "11"
    assert box.prepare(10).ids == []
    assert states(box)["g"].held == 3


def test_slot_without_groups_says_so_and_stays(box):
    before = box.state()

    assert pause(box, "g") == -1

    assert box.changed(before) == {}


@pytest.mark.parametrize("group", ["", "n" * 201])
def test_name_that_no_group_has_is_refused(make_box, group):
    box = make_box(groups=Groups())
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG name"):
        pause(box, group)

    assert box.changed(before) == {}


def test_pause_is_possible_at_maxmemory(make_box, raw):
    box = make_box(groups=Groups())
    send_in(box, "g", 2)
    box.run(scripts.groups(box.keys))
    pause(box, "other")
    raw.config_set("maxmemory", "1")
    try:
        assert pause(box, "g") == 1
    finally:
        raw.config_set("maxmemory", "0")
