"""ack.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.ids import member_of
from tests.lua.box import GONE


def test_ack_removes_lease_and_record_and_nothing_else(box):
    id = box.one()
    lease = box.take_one()
    before = box.state()
    session = box.session()

    assert box.run(box.ack_command([lease], session)) == "1"

    assert box.changed(before, replay=True) == {
        ("slot", "settled"): "1",
        ("prepare", id): GONE,
        ("records", id): GONE,
        (f"replay:{session.name[1:].decode()}",): b"1:1",
    }


def test_an_ack_of_a_batch_keeps_one_letter_and_answers_again_with_all(box):
    box.send(20)
    leases = box.take(20)
    before = box.state()
    session = box.session()

    assert box.twice(lambda: box.ack_command(leases, session)) == "1" * 20

    assert box.changed(before, replay=True)[(f"replay:{session.name[1:].decode()}",)] == b"1:1"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (3, 4, 5, 0, 1, 2), (5, 0, 3, 2, 4, 1)])
def test_an_ack_of_all_receipts_of_a_range_removes_them_and_no_others(box, order, known):
    box.send(9)
    before_them = box.take(1)
    taken = box.take(3) + box.take(3)
    box.take(2)
    box.redis.config_resetstat()

    assert box.ack(*[taken[n] for n in order], known=known) == "1" * 6

    assert box.redis.info("commandstats").keys() & {"cmdstat_zrem"} == set()
    assert len(box.order("prepare")) == 3
    assert before_them[0].id in box.order("prepare")


@pytest.mark.parametrize("acked", [(0, 1, 3, 4), (4, 1, 0), (0, 2)])
def test_an_ack_of_some_receipts_of_a_range_leaves_the_others(box, acked):
    box.send(5)
    taken = box.take(5)

    assert box.ack(*[taken[n] for n in acked]) == "1" * len(acked)

    assert box.order("prepare") == [taken[n].id for n in range(5) if n not in acked]


def test_an_ack_of_a_part_keeps_and_repeats_a_letter_for_each(box):
    box.send(3)
    leases = box.take(3)
    box.ack(leases[1])
    session = box.session()

    assert box.twice(lambda: box.ack_command(leases, session)) == "101"


def test_ack_remembers_an_id_that_its_sender_keeps(box):
    id = box.one(kept=True)
    lease = box.take_one()
    before = box.state()
    session = box.session()

    assert box.run(box.ack_command([lease], session)) == "1"

    assert box.changed(before, replay=True) == {
        ("slot", "settled"): "1",
        ("slot", "settled_turn"): str(box.clock.now_ms // 60_000),
        ("prepare", id): GONE,
        ("records", id): GONE,
        (box.settled_set(), id): True,
        (f"replay:{session.name[1:].decode()}",): b"1:1",
    }


def test_ack_of_a_message_that_had_failed_clears_its_failure(box):
    box.one()
    box.nack(box.take_one())

    assert box.ack(box.take_one()) == "1"
    assert "failures" not in box.state()


def test_ack_with_a_stale_receipt_does_not_touch_the_successors_lease(box):
    box.one()
    stale = box.take_one(lease_ms=1000)
    box.clock.advance(1)
    box.rollback()
    successor = box.take_one(lease_ms=1000)
    before = box.state()

    assert box.ack(stale) == "0"
    assert box.state() == before
    assert box.ack(successor) == "1"


def test_message_released_and_taken_in_the_same_second_has_another_receipt(box):
    box.one()
    first = box.take_one()
    box.release(first)
    second = box.take_one()
    assert (first.id, first.left) == (second.id, second.left)
    before = box.state()

    assert box.ack(first) == "0"
    assert box.state() == before
    assert box.ack(second) == "1"


@pytest.mark.parametrize("receipt", ["nan", "inf", "-inf", "", "0", "x", "1e999", "0x10", "-1"])
def test_forged_receipt_changes_nothing(box, receipt):
    box.one()
    lease = box.take_one()
    made = box.ack_command([lease], box.session())
    made.args[made.args.index(repr(lease.receipt))] = receipt
    before = box.state()

    assert box.run(made) == "0"
    assert box.state() == before


@pytest.mark.parametrize("off", [1000, -1000, 1, -1, 1 / 2048, -1 / 2048, 1 / 4096])
def test_receipt_that_is_off_by_the_smallest_step_changes_nothing(box, off):
    box.one()
    lease = box.take_one()
    before = box.state()

    assert box.ack(lease._replace(receipt=lease.receipt + off)) == "0"
    assert box.state() == before


def test_ack_of_a_message_that_waits_or_is_dead_changes_nothing(box):
    waiting = box.one(priority=17)
    box.one()
    dead = box.take_one()
    box.reject(dead)
    before = box.state()

    assert box.ack(dead, dead._replace(id=waiting, receipt=box.score(waiting))) == "00"
    assert box.state() == before


def test_only_the_held_ones_of_a_batch_are_settled(box):
    box.send(3, kept=True)
    a, b, c = box.take(3)
    box.ack(b)
    before = box.state()

    assert box.ack(a, b, c, a) == "1010"

    assert box.changed(before) == {
        ("slot", "settled"): "3",
        ("prepare", a.id): GONE,
        ("prepare", c.id): GONE,
        ("records", a.id): GONE,
        ("records", c.id): GONE,
        (box.settled_set(), a.id): True,
        (box.settled_set(), c.id): True,
    }


def test_settled_ids_take_turns_and_are_forgotten(make_box):
    box = make_box(dedup_window_ms=60_000)
    box.clock.advance(60 - box.clock.now_us / 1e6 % 60)  # the first moment of a turn
    first = box.settled_set()
    remembered = []
    for _ in range(4):
        id = box.one(kept=True)
        box.ack(box.take_one())
        remembered.append((box.settled_set(), id))
        box.clock.advance(60)

    (a, _), (b, _), (c, third), (d, fourth) = remembered
    assert (a, b, c, d) == (first, b, first, b)
    assert a != b
    state = box.state()
    assert state[c] == {third}
    assert state[d] == {fourth}


def test_after_a_long_pause_both_sets_are_forgotten(box):
    for _ in range(2):
        box.one(kept=True)
        box.ack(box.take_one())
        box.clock.advance(60)
    box.clock.advance(600)
    id = box.one(kept=True)
    box.ack(box.take_one())

    state = box.state()
    assert state[box.settled_set()] == {id}
    assert len([k for k in state if k.startswith("settled")]) == 1


def test_memory_of_settled_ids_is_bounded_by_two_windows(make_box):
    box = make_box(dedup_window_ms=1000)
    for _ in range(30):
        box.send(50, kept=True)
        box.ack(*box.take(50))
        box.clock.advance(0.5)

    state = box.state()
    assert sum(len(state.get(k, ())) for k in ("settled0", "settled1")) <= 200
    assert box.stats()["settled"] == 1500


@pytest.mark.fault("F21")
def test_clock_that_steps_back_forgets_nothing(box):
    ids = []
    for step in (70, -65, 0):
        ids.append(box.one(kept=True))
        box.ack(box.take_one())
        box.clock.advance(step)

    assert box.run(box.send_command(ids[1:])).codes == "dd"


def test_a_thousand_in_one_call(box):
    box.send(1000)
    leases = box.take(1000)

    assert box.ack(*leases) == "1" * 1000
    assert {k for k in box.state() if not k.startswith("replay")} == {"slot"}


@pytest.mark.parametrize(
    ("runs", "counts", "ids"),
    [
        (0, [], 0), (1, [0], 0), (1, [1], 0), (1, [1], 2), (1, [2], 1), (1, [1001], 1001),
        (2, [600, 600], 1200), (1001, [1] * 1001, 1001), (2, [1], 1), (1, ["nan"], 1),
        (1, ["0x1"], 1), (1, [-1], 1), (1, [1.5], 1), ("nan", [1], 1), ("inf", [1], 1),
    ],
)  # fmt: skip
def test_runs_that_do_not_fit_the_ids_are_refused(box, runs, counts, ids):
    box.one()
    lease = box.take_one()
    made = box.ack_command([lease], box.session())
    heads = [part for count in counts for part in (count, repr(lease.receipt), lease.delivery)]
    made.args[4:] = [runs, *heads, *[lease.id] * ids]
    before = box.state()

    with pytest.raises(Exception, match="RMQARG"):
        box.run(made)

    assert box.state() == before


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("delivered", [0, 2040, 2047])
def test_batch_is_settled_in_one_run_wherever_its_numbers_lie(box, known, delivered):
    box.redis.hset(box.keys.slot, "delivered", delivered)
    others = box.send(3)
    box.take(1)
    box.send(20)
    leases = box.take(20)
    rest = box.take(2)

    assert box.ack(*leases, known=known) == "1" * 20

    assert set(box.order("prepare")) == {others[0], *(lease.id for lease in rest)}
    assert box.counter("settled") == 20


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("how", ["ack", "release", "release and take", "nack and take"])
def test_run_settles_all_but_the_one_that_was_lost(box, known, lost, how):
    box.send(4)
    leases = box.take(4)
    if how == "ack":
        box.ack(leases[lost])
    elif how.startswith("nack"):
        box.nack(leases[lost])
    else:
        box.release(leases[lost])
    if how.endswith("take"):
        assert box.take_one().id == leases[lost].id
    before = box.state()

    letters = "".join("0" if i == lost else "1" for i in range(4))
    assert box.ack(*leases, known=known) == letters

    changed = box.changed(before)
    held = {lease.id for i, lease in enumerate(leases) if i != lost}
    assert {place[1] for place in changed if place[0] == "prepare"} == held
    assert {place[1] for place in changed if place[0] == "records"} == held
    assert box.twice(lambda: box.ack_command(leases, box.session(), known)) == "0000"


@pytest.mark.parametrize("known", [True, False])
def test_batch_released_and_taken_anew_in_the_same_second_is_not_the_old_ones(box, known):
    box.send(5)
    stale = box.take(5)
    box.release(*stale)
    fresh = box.take(5)
    assert [lease.id for lease in fresh] == [lease.id for lease in stale]
    before = box.state()

    assert box.ack(*stale, known=known) == "00000"
    assert box.state() == before
    assert box.ack(*fresh, known=known) == "11111"


@pytest.mark.parametrize("known", [True, False])
def test_ids_in_another_order_than_their_receipts_settle_nothing(box, known):
    box.send(3)
    a, b, c = box.take(3)
    before = box.state()
    crossed = a._replace(id=b.id), b._replace(id=a.id), c

    assert box.ack(*crossed, known=known) == "001"
    assert set(box.state()["prepare"]) == {a.id, b.id}
    assert set(before["prepare"]) == {a.id, b.id, c.id}


@pytest.mark.parametrize("known", [True, False])
def test_run_that_claims_more_than_it_holds_settles_what_it_holds(box, known):
    box.send(3)
    a, b, c = box.take(3)
    beyond = c._replace(id=box.ids()[0], receipt=c.receipt + 1 / 2048, delivery=c.delivery + 1)

    assert box.ack(a, b, c, beyond, known=known) == "1110"


def test_two_thousand_deliveries_later_a_run_is_looked_at_one_by_one(box):
    box.send(2)
    a, b = box.take(2)
    # b was leased again 2048 deliveries after a, in the same second: both now have the score of a
    box.redis.hset(box.keys.slot, "delivered", a.delivery + 2048)
    box.redis.zadd(box.keys.prepare, {member_of(b.id): a.receipt})

    assert box.ack(a, b) == "10"
    assert box.state()["prepare"] == {b.id: a.receipt}


@pytest.mark.parametrize("known", [True, False])
def test_several_runs_in_one_call(box, known):
    box.send(30)
    first = box.take(10, lease_ms=5000)
    second = box.take(10, lease_ms=9000)
    third = box.take(10, lease_ms=1000)

    assert box.ack(*third, *first[::2], *second, known=known) == "1" * 25
    assert set(box.order("prepare")) == {lease.id for lease in first[1::2]}


def test_ack_needs_no_record(box):
    id = box.one()
    lease = box.take_one()
    box.redis.hdel(box.keys.records, member_of(id))

    assert box.ack(lease) == "1"
