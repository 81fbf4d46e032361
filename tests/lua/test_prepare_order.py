"""prepare.lua on a real server: which messages go first."""

from __future__ import annotations

import pytest

from rmq.kernel.consumer import scripts
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE, ordered, timed
from tests.lua.eventing import suspend


def command(box, session, limit=1, lease_ms=30_000, waits=False):
    return scripts.prepare(box.keys, session, limit, lease_ms, waits)


@pytest.mark.parametrize("early_ms", [1, 10, 4999])
def test_message_is_never_handed_over_before_its_time(box, early_ms):
    id = box.one(due=5000)
    box.clock.advance((5000 - early_ms) / 1000)

    batch = box.prepare()

    assert batch.ids == []
    assert batch.wait_us == early_ms * 1000
    box.clock.advance(early_ms / 1000)
    assert box.take_one().id == id


@pytest.mark.parametrize("waits", [False, True])  # who waits has looked for a single message
def test_due_messages_go_earliest_first_then_priority_then_retries(box, waits):
    retry = box.one(priority=1000)
    box.nack(box.take_one())
    low, high = box.one(priority=17), box.one(priority=1_048_575)
    later, sooner = box.one(due=200), box.one(due=100)
    box.clock.advance(1)

    assert box.prepare(10, waits=waits).ids == [sooner, later, high, low, retry]


