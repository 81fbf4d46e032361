"""Taking from and giving back to a slot in order, on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.consumer import scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.retry import Exponential
from tests.lua.box import GONE, handed_back, ordered, stored


@pytest.fixture
def slow(make_box):
    """A slot whose retries wait: 4 s, 8 s, ..."""
    return make_box(retry=Exponential(base=4, cap=100, jitter=0))


def take(box, limit=10, lease_ms=30_000):
    return box.take(limit, lease_ms, ordered=True)


def bodies(box, limit=10):
    return [lease.record[8:] for lease in take(box, limit)]


# --- taking ------------------------------------------------------------------------------------


def test_take_in_order_marks_the_slot_and_nothing_else_than_a_plain_one(box):
    given = box.send(3)
    before = box.state()
    session = box.session()

    batch = box.prepare(2, session=session, ordered=True)

    deadline = box.clock.now_ms // 1000 + 30
    assert batch == scripts.Batch(
        30_000_000, False, deadline, 1, 3, b"", given[:2],
        [stored(n, priority=100) for n in (1, 2)],
    )  # fmt: skip
    assert box.changed(before, replay=True) == {
        ("slot", "delivered"): "2",
        ("slot", "takes"): "1",
        ("slot", "ordered"): "1",
        ("slot", "front"): "0",
        ("store", given[0]): GONE,
        ("store", given[1]): GONE,
        ("prepare", given[0]): deadline * 1000 + 16 + 1 / 2048,
        ("prepare", given[1]): deadline * 1000 + 16 + 2 / 2048,
        (f"replay:{session.name[1:].decode()}",): b"1:%d:1=" % deadline
        + member_of(given[0])
        + b"\0\2",
    }


def test_take_in_order_sent_again_hands_over_the_same_batch(box):
    given = box.send(3)
    session = box.session()
    first = box.prepare(2, session=session, ordered=True)
    before = box.state()

    again = box.prepare(2, session=session, ordered=True)

    assert again.ids == first.ids == given[:2]
    assert box.state() == before


@pytest.mark.parametrize("is_ordered", [True, False])
def test_nothing_is_taken_while_anything_is_in_flight(box, is_ordered):
    box.send(3)
    first, second = take(box, 2, 9000)
    assert box.ack(second) == "1"
    before = box.state()

    for _ in range(2):
        batch = box.prepare(1, ordered=is_ordered)
        assert (batch.ids, batch.expired, batch.wait_us) == ([], False, 9_000_000)
        assert box.state() == before

    assert box.ack(first) == "1"
    assert len(box.take(1, ordered=is_ordered)) == 1


def test_lapsed_batch_goes_back_before_the_next_one(box):
    given = box.send(3)
    take(box, 2, 1000)
    box.clock.advance(1)

    batch = box.prepare(2, ordered=True)
    assert (batch.ids, batch.expired, batch.wait_us) == ([], True, 0)
    assert box.rollback() == scripts.RollbackReply(2, 0, False)

    assert [lease.id for lease in take(box)] == given[:1]


def test_plain_take_of_a_free_slot_ends_the_order(box):
    given = box.send(3)
    box.release(*take(box, 2))
    assert box.state()["slot"]["span"] == "2"
    before = box.state()

    lease = box.take_one()

    assert lease.id == given[0]
    changed = {place: v for place, v in box.changed(before).items() if place[0] == "slot"}
    assert changed == {
        ("slot", "delivered"): "3",
        ("slot", "takes"): "2",
        ("slot", "front"): "-2",
        ("slot", "ordered"): GONE,
        ("slot", "span"): GONE,
    }
    assert [one.id for one in box.take(2)] == given[1:]


def test_take_in_order_waits_for_plain_deliveries_and_has_them_come_back_in_order(box):
    given = box.send(4)
    leases = box.take(3)
    before = box.state()

    assert take(box) == []

    assert box.changed(before) == {("slot", "ordered"): "1", ("slot", "mixed"): "1"}
    box.ack(leases[0])
    box.nack(leases[2])
    assert box.take() == []
    box.release(leases[1])
    assert [lease.id for lease in take(box, 1)] == given[1:2]


def test_a_failed_one_is_taken_alone(box):
    box.send(3, body=b"a")
    box.nack(*take(box, 1))

    assert bodies(box, 10) == [b"a"]
    (only,) = box.order("prepare")
    assert box.state()["failures"][only] == box.failure(16, 1, "f", b"why")


def test_dead_letters_do_not_make_takes_small(box):
    box.send(5)
    box.reject(*take(box, 2))

    assert len(take(box)) == 3


def test_what_failed_before_the_order_goes_first(box):
    box.send(2, body=b"failed")
    box.nack(*box.take(2))
    box.send(2, body=b"new", priority=900)
    box.redis.hset(box.keys.slot, "takes", 0)

    seen = []
    while got := take(box):
        seen += [lease.record[8:] for lease in got]
        box.ack(*got)

    assert seen == [b"failed", b"failed", b"new", b"new"]


def test_one_take_in_five_does_not_break_the_order(box):
    given = box.send(12)
    seen = []
    for turn in range(40):
        got = take(box, 1)
        if turn % 3 == 2:
            seen += [lease.id for lease in got]
            box.ack(*got)
        else:
            box.nack(*got)
        if len(seen) == len(given):
            break

    assert seen == given


def test_order_of_due_priority_and_arrival_is_that_of_plain_takes(box):
    low, high = box.one(priority=17), box.one(priority=1_048_575)
    later, sooner = box.one(due=200), box.one(due=100)
    joins = box.one(due=100, priority=17)
    box.clock.advance(1)

    assert [lease.id for lease in take(box)] == [sooner, later, high, low, joins]


def test_expired_ones_are_buried_and_the_next_ones_taken(box):
    box.send(2, expires=500)
    live = box.one()
    box.clock.advance(1)

    assert [lease.id for lease in take(box)] == [live]
    assert len(box.order("dead")) == 2


# --- giving back -------------------------------------------------------------------------------


def test_nack_puts_a_failed_one_at_the_front_and_holds_the_slot(slow):
    given = slow.send(3, priority=50)
    (lease,) = take(slow, 1)
    before = slow.state()
    session = slow.session()

    assert slow.twice(lambda: slow.nack_command([lease], session)) == "r"
    slow.clock.advance(-0.25)

    hold = slow.clock.now_ms + 4000
    assert slow.changed(before) == {
        ("slot", "ordered"): str(hold),
        ("slot", "holder"): given[0],
        ("slot", "span"): "1",
        ("prepare", given[0]): GONE,
        ("store", given[0]): ordered(50, 0),
        ("failures", given[0]): slow.failure(16, 1, "f", b"why"),
    }


def test_nothing_is_taken_before_the_hold_and_what_is_left_is_remembered(slow):
    given = slow.send(3)
    slow.nack(*take(slow, 1))
    before = slow.state()

    for early_ms in (4000, 1):
        slow.clock.advance((4000 - early_ms) / 1000)
        for is_ordered in (True, False):
            batch = slow.prepare(3, ordered=is_ordered)
            assert (batch.ids, batch.wait_us) == ([], early_ms * 1000)
        assert slow.run(scripts.next_ready([slow.keys], False)) == [early_ms * 1000]
        assert slow.state() == before
        slow.clock.advance(-(4000 - early_ms) / 1000)

    slow.clock.advance(4)
    (lease,) = take(slow)
    assert (lease.id, lease.left) == (given[0], 15)
    assert slow.state()["slot"]["ordered"] == "1"
    assert "holder" not in slow.state()["slot"]


def test_retry_at_once_holds_nothing(box):
    given = box.send(2)
    box.nack(*take(box, 1))

    assert box.state()["slot"]["ordered"] == "1"
    assert "holder" not in box.state()["slot"]
    assert [lease.id for lease in take(box)] == given[:1]


def test_delay_of_a_nack_overrides_the_policy(slow):
    given = slow.send(2)
    slow.nack(*take(slow, 1), wait_ms=0)
    slow.nack(*take(slow, 1), wait_ms=77)

    assert slow.state()["slot"]["ordered"] == str(slow.clock.now_ms + 77)
    slow.clock.advance(0.077)
    assert [lease.id for lease in take(slow)] == given[:1]


@pytest.mark.parametrize("verb", ["nack", "release", "rollback"])
@pytest.mark.parametrize("chunks", [[5], [3, 2], [1, 1, 1, 1, 1]])
@pytest.mark.parametrize("delivered", [0, 2045])
def test_batch_comes_back_in_its_order_whichever_part_comes_first(box, verb, chunks, delivered):
    box.redis.hset(box.keys.slot, "delivered", delivered)
    given = box.send(7, priority=1_048_575)
    leases = take(box, 5, 1000)
    if verb == "rollback":
        box.clock.advance(1)
        assert sum(box.rollback(size).retried for size in chunks) == 5
    else:
        parts, at = [], 0
        for size in chunks:
            parts.append(leases[at : at + size])
            at += size
        for part in (parts[1:] + parts[:1]) if delivered else parts:
            getattr(box, verb)(*part)

    assert box.order()[::-1] == given


def test_one_that_failed_stands_before_those_released_after_it(box):
    """As `with delivery:` in a loop: the failed one goes back first, then the rest."""
    given = box.send(6)
    leases = take(box, 5)
    box.ack(leases[0])
    box.nack(leases[1])
    box.release(*leases[2:])

    assert box.order()[::-1] == given[1:]
    assert [lease.id for lease in take(box)] == given[1:2]


def test_places_of_one_batch_do_not_touch_those_of_the_batch_before(box):
    given = box.send(9)
    box.release(*take(box, 6))
    for _ in range(4):
        first = take(box, 3)
        assert [lease.id for lease in first] == given[:3]
        box.release(*first[1:])
        box.release(first[0])
        assert box.order()[::-1] == given

    late = box.one()
    assert box.order()[::-1] == [*given, late]


def test_timed_one_without_a_priority_stays_in_front_of_all_that_is_due(box):
    first, second = box.send(2, due=1000)
    box.clock.advance(3)
    leases = take(box)
    assert [lease.id for lease in leases] == [first, second]

    box.nack(leases[0])
    box.release(leases[1])

    assert box.score(first) == handed_back(-1)
    assert box.score(second) == handed_back(0)
    (lease,) = take(box)
    assert (lease.id, lease.left) == (first, 15)


def test_timed_one_with_a_priority_goes_to_the_front_of_it(box):
    id = box.one(due=100, priority=50)
    box.clock.advance(1)
    (lease,) = take(box)
    other = box.one(priority=50)

    box.nack(lease)

    assert box.score(id) == ordered(50, 0)
    assert box.order()[::-1] == [id, other]


def test_that_a_merged_message_was_timed_is_read_from_its_record(box):
    id, _ = box.merge(range_ms=500, expires=60_000)
    box.clock.advance(1)

    box.nack(*take(box))

    assert box.score(id) == handed_back(0)


def test_seventeen_deliveries_are_the_end_and_the_next_one_goes_on(slow):
    given = slow.send(3)
    lefts = []
    while (lease := take(slow)) and lease[0].id == given[0]:
        lefts.append(lease[0].left)
        assert len(lease) == (3 if len(lefts) == 1 else 1)
        if lease[1:]:
            slow.release(*lease[1:])
        slow.nack(lease[0])
        slow.clock.advance(100)

    assert lefts == list(range(16, -1, -1))
    assert slow.order("dead") == given[:1]
    assert [one.id for one in lease] == given[1:]


def test_a_killer_burns_no_retries_of_those_behind_it_but_the_first_time(slow):
    given = slow.send(3)
    entries = []
    for _ in range(17):
        assert take(slow, 3, 1000)[0].id == given[0]
        slow.clock.advance(2)
        slow.rollback()
        entries.append(slow.failure(16, 1, "l"))
        slow.clock.advance(100)

    assert slow.order("dead") == given[:1]
    assert slow.state()["failures"][given[1]] == entries[0]
    assert [(x.id, x.left) for x in take(slow)] == [(given[1], 15)]


def test_snooze_keeps_the_place_and_the_retries_and_holds_the_slot(box):
    given = box.send(3)
    (lease,) = take(box, 1)
    before = box.state()
    session = box.session()

    assert box.twice(lambda: box.release_command([lease], session, 7000)) == "1"
    box.clock.advance(-0.25)

    assert box.changed(before) == {
        ("slot", "ordered"): str(box.clock.now_ms + 7000),
        ("slot", "holder"): given[0],
        ("slot", "span"): "1",
        ("prepare", given[0]): GONE,
        ("store", given[0]): ordered(100, 0),
    }
    assert take(box) == []
    box.clock.advance(7)
    assert [x[::3] for x in take(box)] == [(id, 16) for id in given]


def test_release_at_once_does_not_shorten_a_hold_nor_a_shorter_wait(box):
    box.send(3)
    leases = take(box)
    box.nack(leases[0], wait_ms=5000)
    box.release(leases[1])
    box.release(leases[2], wait_ms=1000)

    assert box.state()["slot"]["ordered"] == str(box.clock.now_ms + 5000)
    assert box.state()["slot"]["holder"] == leases[0].id


def test_rollback_of_a_slot_in_order(slow):
    given = slow.send(3)
    take(slow, 2, 1000)
    slow.clock.advance(1)
    before = slow.state()

    assert slow.rollback() == scripts.RollbackReply(2, 0, False)

    hold = str(slow.clock.now_ms + 4000)
    assert slow.changed(before) == {
        ("slot", "ordered"): hold,
        ("slot", "holder"): given[0],
        ("slot", "span"): "2",
        ("slot", "rolled_back"): "2",
        ("prepare", given[0]): GONE,
        ("prepare", given[1]): GONE,
        ("store", given[0]): ordered(100, -1),
        ("store", given[1]): ordered(100, 0),
        ("failures", given[0]): slow.failure(16, 1, "l"),
        ("failures", given[1]): slow.failure(16, 1, "l"),
    }
    after = slow.state()
    assert slow.rollback() == scripts.RollbackReply(0, 0, False)
    assert slow.state() == after


def test_message_without_a_record_is_still_taken_back(slow):
    (id,) = slow.send(1)
    take(slow, 1, 1000)
    slow.redis.hdel(slow.keys.records, member_of(id))
    slow.clock.advance(1)

    assert slow.rollback() == scripts.RollbackReply(1, 0, False)
    assert slow.order() == [id]


@pytest.mark.parametrize("verb", ["nack", "release", "rollback"])
def test_a_thousand_come_back_in_order(box, verb):
    given = box.send(1000, priority=1_048_575)
    leases = take(box, 1000, 1000)
    box.clock.advance(1)
    if verb == "rollback":
        while box.rollback(300).more:
            pass
    else:
        getattr(box, verb)(*leases)

    assert box.order()[::-1] == given


@pytest.mark.parametrize("way", ["release", "nack", "rollback"])
def test_thousands_from_before_the_slot_was_in_order_come_back_in_their_order(box, way):
    given = [id for _ in range(4) for id in box.send(1000)]
    held = [box.take(1000, lease_ms=1000) for _ in range(4)]
    assert take(box) == []
    late = box.one()
    assert box.redis.hmget(box.keys.slot, "ordered", "mixed") == [b"1", b"1"]

    if way == "rollback":
        box.clock.advance(3)
        while box.rollback(1000).more:
            pass
    else:
        for batch in (held[2], held[0], held[3], held[1]):
            getattr(box, way)(*batch)

    assert box.order()[::-1] == [*given, late]
    first = take(box, 2)
    assert [lease.id for lease in first] == given[: len(first)]
    assert box.redis.hget(box.keys.slot, "mixed") is None
    box.release(*first)
    assert box.order()[::-1] == [*given, late]
