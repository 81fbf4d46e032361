"""prepare.lua on a real server."""

from __future__ import annotations

import math

import pytest

from rmq.kernel.consumer import scripts
from rmq.kernel.core import score
from rmq.kernel.core.ids import member_of
from tests.lua.box import GONE, LEASE_MAX_MS, stored
from tests.lua.eventing import deliver, one_suspended
from tests.lua.failures import head


def command(box, session, limit=1, lease_ms=30_000, waits=False):
    return scripts.prepare(box.keys, session, limit, lease_ms, waits)


def test_prepare_moves_one_message_and_nothing_else(box):
    id = box.one(body=b"hello")
    before = box.state()
    session = box.session()

    batch = box.run(command(box, session))

    deadline = box.clock.now_ms // 1000 + 30
    assert batch == scripts.Batch(
        0, False, deadline, 1, 1, b"", [id], [stored(1, b"hello", priority=100)],
    )  # fmt: skip
    assert box.changed(before, replay=True) == {
        ("slot", "delivered"): "1",
        ("slot", "takes"): "1",
        ("store", id): GONE,
        ("prepare", id): deadline * 1000 + 16 + 1 / 2048,
        (f"replay:{session.name[1:].decode()}",): b"1:%d:1:" % deadline + member_of(id),
    }


def test_prepare_sent_again_hands_over_the_same_batch_and_burns_no_retry(box):
    given = box.send(3)
    session = box.session()
    first = box.run(command(box, session, 2))
    before = box.state()

    box.clock.advance(1)
    second = box.run(command(box, session, 2))

    assert box.state() == before
    assert second.ids == first.ids == given[:2]
    assert second.records == first.records
    assert (second.deadline_s, second.first_delivery) == (first.deadline_s, first.first_delivery)
    assert [lease[:2] for lease in box.leases(second)] == [lease[:2] for lease in box.leases(first)]
    assert box.ack(*box.leases(second)) == "11"


def test_next_number_of_a_session_takes_the_next_messages(box):
    given = box.send(2)
    session = box.session()

    assert box.run(command(box, session)).ids == given[:1]
    session.count_to(session.number + 1)
    assert box.run(command(box, session)).ids == given[1:]


def test_numbers_that_begin_alike_are_different_calls(box):
    given = box.send(4)
    session = box.session()
    taken = []
    for number in (1, 10, 101, 1010):
        session.count_to(number)
        taken += box.run(command(box, session)).ids

    assert taken == given


def test_replayed_batch_leaves_out_what_is_no_longer_the_callers(box):
    kept, _, released = box.send(3)
    session = box.session()
    leases = box.leases(box.run(command(box, session, 3)))
    box.ack(leases[1])
    box.release(leases[2])
    assert box.take_one().id == released
    before = box.state()

    batch = box.run(command(box, session, 3))

    assert batch.ids == [kept, b"", b""]
    assert batch.records[1:] == [b"", b""]
    assert box.state() == before


def test_replay_after_a_rollback_gives_nothing_away(box):
    box.one()
    session = box.session()
    box.run(command(box, session, 1, 1000))
    box.clock.advance(2)
    box.rollback()
    successor = box.take_one()
    before = box.state()

    assert box.run(command(box, session, 1, 1000)).ids == [b""]
    assert box.state() == before
    assert box.ack(successor) == "1"


def test_prepare_with_nothing_to_take_changes_nothing(box):
    box.one(due=5000)
    before = box.state()

    for wait_us in (5_000_000, 4_000_000):
        batch = box.run(command(box, box.session()))
        assert batch == scripts.Batch(wait_us, False, 0, 1, 1, b"", [], [])
        assert box.state() == before
        box.clock.advance(1)


