"""send.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts
from tests.lua.box import GONE, ordered, stored, timed


def test_send_stores_score_record_and_counters_and_nothing_else(box):
    before = box.state()
    (id,) = box.ids()

    reply = box.run(box.send_command([id], priority=900, body=b"hello"))

    assert reply == scripts.SendReply(1, "")
    assert before.keys() == {"slot"}
    assert box.changed(before, replay=True) == {
        ("slot", "accepted"): "1",
        ("slot", "order"): "1",
        ("store", id): ordered(900, 1),
        ("records", id): stored(1, b"hello", priority=900),
        ("replay:session1",): b"1:1:",
    }


def test_send_again_adds_nothing_and_answers_duplicate(box):
    given = box.ids(3)
    assert box.run(box.send_command(given)).codes == ""
    before = box.state()

    box.clock.advance(1)
    reply = box.run(box.send_command(given))

    assert reply == scripts.SendReply(3, "ddd")
    assert box.state() == before


def test_send_with_some_known_ids_stores_only_the_new_ones(box):
    known = box.send(2)
    new = box.ids(2)
    before = box.state()

    reply = box.run(box.send_command([new[0], known[0], new[1], known[1], new[0]]))

    assert reply == scripts.SendReply(4, "sdsdd")
    assert box.changed(before) == {
        ("slot", "accepted"): "4",
        ("slot", "order"): "4",
        ("store", new[0]): ordered(100, 3),
        ("store", new[1]): ordered(100, 4),
        ("records", new[0]): stored(3, priority=100),
        ("records", new[1]): stored(4, priority=100),
    }


def test_timed_send_with_a_delay_is_due_from_the_servers_now(box):
    before = box.state()
    (id,) = box.ids()

    box.run(box.send_command([id], due=1500))

    due = box.clock.now_ms + 1500
    assert box.changed(before) == {
        ("slot", "accepted"): "1",
        ("slot", "order"): "0",
        ("store", id): timed(due, False),
        ("records", id): stored(1, due=due),
    }


def test_timed_send_with_an_absolute_time_and_priority_asks_for_it_when_due(box):
    due = box.clock.now_ms + 3_600_000
    id = box.one(due=due, priority=20)

    assert box.score(id) == timed(due, True)
    assert box.state()["records"] == {id: stored(1, due=due, priority=20)}


def test_expiry_counts_from_due_or_from_now(box):
    now = box.clock.now_ms
    late = box.one(due=1000, expires=500)
    at_once = box.one(expires=500)

    assert box.state()["records"] == {
        late: stored(1, due=now + 1000, expires=now + 1500),
        at_once: stored(2, priority=100, expires=now + 500),
    }


@pytest.mark.parametrize("ago_ms", [1, 999, 1000, 86_400_000])
def test_time_that_has_passed_is_due_at_once(box, ago_ms):
    now = box.clock.now_ms
    later, past, plain = box.ids(3)
    parts = [*box.part(due=5000), *box.part(due=now - ago_ms, expires=90_000_000), *box.part()]
    before = box.state()

    reply = box.run(scripts.send(box.handle, box.keys, box.session(), [later, past, plain], parts))

    assert reply == scripts.SendReply(3, "")
    assert box.changed(before) == {
        ("slot", "accepted"): "3",
        ("slot", "order"): "1",
        ("slot", "no_expiry"): None,
        ("store", later): timed(now + 5000, False),
        ("store", past): timed(now - ago_ms, False),
        ("store", plain): ordered(100, 1),
        ("records", later): stored(1, due=now + 5000),
        ("records", past): stored(2, due=now - ago_ms, expires=now - ago_ms + 90_000_000),
        ("records", plain): stored(3, priority=100),
    }
    before = box.state()
    again = box.run(scripts.send(box.handle, box.keys, box.session(), [later, past, plain], parts))
    assert again == scripts.SendReply(3, "ddd")
    assert box.state() == before
    assert box.drained() == [past, plain]


@pytest.mark.parametrize("priority", [17, 18, 100, 65_535, 65_536, 1_048_575])
def test_every_priority_has_its_own_family_score(box, priority):
    first, second = box.send(2, priority=priority)

    assert box.score(first) == ordered(priority, 1)
    assert box.score(second) == ordered(priority, 2)
    assert priority < box.score(second) < box.score(first) < priority + 1


@pytest.mark.parametrize("priority", [1, 16, 1_048_576, 16_777_215])
@pytest.mark.parametrize("due", [None, 1000])
def test_priority_outside_its_family_is_refused(box, priority, due):
    before = box.state()

    with pytest.raises(Exception, match="RMQARG"):
        box.send(1, priority=priority, due=due)

    assert box.state() == before


@pytest.mark.parametrize("size", [0, 15, 17])
def test_id_of_another_size_is_refused(box, size):
    before = box.state()

    with pytest.raises(Exception, match="RMQARG id"):
        box.run(box.send_command([box.ids()[0], b"i" * size]))

    assert box.state() == before


@pytest.mark.parametrize("priority", [17, 1_048_575])
def test_a_thousand_of_one_priority_go_in_the_order_in_which_they_came(box, priority):
    given = box.ids(1000)
    given.reverse()  # so that the order of the ids cannot help
    for page in range(0, 1000, 250):
        box.run(box.send_command(given[page : page + 250], priority=priority))

    assert [lease.id for lease in box.take(1000)] == given


def test_larger_priority_goes_first_whenever_it_came(box):
    low, high, middle = box.one(priority=17), box.one(priority=1_048_575), box.one(priority=500)

    assert box.drained() == [high, middle, low]


def test_settled_id_is_a_duplicate_for_one_to_two_windows(make_box):
    box = make_box(dedup_window_ms=60_000)
    box.clock.advance(60 - box.clock.now_us / 1e6 % 60 + 59)  # the last second of a turn
    id = box.one(kept=True)
    assert box.ack(box.take_one()) == "1"
    before = box.state()

    box.clock.advance(60)
    assert box.run(box.send_command([id])).codes == "d"
    assert box.state() == before

    box.clock.advance(2)
    assert box.run(box.send_command([id])).codes == ""


def test_without_a_dedup_window_a_settled_id_is_new_again(make_box):
    box = make_box(dedup_window_ms=0)
    id = box.one()
    box.ack(box.take_one())
    assert box.state().keys() == {"slot"} | {k for k in box.state() if k.startswith("replay")}

    assert box.run(box.send_command([id])).codes == ""


def test_message_in_flight_or_dead_is_a_duplicate_for_ever(make_box):
    box = make_box(dedup_window_ms=1000)
    flying, dead = box.send(2)
    box.reject(box.take(2)[1])
    box.clock.advance(3600)

    assert box.run(box.send_command([flying, dead])).codes == "dd"


def test_full_slot_refuses_all_of_a_batch(make_box):
    box = make_box(max_length=3)
    box.send(2)
    before = box.state()

    assert box.run(box.send_command(box.ids(2))) == scripts.SendReply(0, "F")
    assert box.state() == before
    assert box.run(box.send_command(box.ids(1))).codes == ""


def test_full_slot_still_answers_duplicates(make_box):
    box = make_box(max_length=2)
    given = box.send(2)

    assert box.run(box.send_command(given)).codes == "dd"


def test_drop_lowest_makes_room_by_the_newest_of_the_lowest_priority(make_box):
    box = make_box(max_length=3, overflow="drop_lowest")
    older, newer = box.send(2, priority=20)
    high = box.one(priority=900)
    before = box.state()

    added = box.one(priority=30)

    assert box.changed(before) == {
        ("slot", "accepted"): "4",
        ("slot", "order"): "4",
        ("slot", "dropped"): "1",
        ("store", newer): GONE,
        ("records", newer): GONE,
        ("store", added): ordered(30, 4),
        ("records", added): stored(4, priority=30),
    }
    assert box.drained() == [high, added, older]


def test_what_drop_lowest_drops_leaves_no_failure_and_no_merge_window_behind(make_box):
    box = make_box(max_length=3, overflow="drop_lowest", dedup_window_ms=0)
    window, _ = box.merge(priority=20, range_ms=1000)
    other, _ = box.merge(priority=900, range_ms=1000, key=b"other")
    box.one(priority=30)
    box.nack(box.take_one(), wait_ms=1000)
    box.clock.advance(1)
    assert box.take_one().id == other  # all three have joined their priorities
    box.merge(priority=900, range_ms=1000, key=b"other")
    before = box.state()
    assert set(before["merge"]) == {b"key", b"other"}
    assert len(before["failures"]) == 1

    box.send(2, priority=500)

    state = box.state()
    assert set(state["merge"]) == {b"other"}
    assert "failures" not in state
    assert window not in state["records"]
    assert box.counter("dropped") == 2


@pytest.mark.parametrize("kept", [None, b"", b"\x04short", b"\x05" + bytes(7)])
def test_drop_lowest_drops_a_message_whose_record_is_missing_or_cut_short(make_box, kept):
    box = make_box(max_length=2, overflow="drop_lowest")
    broken = box.one(priority=20)
    box.merge()
    if kept is None:
        box.redis.hdel(box.keys.records, member_of(broken))
    else:
        box.redis.hset(box.keys.records, member_of(broken), kept)

    added = box.one(priority=30)

    assert broken not in box.order()
    assert added in box.order()
    assert broken not in box.state()["records"]


def test_drop_lowest_refuses_a_newcomer_that_is_worth_no_more(make_box):
    box = make_box(max_length=2, overflow="drop_lowest")
    box.send(2, priority=20)
    before = box.state()

    assert box.run(box.send_command(box.ids(), priority=20)).codes == "F"
    assert box.run(box.send_command(box.ids(), priority=17)).codes == "F"
    assert box.run(box.send_command(box.ids(3), priority=900)).codes == "F"
    assert box.state() == before


def test_drop_lowest_never_drops_timed_messages_or_retries(make_box):
    box = make_box(max_length=2, overflow="drop_lowest")
    box.one()
    assert box.nack(box.take_one()) == "r"
    box.one(due=60_000)
    before = box.state()

    assert box.run(box.send_command(box.ids(), priority=900)).codes == "F"
    assert box.state() == before


def test_drop_lowest_goes_by_priority_also_for_what_is_due_later(make_box):
    box = make_box(max_length=2, overflow="drop_lowest")
    high, low = box.one(priority=1_000_000), box.one(priority=40)
    before = box.state()

    assert box.run(box.send_command(box.ids(), priority=17, due=86_400_000)).codes == "F"
    assert box.run(box.send_command(box.ids(), priority=40, due=86_400_000)).codes == "F"
    assert box.state() == before
    later = box.one(priority=41, due=86_400_000)

    assert box.order() == [high, later]
    assert low not in box.state()["records"]


def test_message_without_a_priority_is_worth_its_timed_priority_to_drop_lowest(make_box):
    box = make_box(max_length=2, overflow="drop_lowest", timed_priority=50)
    box.send(2, priority=50)
    before = box.state()

    assert box.run(box.send_command(box.ids(), due=1000)).codes == "F"
    assert box.merge(range_ms=1000)[1].codes == "F"
    assert box.state() == before
    box.redis.hset(box.keys.slot, "timed_priority", 51)
    assert box.run(box.send_command(box.ids(), due=1000)).codes == ""
    assert box.merge(range_ms=1000)[1].codes == "s"
    assert box.counter("dropped") == 2


def test_slot_far_above_its_share_shrinks_by_a_thousand_with_each_send(make_box):
    """As after leases came back, or after max_length was made smaller."""
    box = make_box(max_length=10_000, overflow="drop_lowest")
    for _ in range(3):
        box.send(1000, priority=20)
    box.redis.hset(box.keys.slot, "capacity", 100)

    urgent = box.one(priority=21)

    assert box.redis.zcard(box.keys.store) == 2001
    box.send(50, priority=21)
    assert box.redis.zcard(box.keys.store) == 1051
    assert box.run(box.send_command(box.ids(), priority=20)).codes == "F"
    box.one(priority=21)
    assert box.redis.zcard(box.keys.store) == 100
    assert box.drained()[0] == urgent


def test_slot_above_its_share_drops_what_it_may_if_that_makes_room(make_box):
    box = make_box(max_length=100, overflow="drop_lowest")
    low = box.send(2, priority=20)
    box.send(8, priority=900)
    box.redis.hset(box.keys.slot, "capacity", 5)

    assert box.run(box.send_command(box.ids(3), priority=30)).codes == "F"
    added = box.send(2, priority=30)

    assert set(low).isdisjoint(box.order())
    assert box.order()[:2] == added[::-1]
    assert box.run(box.send_command(box.ids(), priority=30)).codes == "F"


def test_orders_begin_anew_once_nobody_is_left_to_be_ordered_against(box):
    box.redis.hset(box.keys.slot, mapping={"order": 2**30 + 1, "front": -(2**30) - 1})
    before = box.state()

    id = box.one()

    assert box.changed(before) == {
        ("slot", "accepted"): "1",
        ("slot", "order"): "1",
        ("slot", "front"): "0",
        ("store", id): ordered(100, 1),
        ("records", id): stored(1, priority=100),
    }


def test_refused_send_writes_nothing_even_where_orders_would_begin_anew(box):
    box.redis.hset(box.keys.slot, "order", 2**30 + 1)
    before = box.state()

    with pytest.raises(Exception, match="RMQARG"):
        box.run(box.send_command([b"short"]))

    assert box.state() == before


def test_send_wakes_who_waits_and_only_then(box):
    subscription = box.redis.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(box.handle.channel)
    subscription.get_message(timeout=1)

    box.one()
    assert subscription.get_message(timeout=0.05) is None

    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)
    box.one()
    assert subscription.get_message(timeout=5)["data"] == b"0"
    assert box.counter("waiting") == 0
    subscription.close()


def test_timed_send_wakes_only_for_something_sooner(box):
    subscription = box.redis.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(box.handle.channel)
    subscription.get_message(timeout=1)
    box.one(due=10_000)
    awake_until = box.clock.now_ms + 300_000
    box.redis.hset(box.keys.slot, "waiting", awake_until)

    box.one(due=20_000)
    assert box.counter("waiting") == awake_until
    box.one(due=5_000)
    assert box.counter("waiting") == 0

    assert subscription.get_message(timeout=5)["data"] == b"0"
    assert subscription.get_message(timeout=0.05) is None
    subscription.close()


def test_body_of_256_kib_of_any_bytes_comes_back_as_it_was(box):
    body = bytes(range(256)) * 1024
    id = box.one(body=body)

    lease = box.take_one()

    assert (lease.id, lease.record[8:]) == (id, body)


def test_a_thousand_messages_in_one_call(box):
    given = box.ids(1000)

    assert box.run(box.send_command(given)) == scripts.SendReply(1000, "")
    assert box.run(box.send_command(given)) == scripts.SendReply(1000, "d" * 1000)
    assert len(box.order()) == 1000


def test_more_than_a_thousand_are_refused(box):
    before = box.state()

    with pytest.raises(Exception, match="RMQARG count"):
        box.run(box.send_command(box.ids(1001)))

    assert box.state() == before


def test_count_that_does_not_fit_the_arguments_is_refused(box):
    made = box.send_command(box.ids(3))
    before = box.state()

    for count in (2, 4):
        made.args[5] = count
        with pytest.raises(Exception, match="RMQARG count"):
            box.run(made)

    assert box.state() == before


def test_acceptance_number_is_kept_whole_and_its_low_bits_in_the_record(box):
    box.redis.hset(box.keys.slot, "accepted", 2**32 + 6)

    (id,) = box.ids()
    reply = box.run(box.send_command([id]))

    assert reply.offset == 2**32 + 7
    assert box.state()["records"][id] == stored(7, priority=100)
