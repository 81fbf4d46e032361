"""query_take.lua on a real server."""

from __future__ import annotations

import pytest
from redis import ResponseError

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.spark import scripts
from rmq.features.spark.scripts import QueryLog
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts as producer_scripts
from tests.lua.calls import arrive, schedule_send
from tests.lua.furnished import furnish
from tests.lua.query import ME, OTHER, OTHER_RUN, RIVAL, RUN, lapse, log, receipt, renew, take


def test_take_moves_messages_to_the_prepare_queue_and_the_log_and_nothing_else(box):
    first, second, third = box.send(3)
    renew(box)
    box.clock.advance(100)
    before = box.state()

    assert take(box, limit=2) == QueryLog(2, 2, more=True)

    until = box.clock.now_ms + ME.lease_ms
    assert box.changed(before) == {
        ("store", first): None,
        ("store", second): None,
        ("prepare", first): receipt(1),
        ("prepare", second): receipt(1),
        (f"querylog:{RUN}",): [first, second],
        (f"query:{RUN}", b"tail"): b"2",
        (f"query:{RUN}", b"page"): b"1",
        ("queries", RUN.encode()): until,
        ("slot", "delivered"): "2",
        ("slot", "takes"): "1",
    }
    assert box.order() == [third]


def test_what_was_taken_and_not_noted_is_the_answer_again_and_nothing_more_is_taken(box):
    box.send(5)

    assert take(box, limit=2) == QueryLog(2, 2, more=True)
    after = box.state()
    assert take(box, limit=2) == QueryLog(2, 2, more=True)
    assert box.state() == after
    assert take(box, after=1, limit=2) == QueryLog(1, 2, more=True)
    assert take(box, after=2, limit=2) == QueryLog(2, 4, more=True)
    assert sorted(log(box).values()) == [1, 2, 3, 4]


def test_an_empty_slot_gives_nothing_and_nothing_changes(box):
    renew(box)
    before = box.state()

    assert take(box) == QueryLog(0, 0)

    assert box.state() == before


def test_order_of_taking_is_that_of_a_consumer(box):
    low, high = box.one(priority=50), box.one(priority=900)
    due = box.one(due=10)
    box.clock.advance(1)
    box.one(due=60_000)

    assert take(box) == QueryLog(3, 3)

    assert [id for id, _ in sorted(log(box).items(), key=lambda one: one[1])] == [due, high, low]


def test_what_has_failed_keeps_its_retries(box):
    box.one()
    box.nack(box.take_one())

    take(box)

    (score,) = box.state()["prepare"].values()
    assert score == receipt(2, left=15)


def test_two_queries_compete_and_share_nothing(box):
    mine, theirs = box.send(2)

    assert take(box, limit=1) == QueryLog(1, 1, more=True)
    assert take(box, holder=OTHER) == QueryLog(1, 1)

    assert (set(log(box)), set(log(box, OTHER_RUN))) == ({mine}, {theirs})


def test_another_owner_is_told_who_has_it_and_nothing_changes(box):
    box.send(2)
    take(box, limit=1)
    box.clock.advance(5)
    before = box.state()

    assert take(box, after=1, holder=RIVAL) == QueryLog(0, 1, 10_000, "me:1")

    assert box.state() == before
    box.clock.advance(11)
    assert take(box, after=1, holder=RIVAL) == QueryLog(0, 1, -1000, "me:1")
    assert box.state() == before
    renew(box, RIVAL)
    assert take(box, after=1, holder=RIVAL) == QueryLog(1, 2)
    assert box.state()[f"query:{RUN}"][b"owner"] == b"rival:1"


def test_numbers_go_on_where_the_caller_remembers_more_than_redis(box):
    box.one()

    assert take(box, after=40) == QueryLog(1, 41)


def test_numbers_last_as_long_as_messages_are_held_and_400_days_more(box):
    box.one()
    query = f"{box.keys.query_stem.decode()}{RUN}"

    take(box)
    assert box.redis.ttl(query) == -1

    lapse(box, force=True)
    assert 399 * 86_400 < box.redis.ttl(query) <= 400 * 86_400
    take(box, after=1)
    assert 399 * 86_400 < box.redis.ttl(query) <= 400 * 86_400


def test_messages_that_redis_has_and_the_caller_has_done_with_are_not_its_batch(box):
    """Redis came back from an older copy: it has a batch that is settled by now."""
    old, new = box.send(2)
    take(box, limit=1)

    assert take(box, after=7) == QueryLog(1, 8)

    assert log(box) == {old: 7, new: 8}


def test_numbers_of_what_has_lapsed_are_not_used_again(box):
    box.send(3)
    take(box, limit=2)
    lapse(box, force=True)

    before = box.state()
    # Sinks may know that batch: it gets no other message.
    assert box.run(scripts.query_take(box.keys, ME, 0, 2)) == QueryLog(0, 2, more=True)
    assert box.state() == before
    assert take(box, after=2, limit=2) == QueryLog(1, 3, expired=1)
    assert list(log(box).values()) == [3]