@pytest.mark.parametrize("later_us", [0, 1, 500, 999])
@pytest.mark.parametrize("lease_ms", [1000, 1001, 1500, 30_000, LEASE_MAX_MS])
def test_deadline_is_whole_seconds_and_never_sooner_than_asked(box, later_us, lease_ms):
    box.clock.now_us += later_us * 1000 + 7
    box.clock.advance(0)
    box.one()

    batch = box.prepare(lease_ms=lease_ms)

    assert batch.deadline_s == math.ceil((box.clock.now_ms + lease_ms) / 1000)
    assert 0 <= batch.deadline_s * 1000 - box.clock.now_ms - lease_ms < 1000


def test_receipt_is_deadline_and_retries_with_the_delivery_number_in_the_fraction(box):
    box.redis.hset(box.keys.slot, "delivered", 4094)
    given = box.send(3)

    leases = box.take(3)

    now_s = box.clock.now_ms // 1000
    assert box.state()["prepare"] == {
        given[0]: (now_s + 30) * 1000 + 16 + 2047 / 2048,
        given[1]: (now_s + 30) * 1000 + 16,
        given[2]: (now_s + 30) * 1000 + 16 + 1 / 2048,
    }
    assert [lease.delivery for lease in leases] == [4095, 4096, 4097]
    assert [lease.receipt for lease in leases] == [box.score(id, "prepare") for id in given]


def test_scores_are_exact_for_every_number_of_retries_and_delivery(box):
    deadline = box.clock.now_ms // 1000
    for left in range(17):
        for number in (0, 1, 1023, 2047):
            made = score.receipt_score(deadline, left, number)
            box.redis.zadd(box.keys.prepare, {b"m": made})
            assert box.score(b"m", "prepare") == made
            assert score.receipt_retries_left(made) == left
            assert made % 1 == number / 2048


def test_message_without_retries_counts_down_from_its_topics_setting(make_box):
    box = make_box(max_retries=2)
    box.one()
    box.one(due=10)
    box.clock.advance(1)

    assert [lease.left for lease in box.take(2)] == [2, 2]


def test_expired_message_is_buried_with_its_reason_and_not_handed_over(box):
    id = box.one(expires=1000)
    fresh = box.one()
    box.clock.advance(1)
    before = box.state()

    lease = box.take(2)

    assert [x.id for x in lease] == [fresh]
    assert box.changed(before) == {
        ("slot", "delivered"): "1",
        ("slot", "takes"): "1",
        ("slot", "dead_lettered"): "1",
        ("store", id): GONE,
        ("store", fresh): GONE,
        ("prepare", fresh): lease[0].receipt,
        ("dead", id): box.clock.now_ms,
        ("failures", id): box.failure(0, 0, "x"),
    }


def test_message_may_be_taken_until_the_last_moment_before_it_expires(box):
    id = box.one(expires=1000)
    box.clock.advance(0.999)

    assert box.take_one().id == id


def test_expired_message_is_dropped_whole_where_the_topic_says_so(make_box):
    box = make_box(on_expire="drop")
    failed = box.one(due=100, expires=5000)
    box.clock.advance(1)
    box.nack(box.take_one(), wait_ms=1000)
    box.one(expires=1000)
    before = box.state()
    assert before["failures"].keys() == {failed}
    box.clock.advance(10)

    assert box.take(5) == []

    after = box.state()
    assert {k for k in after if not k.startswith("replay")} == {"slot"}
    assert int(after["slot"]["expired"]) == 2
    assert box.prepare().wait_us == -1


def test_expired_retry_tells_how_often_it_was_delivered(box):
    id = box.one(expires=5000)
    for _ in range(3):
        box.nack(box.take_one())
    box.clock.advance(6)
    box.take()

    assert box.state()["failures"][id][:3] == head(0, 3, "x")


def test_batch_of_expired_messages_alone_says_that_there_may_be_more(box):
    box.send(3, expires=1000)
    fresh = box.one()
    box.clock.advance(2)

    first = box.prepare(2)

    assert (first.ids, first.wait_us) == ([], 0)
    assert box.drained() == [fresh]


def test_expired_merge_window_leaves_the_index(box):
    box.merge(range_ms=1000, expires=1000)
    box.clock.advance(3)
    box.prepare()

    assert "merge" not in box.state()


