"""redrive.lua on a real server."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from rmq.features.dead_letters import scripts
from rmq.kernel.core import record as core_record
from rmq.kernel.core.ids import member_of
from tests.lua.box import GONE, ordered, stored, timed
from tests.lua.failures import item
from tests.lua.moving import bury


def redrive(box, *ids):
    return box.run(scripts.redrive(box.handle, box.keys, box.session(), ids))


def test_dead_letter_goes_to_the_end_of_its_priority_with_all_retries(box):
    (id,) = bury(box, priority=50)
    death = item("r", box.clock.now_ms)
    waiting = box.one(priority=50)
    before = box.state()

    assert redrive(box, id) == "1"

    assert box.changed(before) == {
        ("slot", "order"): "3",
        ("slot", "redriven"): "1",
        ("dead", id): GONE,
        ("failures", id): box.failure(17, 0, "d", b"why", carried=True, attempts=1, items=[death]),
        ("store", id): ordered(50, 3),
    }
    assert [(lease.id, lease.left) for lease in box.take(2)] == [(waiting, 16), (id, 16)]


def test_dead_letter_without_a_priority_is_due_now(box):
    (id,) = bury(box, due=10)

    redrive(box, id)

    assert box.score(id) == timed(box.clock.now_ms, False)
    assert box.take_one().id == id


def test_dead_letter_dies_again_only_after_all_its_deliveries(box):
    (id,) = bury(box)
    redrive(box, id)
    count = 0
    while lease := box.take():
        count += 1
        box.nack(lease[0])

    assert count == 17
    assert box.order("dead") == [id]


def test_expiry_that_has_passed_is_taken_off(box):
    plain, late = box.one(expires=100, priority=50), box.one(due=10, expires=100)
    box.clock.advance(1)
    box.take(2)
    assert set(box.order("dead")) == {plain, late}
    records = box.state()["records"]
    due = int.from_bytes(records[late][8:14], "big")

    assert redrive(box, plain, late) == "11"

    assert box.state()["records"] == {
        plain: stored(1, priority=50),
        late: stored(2, due=due),
    }
    assert set(box.drained()) == {plain, late}


def test_expiry_that_has_not_passed_stays(box):
    (id,) = bury(box, expires=10**8)
    before = box.state()["records"]

    redrive(box, id)

    assert box.state()["records"] == before


def test_only_dead_letters_move_and_each_once(box):
    (dead,) = bury(box)
    waiting = box.one()
    box.one()
    flying = box.take_one()
    before = box.state()

    asked = (waiting, flying.id, dead, dead, box.ids()[0])
    assert redrive(box, *asked) == "00100"

    assert {place[:1] for place in box.changed(before)} == {
        ("slot",), ("dead",), ("failures",), ("store",),
    }  # fmt: skip
    assert {place[1] for place in box.changed(before) if place[0] != "slot"} == {dead}


@pytest.mark.parametrize("kept", [None, b"", b"1234567"])
def test_unreadable_dead_letter_stays_where_it_is(box, kept):
    fine, broken = bury(box, 2)
    if kept is None:
        box.redis.hdel(box.keys.records, member_of(broken))
    else:
        box.redis.hset(box.keys.records, member_of(broken), kept)

    assert redrive(box, broken, fine) == "x1"
    assert box.order("dead") == [broken]


def test_record_cut_short_behind_its_head_does_not_stop_the_others(box):
    fine, broken = bury(box, 2, due=10, expires=5000)
    box.redis.hset(box.keys.records, member_of(broken), box.state()["records"][broken][:11])

    letters = redrive(box, broken, fine)

    assert letters[1] == "1"
    assert fine in box.order()


def test_answer_is_shorter_where_records_exceed_4_mib(make_box):
    box = make_box(max_body=2 * 1024 * 1024)
    ids = []
    for _ in range(4):
        ids += bury(box, body=b"b" * (2 * 1024 * 1024 - 100))

    assert redrive(box, *ids) == "11"
    assert redrive(box, *ids[2:]) == "11"


def test_redrive_wakes_who_waits(box):
    (id,) = bury(box)
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)

    redrive(box, id)

    assert box.counter("waiting") == 0


def test_a_thousand_in_one_call(box):
    ids = bury(box, 1000, expires=500_000)
    box.clock.advance(1000)

    assert redrive(box, *ids) == "1" * 1000
    assert [lease.id for lease in box.take(1000)] == ids


def test_only_those_that_died_until_then_are_sent_back(box):
    (early,) = bury(box)
    then = box.clock.now_ms
    (late,) = bury(box)
    before = box.state()

    reply = box.run(scripts.redrive(box.handle, box.keys, box.session(), [late, early], then))

    assert reply == "01"
    assert box.order("dead") == [late]
    assert ("failures", late) not in box.changed(before)


def edited(box, ids, record):
    session = box.session()
    return lambda: scripts.redrive(box.handle, box.keys, session, ids, edited=record)


def test_edited_letter_gets_its_record_with_the_old_number(box):
    (id,) = bury(box, priority=50)
    old = box.redis.hget(box.keys.records, member_of(id))
    head, rest = core_record.envelope(2, 50)
    before = box.state()

    assert box.twice(edited(box, [id], head + rest + b"a new body")) == "1"

    changed = box.changed(before)
    assert box.redis.hget(box.keys.records, member_of(id)) == head + old[4:8] + b"a new body"
    assert changed["dead", id] == GONE
    assert {key for key in changed if "replay" not in str(key)} == {
        ("slot", "order"), ("slot", "redriven"), ("dead", id), ("failures", id), ("store", id),
        ("records", id),
    }  # fmt: skip
    assert box.take_one().id == id


def test_edit_of_several_letters_or_of_none_changes_nothing(box):
    ids = bury(box, 2)
    before = box.state()

    with pytest.raises(ResponseError, match="ARG count"):
        box.run(edited(box, ids, b"12345")())
    assert box.run(edited(box, [b"\1" * 16], b"12345")()) == "0"
    assert box.changed(before) == {}