def no_expiry(box):
    return box.state()["slot"].get("no_expiry")


def reads_records(box, call):
    """Whether a call reads the records of messages."""
    box.redis.config_resetstat()
    call()
    found = box.redis.info("commandstats").get("cmdstat_hmget", {"calls": 0})["calls"]
    return found > 2  # the slot's fields, and those of the query


def filled(box):
    """Messages of all kinds but those that expire or merge, which a take takes in this order."""
    due = [box.one(due=at) for at in (10, 20)]
    asks = box.one(due=30, priority=800)
    box.clock.advance(1)
    low, high = box.send(3, priority=50), box.send(2, priority=900)
    box.one(due=600_000)
    failed = box.send(2, priority=1000)
    box.nack(*box.take(2))
    return [*due, *high, asks, *low, *failed]


def test_a_take_that_reads_no_records_takes_the_same_as_one_that_reads_them(make_box):
    unread, read_, by_bytes = (make_box(index=index, slots=3) for index in range(3))
    wanted = {box.index: filled(box) for box in (unread, read_, by_bytes)}
    read_.redis.hdel(read_.keys.slot, "no_expiry")
    taken = {}
    for box in (unread, read_, by_bytes):
        newest, replies = 0, []
        for limit in (3, 4, 10):
            most_bytes = 1_000_000 if box is by_bytes else 0
            replies.append(take(box, newest, limit, most_bytes=most_bytes))
            newest = replies[-1].newest
        assert sorted(log(box)) == sorted(wanted[box.index])
        place = {id: n for n, id in enumerate(wanted[box.index])}
        scores = box.state()["prepare"]
        taken[box.index] = (
            [place[id] for id in log(box)],
            [scores[id] for id in log(box)],
            [reply._replace(bytes=0) for reply in replies],
        )

    assert taken[0] == taken[1] == taken[2]
    assert [reply.held for reply in taken[0][2]] == [3, 4, 3]


@pytest.mark.parametrize("why", ["lean", "no note", "merging", "limit", "order", "bytes"])
def test_records_are_read_only_where_that_is_needed(box, why):
    box.send(5)
    if why == "no note":
        box.redis.hdel(box.keys.slot, "no_expiry")
    elif why == "merging":
        box.merge()
    elif why == "limit":
        box.redis.hset(box.keys.slot, "limit", "0:0:0:0:1:1000:1:0:tenant")
    elif why == "order":
        box.redis.hset(box.keys.slot, "ordered", 1)
    renew(box)

    read_them = reads_records(box, lambda: take(box, most_bytes=9999 if why == "bytes" else 0))

    assert read_them is (why != "lean")
    assert len(log(box)) == 5


@pytest.mark.parametrize("way", ["send", "send several", "merge", "publish", "redrive", "schedule"])
def test_a_message_that_expires_is_noted_whichever_way_it_comes(box, way):
    assert no_expiry(box) == "1"
    if way == "schedule":
        furnished = furnish(box)
        box.redis.hset(box.keys.slot, "no_expiry", 1)
    box.send(3)
    if way == "send":
        box.one(expires=60_000)
    elif way == "send several":
        given = box.ids(3)
        parts = [*box.part(), *box.part(expires=60_000), *box.part()]
        box.run(producer_scripts.send(box.handle, box.keys, box.session(), given, parts))
    elif way == "merge":
        several = [
            box.merge_command(box.ids()[0], key=key, expires=expires)
            for key, expires in ((b"a", None), (b"b", 60_000))
        ]
        box.run(box.merge_many(several))
    elif way == "publish":
        entry = [member_of(box.ids()[0]), *box.part(expires=60_000)]
        box.run(scripts.stage_push(box.keys, "stage", 0, 60_000, entry))
        box.run(scripts.publish(box.handle, box.keys, box.session(), "stage"))
    elif way == "redrive":
        assert box.run(arrive(box, expires=60_000))
    else:
        box.run(schedule_send(furnished, expires=60_000))

    assert no_expiry(box) is None
    before = len(box.order())
    box.one()
    assert no_expiry(box) is None
    assert len(box.order()) == before + 1


def test_a_message_that_expired_is_never_taken_and_the_slot_is_noted_again_when_it_is_empty(box):
    box.run(box.send_command(box.ids(), expires=500))
    box.one()
    box.clock.advance(1)
    box.redis.hset(box.keys.slot, "on_expire", "drop")

    assert take(box).held == 1
    newest = take(box, 1)
    assert (newest.held, no_expiry(box)) == (0, None), "it holds a message"
    box.run(scripts.query_settle(box.handle, box.keys, ME, 0, 1, 10))
    before = box.state()
    assert take(box, 1) == QueryLog(0, 1)

    assert box.changed(before) == {("slot", "no_expiry"): "1"}
    before = box.state()
    assert take(box, 1) == QueryLog(0, 1)
    assert box.state() == before
    box.send(5)
    assert not reads_records(box, lambda: take(box, 1))