def test_retries_go_by_how_many_they_have_left(box):
    ids = [box.one() for _ in range(3)]
    leases = {lease.id: lease for lease in box.take(3)}
    for _ in range(2):
        box.nack(leases[ids[1]])
        leases |= {lease.id: lease for lease in box.take(3)}
    box.nack(leases[ids[0]], leases[ids[1]], leases[ids[2]])

    assert [box.score(id) // 1 for id in ids] == [16, 14, 16]
    assert [lease.id for lease in box.take(3)] == [ids[0], ids[2], ids[1]]


def test_one_take_in_five_looks_at_retries_first(box):
    retried = box.send(4)
    assert box.nack(*box.take(4)) == "rrrr"
    fresh = set(box.send(20))
    box.redis.hset(box.keys.slot, "takes", 0)

    taken = [box.take_one().id for _ in range(15)]

    assert [i for i, id in enumerate(taken, 1) if id in retried] == [5, 10, 15]
    assert [id for id in taken if id in retried] == retried[:3]
    assert sum(id in fresh for id in taken) == 12


def test_retries_first_also_goes_before_due_messages(box):
    retried = box.one()
    box.nack(box.take_one())
    box.send(2, due=100)
    box.redis.hset(box.keys.slot, "takes", 4)
    box.clock.advance(1)

    assert box.take_one().id == retried


def test_due_message_with_a_priority_joins_its_priority_as_the_newest(box):
    early = box.one(due=100, priority=50)
    late = box.one(due=200, priority=60)
    first, second = box.send(2, priority=50)
    box.clock.advance(1)
    before = box.state()

    lease = box.take_one()

    assert lease.id == late
    assert box.changed(before) == {
        ("slot", "order"): "4",
        ("slot", "delivered"): "1",
        ("slot", "takes"): "1",
        ("store", late): GONE,
        ("store", early): ordered(50, 3),
        ("prepare", late): lease.receipt,
    }
    assert box.drained() == [first, second, early]


def test_what_comes_after_a_message_that_joined_stands_behind_it(box):
    joined = box.one(due=100, priority=50)
    blocker = box.one(priority=60)
    box.clock.advance(1)
    assert box.take_one().id == blocker
    later = box.one(priority=50)

    assert box.drained() == [joined, later]


def test_delayed_retry_keeps_its_priority_and_its_retries(box):
    id = box.one(priority=50)
    box.nack(box.take_one(), wait_ms=1000)
    low, high = box.one(priority=40), box.one(priority=60)
    box.clock.advance(1)

    leases = box.take(3)

    assert [lease.id for lease in leases] == [high, id, low]
    assert [lease.left for lease in leases] == [16, 15, 16]


def test_delayed_retry_without_a_priority_counts_down(box):
    id = box.one(due=100)
    box.clock.advance(1)
    for left in (16, 15, 14):
        lease = box.take_one()
        assert (lease.id, lease.left) == (id, left)
        assert box.score(id, "prepare") == lease.receipt
        box.nack(lease, wait_ms=1000)
        box.clock.advance(1)


@pytest.mark.fault("F28")
def test_twenty_thousand_due_messages_drain(box):
    """Peer bug: too many results to unpack: the queue stops once its backlog is large."""
    given = set()
    for _ in range(20):
        given |= set(box.send(1000, due=1000))
    box.clock.advance(2)

    taken = [lease.id for _ in range(20) for lease in box.take(1000)]

    assert len(taken) == 20_000
    assert set(taken) == given
    assert box.order() == []


def test_twenty_thousand_due_messages_that_join_their_priority_drain_in_order(box):
    pages = [box.send(1000, due=1000 + i, priority=900) for i in range(20)]
    box.clock.advance(2)

    taken = []
    while (batch := box.prepare(1000)).ids or batch.wait_us == 0:
        taken += batch.ids

    assert taken == [id for page in pages for id in page]


def given_back(box):
    sent = box.send(600)
    box.release(*box.take(600), wait_ms=100)
    return sent


def waited(box):
    sent = box.send(600)
    suspend(box, *box.take(600), limit_ms=100)
    return sent


@pytest.mark.parametrize(
    "make_due",
    [lambda box: box.send(600, due=100, priority=900), given_back, waited],
    ids=["with a priority", "given back", "waited for an event"],
)
def test_a_take_reads_the_records_of_500_due_messages_and_the_others_are_next(box, make_due):
    first = make_due(box)
    low = box.send(10, priority=17)
    box.clock.advance(1)
    box.redis.config_resetstat()
    box.redis.hset(box.keys.slot, "takes", 0)

    batch = box.prepare(1000)

    assert batch.ids == first[:500]
    assert batch.wait_us == 0
    assert box.redis.info("commandstats")["cmdstat_hget"]["calls"] <= 510
    assert [lease.id for lease in box.take(1000)] == first[500:] + low


@pytest.mark.parametrize("limit", [1, 10])
def test_a_take_that_stops_before_due_messages_takes_no_more_than_its_limit(box, limit):
    sent = box.send(600, due=100, priority=900)
    box.clock.advance(1)

    assert box.prepare(limit).ids == sent[:limit]


def test_mixed_families_keep_their_scores_until_taken(box):
    due = box.clock.now_ms + 5000
    timed_id, plain = box.one(due=5000), box.one(priority=300)
    box.take_one()
    assert box.state()["store"] == {timed_id: timed(due, False)}
    assert box.order("prepare") == [plain]


def test_retries_with_few_deliveries_left_are_not_starved_by_fresh_failures(box):
    tired = box.send(3)
    for _ in range(12):
        leases = box.take(3)
        assert {lease.id for lease in leases} == set(tired)
        box.nack(*leases)
    seen = []

    for _ in range(60):  # every take finds a message that has just failed for the first time
        box.one()
        while (lease := box.take_one()).left == 16:
            box.nack(lease)
        box.ack(lease)
        seen.append(lease.id)

    assert [id for id in seen if id in tired] == tired


def test_one_take_in_ten_begins_with_the_fewest_deliveries_left_and_the_oldest_of_them(box):
    first, second, third = box.send(3)
    leases = {lease.id: lease for lease in box.take(3)}
    box.nack(leases[second], leases[first])
    box.nack(*box.take(2))  # 15 left now, the third one has 16
    box.nack(leases[third])
    box.redis.hset(box.keys.slot, "takes", 9)

    assert [lease.id for lease in box.take(2)] == [second, first]
    assert box.take_one().id == third


# --- one take in five begins with the priorities -------------------------------------------------


def test_one_take_in_five_begins_with_the_priorities(box):
    urgent = box.send(3, priority=1_048_575)
    due = box.send(20, due=100)
    box.clock.advance(1)

    taken = [box.take_one().id for _ in range(15)]

    assert [i for i, id in enumerate(taken, 1) if id in urgent] == [3, 8, 13]
    assert taken[2::5] == urgent
    assert [id for id in taken if id not in urgent] == due[:12]


def test_a_stream_of_due_messages_keeps_no_priority_waiting(box):
    urgent, seen = box.one(priority=17), []
    for _ in range(5):  # more is due after each take than was taken
        box.send(20, due=1)
        box.clock.advance(1)
        seen += [lease.id for lease in box.take(10)]

    assert urgent in seen


def test_take_that_begins_with_the_priorities_lets_what_is_due_join_them_first(box):
    failed = box.one(due=0)
    box.nack(box.take_one(), wait_ms=1)
    box.clock.advance(1)
    low, other = box.one(priority=50), box.one(due=0)
    high = box.one(due=1, priority=60)
    box.clock.advance(1)
    box.redis.hset(box.keys.slot, "takes", 2)

    leases = box.take(10)

    assert [lease.id for lease in leases] == [high, low, failed, other]
    assert [lease.left for lease in leases] == [16, 16, 15, 16]
    assert box.order() == []


# --- timed_priority ------------------------------------------------------------------------------


def test_due_message_without_a_priority_joins_the_timed_priority_as_the_newest(make_box):
    box = make_box(timed_priority=100)
    due, first, low, high = (
        box.one(due=100), box.one(priority=100), box.one(priority=99), box.one(priority=101),
    )  # fmt: skip
    own = box.one(due=200, priority=99)
    box.clock.advance(1)
    before = box.state()

    assert box.take_one().id == high

    changed = box.changed(before)
    assert {place: changed[place] for place in changed if place[0] in ("store", "records")} == {
        ("store", high): GONE,
        ("store", due): ordered(100, 4),
        ("store", own): ordered(99, 5),
    }
    assert box.drained() == [first, due, low, own]


def test_merged_and_retried_messages_without_a_priority_join_the_timed_priority(make_box):
    box = make_box(timed_priority=100)
    failed = box.one(due=0)
    box.nack(box.take_one(), wait_ms=1000)
    merged, _ = box.merge(range_ms=500)
    box.clock.advance(2)
    high, low = box.one(priority=101), box.one(priority=99)

    leases = box.take(10)

    assert [lease.id for lease in leases] == [high, merged, failed, low]
    assert [lease.left for lease in leases] == [16, 16, 15, 16]
    assert "merge" not in box.state()


@pytest.mark.parametrize("is_ordered", [False, True])
def test_message_of_the_timed_priority_that_is_given_back_goes_to_the_front_of_it(
    make_box, is_ordered
):
    box = make_box(timed_priority=100)
    first, second, third = box.send(2, due=0) + box.send(1, priority=100)
    high = box.one(priority=101)
    taken = box.take(2, ordered=is_ordered)
    assert [lease.id for lease in taken] == [high, third]  # the others joined when it looked
    box.ack(*taken)
    (lease,) = box.take(1, ordered=is_ordered)

    box.release(lease)

    assert box.order() == [second, first]  # by score
    assert 100 < box.score(first) < 101
    assert [one.id for one in box.take(2, ordered=is_ordered)] == [first, second]


def test_five_hundred_due_messages_join_the_timed_priority_in_one_take(make_box):
    box = make_box(timed_priority=100)
    pages = [box.send(1000, due=100) for _ in range(3)]
    urgent = box.one(priority=1_048_575)
    box.clock.advance(1)

    assert box.take_one().id == urgent

    assert box.stats()["priority"] == 500
    taken = [urgent]
    while batch := box.take(1000):
        taken += [lease.id for lease in batch]
    assert taken == [urgent, *pages[0], *pages[1], *pages[2]]


def test_timed_priority_that_is_first_again_leaves_those_that_have_joined(make_box):
    box = make_box(timed_priority=100)
    joined, later = box.one(due=100), box.one(due=5000)
    box.one(priority=101)
    box.clock.advance(1)
    box.take_one()
    given = box.settings.for_slot()
    del given["timed_priority"]
    box.run(topic_scripts.slot(box.handle, box.keys, box.created, given, revision=1))
    box.clock.advance(9)

    assert "timed_priority" not in box.state()["slot"]
    assert box.drained() == [later, joined]


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 9])
def test_a_take_of_due_messages_removes_these_and_no_others(box, limit):
    retried, given_back, behind = box.one(), box.one(due=1), box.one(priority=20)
    box.clock.advance(0.5)
    box.nack(*[lease for lease in box.take(2) if lease.id in (retried, given_back)], wait_ms=0)
    due = [box.one(due=n) for n in (10, 20, 30)]
    later = box.one(due=60_000)
    box.clock.advance(0.1)
    before = box.order()

    taken = [lease.id for lease in box.take(limit)]

    left = box.order()
    assert set(left) == set(before) - set(taken)
    assert len(taken) == min(limit, len(before) - 1)
    assert later in left
    assert set(taken[: min(limit, 4)]) <= {given_back, *due, retried, behind}


def test_a_take_of_due_messages_does_not_name_them_to_remove_them(box):
    given = [box.one(due=n) for n in range(1, 21)]
    box.one(priority=20)
    box.clock.advance(0.1)
    box.redis.config_resetstat()

    assert [lease.id for lease in box.take(20)] == given
    # The one ZREM is that of add_many, in the PrepareQueue.
    assert box.redis.info("commandstats")["cmdstat_zrem"]["calls"] == 1