def test_lapsed_leases_are_told_of(box):
    box.one()
    box.take_one(lease_ms=1000)
    assert not box.prepare().expired
    box.clock.advance(1)

    assert box.prepare().expired


def test_wait_is_until_the_next_due_time_or_the_next_lapse(box):
    assert box.prepare().wait_us == -1
    box.one()
    box.take_one(lease_ms=10_000)
    assert box.prepare().wait_us == 10_000_000
    box.one(due=4000)
    assert box.prepare().wait_us == 4_000_000
    box.one()
    box.one()
    assert box.prepare().wait_us == 0


def test_waiting_is_noted_only_when_asked_and_at_most_every_100_seconds(box):
    box.run(command(box, box.session(), waits=False))
    assert box.counter("waiting") == 0

    until = box.clock.now_ms + 300_000
    box.run(command(box, box.session(), waits=True))
    assert box.counter("waiting") == until
    box.clock.advance(100)
    box.run(command(box, box.session(), waits=True))
    assert box.counter("waiting") == until
    box.clock.advance(0.1)
    box.run(command(box, box.session(), waits=True))
    assert box.counter("waiting") == box.clock.now_ms + 300_000


BROKEN = [None, b"", b"\0", b"\xff", bytes(7)]


@pytest.mark.parametrize("kept", BROKEN)
def test_message_without_a_readable_record_is_taken_with_an_empty_one(box, kept):
    first, broken, last = box.send(3)
    box.break_record(broken, kept)
    session = box.session()

    batch = box.run(command(box, session, limit=3))

    assert batch.ids == [first, broken, last]
    assert [bool(entry) for entry in batch.records] == [True, False, True]
    again = box.run(command(box, session, limit=3).as_repeat())
    assert (again.ids, again.records) == (batch.ids, batch.records)


@pytest.mark.parametrize("kept", BROKEN)
def test_due_message_without_a_readable_record_does_not_stop_those_that_join(box, kept):
    joins, broken = box.one(due=10, priority=50), box.one(due=20, priority=50)
    box.break_record(broken, kept)
    box.clock.advance(1)

    taken = {lease.id: lease.record for _ in range(3) for lease in box.take(2)}

    assert set(taken) == {joins, broken}
    assert (taken[broken], bool(taken[joins])) == (b"", True)


def test_record_cut_short_is_handed_over_for_the_reader_to_refuse(box):
    id = box.one(due=10, expires=5000)
    short = box.state()["records"][id][:12]
    box.redis.hset(box.keys.records, member_of(id), short)
    box.clock.advance(1)

    lease = box.take_one()

    assert (lease.id, lease.record) == (id, short)
    assert box.reject(lease, reason="u") == "d"


def test_due_score_without_a_fraction_loses_no_message(box):
    id = box.one(due=10)
    box.redis.zadd(box.keys.store, {member_of(id): box.clock.now_ms + 10})
    box.clock.advance(1)

    lease = box.take_one()

    assert (lease.id, lease.left) == (id, 16)
    assert box.state()["prepare"] == {id: lease.receipt}


def test_limit_takes_no_more_than_asked(box):
    box.send(5)

    assert len(box.take(3)) == 3
    assert len(box.order()) == 2
    assert box.counter("delivered") == 3
    assert box.counter("takes") == 1


def test_reply_is_bounded_by_bytes_and_the_rest_stays(make_box):
    box = make_box(max_body=1024 * 1024)
    given = [box.one(body=b"b" * (1024 * 1024 - 100)) for _ in range(6)]

    first = box.take(100)
    assert 4 <= len(first) <= 5
    assert [lease.id for lease in first + box.take(100)] == given


def test_records_below_32_kib_are_read_until_4_mib_are_full_and_no_further(box):
    box.send(300, body=b"b" * 31_000)
    box.redis.config_resetstat()

    first = box.take(1000)

    assert [len(taken) for taken in (first, box.take(1000), box.take(1000))] == [136, 136, 28]
    assert box.redis.info("commandstats")["cmdstat_hmget"]["calls"] <= 18


