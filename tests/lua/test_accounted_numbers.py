"""Scripts that remove a message for good account for its number; no other script does."""

from __future__ import annotations

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.consumer import scripts
from rmq.kernel.core import record
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.calls import CALLS
from tests.lua.furnished import furnish
from tests.lua.numbers import P, Q, begin, merged, numbered, open_of, told

REST = [(1, None)]


def test_ack_has_seen_them(box):
    begin(box)
    begin(box, Q)
    for number in (1, 2, 3, 5):
        numbered(box, number)
    numbered(box, 1, Q)
    box.one()
    leases = box.take(10)
    lost = leases[1]._replace(receipt=leases[1].receipt + 1000)
    session = box.session()

    assert box.twice(lambda: box.ack_command([leases[0], lost, *leases[2:]], session)) == "101111"

    assert open_of(box) == [(2, 2), (4, 4), (6, None)]
    assert open_of(box, Q) == [(2, None)]
    assert box.counter("seen") == 4


def test_ack_of_a_run_has_seen_them(box):
    begin(box)
    for number in range(1, 301):
        numbered(box, number)

    assert box.ack(*box.take(300)) == "1" * 300

    assert open_of(box) == [(301, None)]


@pytest.mark.parametrize("lost", [[], [1], [0, 4]])
@pytest.mark.parametrize("count", [1, 5])
def test_ack_believes_the_numbers_it_is_told(box, count, lost):
    begin(box)
    for number in range(1, count + 1):
        numbered(box, number)
    plain = box.one(priority=20)
    leases = box.take(10)
    lost = [place for place in lost if place < count]
    for place in lost:
        box.nack(leases[place])
    session = box.session()
    marks = [record.audit_number(one.record) for one in leases[:count]] + [b""]
    assert marks[0] == P.encode() + b".1"
    assert leases[-1].id == plain

    letters = box.twice(
        lambda: scripts.ack(
            box.handle, box.keys, session, [x.id for x in leases], [x.receipt for x in leases],
            [x.delivery for x in leases], marks,
        )
    )  # fmt: skip

    assert letters == "".join("0" if n in lost else "1" for n in range(count)) + "1"
    open_numbers = [n for first, last in open_of(box)[:-1] for n in range(first, (last or 0) + 1)]
    if count not in [n + 1 for n in lost]:
        assert open_numbers == [n + 1 for n in lost]
    assert box.counter("seen") == count - len(lost)


def test_ack_reads_no_record_where_it_is_told(box):
    begin(box)
    numbered(box, 1)
    lease = box.take_one()
    session = box.session()

    box.run(
        scripts.ack(
            box.handle, box.keys, session, [lease.id], [lease.receipt], [lease.delivery],
            [P.encode() + b".9"],
        )
    )  # fmt: skip

    assert open_of(box) == [(1, 8), (10, None)]


def test_marks_for_some_of_the_deliveries_are_refused(box):
    begin(box)
    numbered(box, 1)
    numbered(box, 2)
    leases = box.take(2)
    command = scripts.ack(
        box.handle, box.keys, box.session(), [x.id for x in leases], [x.receipt for x in leases],
        [x.delivery for x in leases], [b"0123456789.1"],
    )  # fmt: skip
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG count"):
        box.run(command)

    assert box.state() == before


def test_body_that_begins_with_a_digit_is_no_part_of_the_number(box):
    begin(box)
    numbered(box, 1, body=b"777")

    box.ack(box.take_one())

    assert open_of(box) == [(2, None)]


def test_cancel_accounts_for_it(box):
    begin(box)
    numbered(box, 1)
    id = numbered(box, 2)
    session = box.session()

    assert (
        box.twice(lambda: messages_scripts.cancel(box.handle, box.keys, session, id)) == "cancelled"
    )

    assert open_of(box) == [(1, 1), (3, None)]
    assert box.counter("accounted") == 1


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_purge_of_the_store_accounts_for_them(box, merging, by_id):
    begin(box)
    ids = [numbered(box, number, priority=200) for number in (1, 2, 3)]
    if merging:
        merged(box, 4)

    gone = box.run(
        topic_scripts.purge(box.handle, box.keys, box.session(), "store", ids=ids if by_id else ())
    )

    assert gone == 3 + (merging and not by_id)
    assert open_of(box) == [(4 + (merging and not by_id), None)]


def test_purge_of_the_dead_accounts_for_them_and_death_does_not(box):
    begin(box)
    numbered(box, 1)
    box.reject(box.take_one())
    assert open_of(box) == REST

    box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "dead"))

    assert open_of(box) == [(2, None)]