def test_a_dead_letter_that_expires_keeps_the_slot_from_being_noted(box):
    id = box.one(expires=60_000)
    box.reject(box.take_one())

    assert take(box) == QueryLog(0, 0)

    assert no_expiry(box) is None
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [id]))
    box.clock.advance(61)
    box.redis.hset(box.keys.slot, "on_expire", "drop")
    assert take(box).held == 0


def test_bytes_bound_a_take_and_one_message_is_taken_in_any_case(box):
    box.send(2, body=b"x" * 92)  # records of 100 bytes
    big = box.one(large=b"y" * 5000)
    box.send(3, body=b"x" * 92, expires=60_000)

    assert take(box, most_bytes=250) == QueryLog(2, 2, more=True, bytes=200)
    assert take(box, 2, most_bytes=250).bytes > 5000
    assert log(box)[big] == 3
    assert take(box, 3, most_bytes=215) == QueryLog(2, 5, more=True, bytes=212)
    assert take(box, 5, most_bytes=215) == QueryLog(1, 6, bytes=106)


def test_bytes_bound_a_take_in_which_a_message_has_expired(box):
    """It is dropped, or not taken yet; those after the bound stay where they are."""
    box.redis.hset(box.keys.slot, "on_expire", "drop")
    gone, first = box.one(body=b"x" * 92, expires=500), box.one(body=b"x" * 92)
    rest = [box.one(body=b"x" * 92), *box.send(2, body=b"x" * 92, expires=500)]
    box.clock.advance(1)

    assert take(box, most_bytes=210) == QueryLog(1, 1, more=True, bytes=100)

    assert list(log(box)) == [first]
    assert gone not in box.state()["records"]
    assert len(box.order()) == len(rest)
    assert take(box, 1, most_bytes=1000) == QueryLog(1, 2, bytes=100)
    assert box.order() == []


def test_in_a_slot_in_order_each_message_has_the_number_of_its_delivery(box):
    ids = box.send(3)
    box.ack(*box.take(1, ordered=True))

    take(box)

    assert box.state()["prepare"] == {ids[1]: receipt(2), ids[2]: receipt(3)}
    lapse(box, force=True)
    box.rollback()
    assert [lease.id for lease in box.take(1, ordered=True)] == ids[1:2]


def test_a_take_of_4000_is_one_page_and_one_of_4001_is_refused(box):
    for _ in range(5):
        box.send(1000)
    with pytest.raises(ResponseError, match="ARG limit"):
        take(box, limit=4001)

    assert take(box, limit=4000) == QueryLog(4000, 4000, more=True)
    assert set(box.state()["prepare"].values()) == {receipt(1)}
    box.redis.hdel(box.keys.slot, "no_expiry")
    assert take(box, 4000, limit=4000).held == 1000, "one that reads records takes as many"


def test_a_zombie_is_refused_by_every_script_after_a_take_over(box):
    """Another process has become the owner; the former one comes back, at whatever time."""
    box.send(3)
    take(box, limit=2)
    box.clock.advance(20)
    assert renew(box, RIVAL) == QueryLog(2, 2)
    calls = [
        scripts.query_take(box.keys, ME, 2, 10),
        scripts.query_settle(box.handle, box.keys, ME, 0, 2, 10),
        scripts.query_reject(box.handle, box.keys, ME, 2, b"why", 10),
        scripts.query_again(box.keys, ME, 2),
        scripts.query_release(box.handle, box.keys, ME, 0, 10),
    ]
    before = box.state()
    for wait in (0, 60):
        box.clock.advance(wait)
        for call in calls:
            reply = box.run(call)
            assert (reply.owner, box.state()) == ("rival:1", before), call.script.name
    renew(box, RIVAL)
    assert box.run(scripts.query_renew(box.keys, ME, 0, 9)).owner == "rival:1"
    assert take(box, 2, holder=RIVAL) == QueryLog(1, 3)


def test_a_lease_that_has_nine_tenths_left_is_not_renewed_and_no_end_is_too_late(box):
    box.send(4)
    take(box, limit=1)
    until = box.clock.now_ms + ME.lease_ms
    box.clock.advance(59)
    take(box, 1, 1)
    assert box.state()["queries"] == {RUN.encode(): until}
    box.clock.advance(2)

    take(box, 2, 1)

    assert box.state()["queries"] == {RUN.encode(): box.clock.now_ms + ME.lease_ms}
    assert box.state()["slot"]["leases_until"] == str(until), "earlier than the first end"
    box.redis.hdel(box.keys.slot, "leases_until")
    take(box, 3, 1)
    assert box.state()["slot"]["leases_until"] == str(box.clock.now_ms + ME.lease_ms)