def test_thousand_expired_messages_in_one_take(box):
    given = box.send(1000, expires=1000)
    box.clock.advance(2)

    assert box.prepare(1000).ids == []
    assert set(box.order("dead")) == set(given)
    assert box.order() == []


def test_a_repeated_call_that_found_nothing_keeps_its_earlier_copy_from_taking(box):
    session = box.session()
    stuck = command(box, session)

    assert box.run(stuck.as_repeat()).ids == []
    after = box.state()
    assert box.run(stuck.as_repeat()).ids == []
    assert box.state() == after
    box.send(2)
    waiting = box.state()
    late = box.run(stuck)

    assert late.ids == []
    assert box.state() == waiting


def test_a_call_that_found_nothing_and_is_no_repetition_writes_nothing(box):
    box.send(1)
    box.ack(*box.take(1))
    before = box.state()

    assert box.run(command(box, box.session())).ids == []

    assert box.state() == before


def test_the_reply_says_whether_a_message_has_waited_for_an_event(box):
    waited = one_suspended(box)
    plain = box.one()
    assert box.run(command(box, box.session(), 1)).any_waited is False
    deliver(box, waited)
    session = box.session()

    for _ in range(2):  # a call that arrives twice
        batch = box.run(command(box, session, 1))
        assert (batch.ids, batch.any_waited) == ([waited], True)
        assert batch.credit == scripts.NO_CREDIT
    box.ack(*box.leases(batch))
    assert box.run(command(box, session, 1)).any_waited is False
    assert plain in box.order("prepare")
    assert "bodies" not in box.state()


def test_a_message_is_taken_at_the_end_of_its_time_limit(box):
    id = one_suspended(box, limit_ms=1000)
    batch = box.run(command(box, box.session(), 1))
    assert (batch.ids, batch.wait_us) == ([], 1_000_000)

    box.clock.advance(1)

    batch = box.run(command(box, box.session(), 1))
    assert (batch.ids, batch.any_waited) == ([id], True)


@pytest.mark.parametrize(
    ("sends", "bytes_most"),
    [((300,), 4 * 15), ((40, 2, 60), 3 * 15), ((1,) * 30, 30 * 13), ((1, 1, 1, 80), 4 * 15)],
    ids=["a run that crosses 256 stamps", "three runs", "single sends", "few single sends"],
)
def test_a_session_keeps_members_as_runs_and_replays_them_all(box, sends, bytes_most):
    given = [id for count in sends for id in box.send(count)]
    session = box.session()
    first = box.run(command(box, session, len(given)))
    before = box.state()
    box.clock.advance(1)

    again = box.run(command(box, session, len(given)))

    kept = box.redis.hget(box.keys.slot, session.name)
    assert len(kept) <= len(b"1:1234567890:1234567890:1=") + bytes_most
    assert again.ids == first.ids == given
    assert box.state() == before
    assert [lease[:2] for lease in box.leases(again)] == [lease[:2] for lease in box.leases(first)]


def test_a_replayed_run_leaves_out_what_is_no_longer_the_callers(box):
    given = box.send(20)
    session = box.session()
    leases = box.leases(box.run(command(box, session, 20)))
    box.ack(leases[7])

    again = box.run(command(box, session, 20))

    assert again.ids == [*given[:7], b"", *given[8:]]


def test_the_answer_of_a_client_before_runs_is_replayed(box):
    given = box.send(9)
    session = box.session()
    first = box.run(command(box, session, 9))
    members = b"".join(map(member_of, given))
    box.redis.hset(
        box.keys.slot, session.name, b"1:%d:%d:1:" % (box.clock.now_ms // 1000, first.deadline_s)
        + members,
    )  # fmt: skip

    assert box.run(command(box, session, 9)).ids == given


def test_receipts_are_exact_for_every_delivery_number(box):
    for _ in range(3):
        given = box.send(1000)
        leases = box.take(1000)

        kept = box.state()["prepare"]
        assert [kept[id] for id in given] == [lease.receipt for lease in leases]
        assert box.ack(*leases) == "1" * 1000