def test_expired_message_that_is_dropped_is_accounted_for(make_box):
    box = make_box(on_expire="drop")
    begin(box)
    numbered(box, 1, expires=500)
    numbered(box, 2)
    box.clock.advance(1)

    assert len(box.take(10)) == 1

    assert open_of(box) == [(2, None)]
    assert box.counter("accounted") == 1


def test_expired_message_that_dies_is_not_accounted_for(box):
    begin(box)
    numbered(box, 1, expires=500)
    box.clock.advance(1)

    assert box.take(10) == []

    assert open_of(box) == REST
    assert len(box.order("dead")) == 1


def test_drop_lowest_accounts_for_what_it_drops(make_box):
    box = make_box(max_length=3, overflow="drop_lowest")
    begin(box)
    for number in (1, 2, 3):
        numbered(box, number, priority=20 + number)

    numbered(box, 4, priority=900)
    box.one(priority=800)

    assert open_of(box) == [(3, None)]
    assert box.counter("accounted") == 2


@pytest.mark.parametrize("by", ["nack", "reject", "rollback", "prepare"])
def test_dead_letter_past_its_retention_is_accounted_for(make_box, by):
    box = make_box(max_retries=0, dead_retention_ms=1000)
    begin(box)
    numbered(box, 1)
    box.reject(box.take_one())
    box.clock.advance(5)
    if by == "prepare":
        box.one(due=1, expires=1)
        box.clock.advance(1)
        assert box.take(1) == []
    else:
        box.one()
        lease = box.take_one(lease_ms=1000)
        if by == "rollback":
            box.clock.advance(3)
            assert box.rollback().dead == 1
        else:
            assert (box.nack if by == "nack" else box.reject)(lease) == "d"

    assert open_of(box) == [(2, None)]
    assert box.counter("accounted") == 1


def test_what_keeps_a_message_keeps_its_number_open(box):
    begin(box)
    numbered(box, 1)
    box.nack(box.take_one())
    box.release(box.take_one())
    box.take_one(lease_ms=1000)
    box.clock.advance(3)
    box.rollback()
    lease = box.take_one()
    box.reject(lease)
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [lease.id]))
    box.run(messages_scripts.set_priority(box.keys, box.session(), lease.id, 50))
    box.run(messages_scripts.reschedule(box.handle, box.keys, box.session(), lease.id, 1000))
    merged(box, 2)
    merged(box, 3)

    assert open_of(box) == REST


def test_window_keeps_the_number_it_opened_with(box):
    begin(box)
    merged(box, 1)
    for number, mode in ((2, "last"), (3, "collect")):
        box.merge(mode=mode, body=b"%d" % number)
    told(box, 3, [(2, 3)])
    box.clock.advance(1)

    box.ack(box.take_one())

    assert open_of(box) == [(4, None)]


def test_numbers_of_one_that_never_began_change_nothing(box):
    begin(box)
    numbered(box, 1, Q)
    before = box.state()["audit"]

    box.ack(box.take_one())

    assert box.state()["audit"] == before


def test_slot_that_nobody_audits_gets_no_key(box):
    numbered(box, 1)

    box.ack(box.take_one())

    assert "audit" not in box.state()
    assert "seen" not in box.state()["slot"]


@pytest.mark.parametrize("script", ["ack", "cancel", "purge"])
def test_numbers_are_accounted_for_at_maxmemory(tight, script):
    box = tight
    begin(box)
    for number in range(1, 6):
        numbered(box, number)
    ids = box.order()
    leases = box.take(3) if script == "ack" else []
    box.redis.config_set("maxmemory-policy", "noeviction")
    box.redis.config_set("maxmemory", 1)
    try:
        if script == "ack":
            box.ack(leases[0], leases[2])
        elif script == "cancel":
            assert (
                box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), ids[0]))
                == "cancelled"
            )
        else:
            box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "store"))
        assert told(box, 5) == 0
    finally:
        box.redis.config_set("maxmemory", 0)

    assert open_of(box)[0] != (1, 5)


@pytest.mark.parametrize("script", sorted(CALLS))
def test_audited_slot_answers_as_any_other(make_box, script):
    """The furnished slot is audited: its calls go through everything that is for such slots."""
    box = make_box()
    command = CALLS[script](furnish(box))
    try:
        box.run(command)
    except redis.ResponseError as error:  # pragma: no cover - it shows which
        pytest.fail(str(error))
