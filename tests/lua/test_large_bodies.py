"""Large bodies: written with their records, removed with them, and with nothing else."""

from __future__ import annotations

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.topic.scripts import slot_delete
from tests.lua.box import GONE, Box, ordered, reference, stored
from tests.lua.furnished import QUERY

BODY = b"a large body"


def name_of(id: bytes) -> bytes:
    return member_of(id) + b"8 random"


def bodies(box: Box) -> dict[bytes, bytes]:
    return box.redis.hgetall(box.keys.bodies)


def large_record(number: int, **options: int) -> bytes:
    whole = stored(number, reference(BODY), priority=100, **options)
    return bytes((whole[0] | 8,)) + whole[1:]


@pytest.mark.parametrize("known", [True, False], ids=["head and bodies", "each with its head"])
def test_send_stores_records_that_refer_to_bodies_and_counts_them(box, known):
    ids = box.ids(2)
    box.one()
    before = box.state()
    session = box.session(known)

    reply = box.twice(lambda: box.send_command(ids, session, large=BODY))

    assert reply == scripts.SendReply(3, "")
    assert box.changed(before) == {
        ("slot", "accepted"): "3",
        ("slot", "order"): "3",
        ("slot", "large"): "2",
        ("bodies", name_of(ids[0])): BODY,
        ("bodies", name_of(ids[1])): BODY,
        **{("store", id): ordered(100, n) for n, id in enumerate(ids, 2)},
        **{("records", id): large_record(n) for n, id in enumerate(ids, 2)},
    }


def test_take_hands_over_the_reference_and_says_so(box):
    plain, large = box.one(), box.one(large=BODY)

    batch = box.prepare(5)

    assert batch.ids == [plain, large]
    assert batch.records == [stored(1, priority=100), large_record(2)]
    assert (batch.any_large, batch.expired) == (True, 0)


def test_take_of_one_and_the_same_take_again_say_so_too(box):
    box.one(large=BODY)
    session = box.session()
    take = consumer_scripts.prepare(box.keys, session, 1, 30_000, False)

    first, again = box.run(take), box.run(take.as_repeat())

    assert first.records == again.records == [large_record(1)]
    assert first.any_large
    assert again.any_large
    box.ack(*box.leases(first))
    box.one()
    assert not box.prepare().any_large


@pytest.mark.parametrize("count", [1, 3])
def test_ack_removes_the_bodies_with_the_records(box, count):
    kept = box.one(large=BODY)
    box.send(count, large=BODY, priority=200)
    leases = box.take(count)
    session = box.session()

    box.twice(lambda: box.ack_command(leases, session))

    assert bodies(box) == {name_of(kept): BODY}
    assert box.counter("large") == 1


def test_the_last_body_goes_with_the_count_and_whatever_was_left_behind(box):
    box.one(large=BODY)
    box.redis.hset(box.keys.bodies, name_of(box.ids()[0]), b"of a send that failed")

    box.ack(box.take_one())

    assert "bodies" not in box.state()
    assert "large" not in box.state()["slot"]


def test_an_ack_of_small_messages_leaves_the_bodies_of_others(box):
    large, small = box.one(large=BODY), box.one(priority=200)
    lease = box.take_one()
    before = box.state()

    assert (lease.id, box.ack(lease)) == (small, "1")

    assert box.changed(before) == {
        ("slot", "settled"): "1",
        ("prepare", small): GONE,
        ("records", small): GONE,
    }
    assert name_of(large) in bodies(box)


def test_messages_keep_their_bodies_while_they_fail_die_and_are_redriven(box):
    id = box.one(large=BODY)
    box.nack(box.take_one())
    box.release(box.take_one())
    box.reject(box.take_one())
    assert box.order("dead") == [id]
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [id]))

    assert box.take_one().record == large_record(1)
    assert bodies(box) == {name_of(id): BODY}


def test_cancel_purge_and_slot_delete_remove_bodies(box):
    a, b, c, d = box.send(4, large=BODY)
    box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), a))
    assert set(bodies(box)) == {name_of(id) for id in (b, c, d)}

    box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "store", ids=[c]))
    assert set(bodies(box)) == {name_of(id) for id in (b, d)}
    assert box.counter("large") == 2

    box.run(slot_delete(box.keys, box.created, 2))
    assert box.state() == {}


@pytest.mark.parametrize(("on_expire", "left"), [("drop", False), ("dead", True)])
def test_an_expired_message_takes_its_body_along_only_if_it_is_dropped(
    make_box, on_expire: str, left: bool
):
    box = make_box(on_expire=on_expire)
    box.one(large=BODY, expires=500)
    box.clock.advance(1)

    assert box.prepare().ids == []

    assert bool(bodies(box)) is left
    assert box.counter("large") == left


def test_dead_letters_past_their_retention_take_their_bodies_along(make_box):
    box = make_box(dead_retention_ms=60_000)
    for _ in range(2):
        box.one(large=BODY)
        box.reject(box.take_one())
        box.clock.advance(61)
    assert len(bodies(box)) == 1, "the first went as the second died"

    assert box.run(topic_scripts.tidy(box.keys)).dropped == 1

    assert bodies(box) == {}


def test_what_drop_lowest_drops_takes_its_body_along(make_box):
    box = make_box(max_length=2, overflow="drop_lowest")
    low, high = box.one(large=BODY, priority=20), box.one(large=BODY, priority=30)

    new = box.one(large=BODY, priority=40)

    assert set(bodies(box)) == {name_of(high), name_of(new)} - {name_of(low)}
    assert box.counter("large") == 2


def test_a_query_settles_bodies_too(box):
    ids = box.send(3, large=BODY)
    box.run(queries_scripts.query_take(box.keys, QUERY, 0, 3))

    box.run(queries_scripts.query_settle(box.handle, box.keys, QUERY, 0, 2, 10))

    assert set(bodies(box)) == {name_of(ids[2])}
    assert box.counter("large") == 1


def test_a_duplicate_adds_no_body_and_changes_none(box):
    small, large = box.one(kept=True), box.one(kept=True, large=BODY)
    settled = box.one(kept=True, priority=200)
    box.ack(box.take_one())
    before = box.state()

    for id in (small, large, settled):
        command = box.send_command([id], large=b"another")
        command.write = (*command.write[:2], member_of(id) + b"8 others", b"another")
        command.args[-1] = reference(b"another", b"8 others")
        assert box.run(command).codes == "d"

    assert box.changed(before) == {}


def test_a_batch_of_new_ones_and_duplicates_counts_the_new_ones(box):
    (old,) = box.send(1, kept=True, large=BODY)
    new = box.ids(2, kept=True)

    reply = box.run(box.send_command([new[0], old, new[1]], large=BODY))

    assert reply.codes == "sds"
    assert set(bodies(box)) == {name_of(id) for id in (old, *new)}
    assert box.counter("large") == 3


def test_a_send_repeated_after_its_message_was_settled_leaves_no_body(box):
    box.one()
    session = box.session()
    command = box.send_command(box.ids(), session, priority=200, large=BODY)
    box.run(command)
    box.ack(box.take_one())
    before = box.state()

    assert box.run(command).codes == ""

    assert box.state() == before


def test_a_send_that_is_refused_as_full_leaves_no_body(make_box):
    box = make_box(max_length=1)
    box.one()
    before = box.state()

    assert box.run(box.send_command(box.ids(), large=BODY)).codes == "F"

    assert box.state() == before


def test_a_copy_that_comes_late_leaves_no_body_but_those_of_waiting_messages(box):
    settled, waiting = box.ids(2)
    session = box.session()
    copies = []
    for id in (settled, waiting):
        copies.append(box.send_command([id], session, large=BODY))
        box.run(copies[-1])
        session.count_to(session.number + 1)
    box.run(box.send_command(box.ids(), session))  # its caller has gone on
    box.ack(box.take_one())
    before = box.state()

    for copy in copies:
        with pytest.raises(redis.ResponseError, match="RMQLATE"):
            box.run(copy)

    assert box.state() == before
    assert bodies(box) == {name_of(waiting): BODY}


def test_a_send_to_a_topic_created_anew_leaves_no_body(box):
    command = box.send_command(box.ids(), large=BODY)
    command.args[4] = b"1"
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        box.run(command)

    assert box.state() == before


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("uniform", [True, False])
def test_a_record_whose_body_was_not_written_is_refused(box, count, uniform):
    ids = box.ids(count)
    command = box.send_command(ids, large=BODY)
    if uniform:
        head, rest = large_record(1)[:4], reference(BODY)
        command = scripts.send_uniform(
            box.handle, box.keys, box.session(), head, ids, [rest] * count
        )
    command.write = ()
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQBODY"):
        box.run(command)

    assert box.state() == before


def test_a_uniform_send_of_large_bodies_is_as_any_other(box):
    ids = box.ids(3)
    head, rests = large_record(1)[:4], [reference(BODY)] * 3
    written = dict.fromkeys(range(3), BODY)

    box.run(scripts.send_uniform(box.handle, box.keys, box.session(), head, ids, rests, written))

    assert [lease.record for lease in box.take(3)] == [large_record(n) for n in (1, 2, 3)]
    assert box.counter("large") == 3


def test_large_bodies_count_towards_the_16_mib_of_a_take(make_box):
    box = make_box(max_body=10 * 1024 * 1024)
    ids = box.ids(3)
    command = box.send_command(ids, large=BODY)
    claimed = reference(BODY)[4:]
    for at in (-1, -3, -5):
        command.args[at] = (10 * 1024 * 1024).to_bytes(4, "big") + claimed  # 10 MiB each
    box.run(command)

    assert box.prepare(3).ids == ids[:2]
