"""merge.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.messages import scripts as messages_scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.core import record
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts
from tests.lua.box import GONE, merging, stored, timed


def piece(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def turn(box) -> str:
    return str(box.clock.now_ms // box.settings.dedup_window_ms)


def test_first_arrival_opens_a_window_and_waits_for_its_time_range(box):
    before = box.state()
    (id,) = box.ids()

    reply = box.run(box.merge_command(id, b"one", range_ms=5000))

    due = box.clock.now_ms + 5000
    assert reply == scripts.SendReply(1, "s")
    assert box.changed(before, replay=True) == {
        ("slot", "accepted"): "1",
        ("store", id): timed(due, False),
        ("records", id): stored(1, b"one", due=due, key=b"key"),
        ("merge", b"key"): id + b"%d" % box.clock.now_ms,
        ("replay:session1",): b"1:1:s:",
    }


def test_second_arrival_merges_keeps_the_time_and_names_the_waiting_id(box):
    waiting, _ = box.merge(body=b"one")
    box.clock.advance(2)
    before = box.state()
    (id,) = box.ids(kept=True)

    reply = box.run(box.merge_command(id, b"two"))

    assert reply == scripts.SendReply(1, "m", waiting.member)
    assert box.changed(before) == {
        ("slot", "merged"): "1",
        ("slot", "settled_turn"): turn(box),
        (box.settled_set(), id): True,
    }


@pytest.mark.parametrize("mode", ["first", "last", "collect"])
def test_stored_and_merged_sent_again_add_nothing(box, mode):
    first, second = box.ids(2, kept=True)
    for id, letter in ((first, "s"), (second, "m")):
        assert box.run(box.merge_command(id, b"b", mode=mode)).codes == letter
        before = box.state()
        box.clock.advance(0.25)
        assert box.run(box.merge_command(id, b"b", mode=mode)) == scripts.SendReply(1, "d")
        assert box.state() == before


def test_last_replaces_the_body_and_nothing_else(box):
    waiting, _ = box.merge(body=b"a longer first body", mode="last", expires=100)
    due = box.clock.now_ms + 5000
    box.clock.advance(1)
    before = box.state()

    box.merge(body=b"new", mode="last", expires=999, priority=40)

    assert box.changed(before) == {
        ("slot", "merged"): "1",
        ("records", waiting): stored(1, b"new", due=due, expires=due + 100, key=b"key"),
    }


def test_last_of_another_codec_brings_its_codec_along(box):
    waiting, _ = box.merge(body=b"json", mode="last", codec=1)
    due = box.clock.now_ms + 5000

    box.merge(body=b"pack", mode="last", codec=2)

    assert box.state()["records"][waiting] == stored(1, b"pack", due=due, key=b"key", codec=2)


def test_collect_keeps_every_body_in_order(box):
    waiting, _ = box.merge(body=b"one", mode="collect")
    box.merge(body=b"", mode="collect")
    box.merge(body=bytes(range(256)), mode="collect")

    found = record.read(box.state()["records"][waiting])

    assert record.collected_bodies(found.body) == [b"one", b"", bytes(range(256))]


def test_full_collection_is_closed_and_the_newcomer_opens_the_next(box):
    full, _ = box.merge(body=b"x" * 100, mode="collect", most=200)
    before = box.state()

    second, reply = box.merge(body=b"y" * 100, mode="collect", most=200)

    assert reply == scripts.SendReply(2, "s")
    now = box.clock.now_ms
    assert box.changed(before) == {
        ("slot", "accepted"): "2",
        ("store", second): timed(now + 5000, False, 1),
        ("records", second): stored(
            2, piece(b"y" * 100), due=now + 5000, key=b"key", collects=True
        ),
        ("merge", b"key"): second + b"%d" % now,
    }
    assert box.merge(body=b"z", mode="collect", most=200)[1].into == second.member
    box.clock.advance(5)
    assert box.drained() == [full, second]
    assert box.state().get("merge") is None


def test_collection_never_grows_over_its_bound(box):
    for i in range(200):
        box.merge(body=b"b" * (i % 37), mode="collect", most=500)

    kept = box.state()["records"].values()
    assert all(len(one) <= 500 for one in kept)
    assert sum(len(record.collected_bodies(record.read(one).body)) for one in kept) == 200


@pytest.mark.parametrize(
    ("modes", "bodies"),
    [
        (("first", "collect"), [b"0", b"1"]),
        (("last", "collect"), [b"0", b"1"]),
        (("collect", "first"), [b"0"]),
        (("collect", "last"), [b"1"]),
        (("first", "collect", "last"), [b"2"]),
        (("first", "collect", "collect", "first"), [b"0", b"1", b"2"]),
    ],
)
def test_producers_of_different_modes_leave_a_body_that_can_be_read(box, modes, bodies):
    waiting = None
    for i, mode in enumerate(modes):
        id, reply = box.merge(body=b"%d" % i, mode=mode)
        waiting = waiting or id
        assert reply.codes == ("m" if i else "s")

    found = record.read(box.state()["records"][waiting])
    assert found.flags & record.COLLECTS
    assert record.collected_bodies(found.body) == bodies
    assert found.merge_key == "key"


def test_collecting_with_another_codec_opens_a_new_window(box):
    waiting, _ = box.merge(body=b"json", mode="collect", codec=1)

    other, reply = box.merge(body=b"pack", mode="collect", codec=2)

    assert reply.codes == "s"
    records = box.state()["records"]
    assert record.collected_bodies(record.read(records[waiting]).body) == [b"json"]
    assert record.collected_bodies(record.read(records[other]).body) == [b"pack"]


def test_extend_restarts_the_clock_at_every_merge_up_to_max_wait(box):
    opened = box.clock.now_ms
    waiting, _ = box.merge(range_ms=5000, max_wait=12_000)
    assert box.score(waiting) == timed(opened + 5000, False)

    for seconds, due in ((4, 9000), (4, 12_000), (3, 12_000)):
        box.clock.advance(seconds)
        _, reply = box.merge(range_ms=5000, max_wait=12_000)
        assert reply.into == waiting.member
        assert box.score(waiting) == timed(opened + due, False)
        assert record.read(box.state()["records"][waiting]).due_ms == opened + due


def test_extend_never_makes_a_message_due_sooner(box):
    waiting, _ = box.merge(range_ms=60_000)
    score = box.score(waiting)

    box.merge(range_ms=1000, max_wait=30_000)

    assert box.score(waiting) == score


def test_extend_carries_the_expiry_along(box):
    waiting, _ = box.merge(range_ms=5000, max_wait=60_000, expires=1000)
    box.clock.advance(4)
    box.merge(body=b"last", mode="last", range_ms=5000, max_wait=60_000)

    due = box.clock.now_ms + 5000
    assert box.state()["records"][waiting] == stored(
        1, b"last", due=due, expires=due + 1000, key=b"key"
    )
    box.clock.advance(5.5)
    assert box.take_one().id == waiting


def test_once_taken_the_next_arrival_opens_a_new_window(box):
    first, _ = box.merge()
    box.clock.advance(5)
    lease = box.take_one()
    assert lease.id == first
    assert "merge" not in box.state()

    second, reply = box.merge()

    assert reply.codes == "s"
    assert box.state()["merge"] == {b"key": second + b"%d" % box.clock.now_ms}


def test_failed_message_that_waits_again_swallows_no_newcomer(box):
    box.merge()
    box.clock.advance(5)
    assert box.nack(box.take_one(), wait_ms=60_000) == "r"

    second, reply = box.merge()

    assert reply.codes == "s"
    assert second in box.order()


def test_taking_the_older_of_two_windows_leaves_the_index_to_the_newer(box):
    older, _ = box.merge(body=b"x" * 90, mode="collect", most=150)
    box.clock.advance(1)
    newer, _ = box.merge(body=b"x" * 90, mode="collect", most=150)
    box.clock.advance(4)

    assert box.take_one().id == older

    assert box.state()["merge"][b"key"][:16] == newer


def test_due_message_that_nobody_took_yet_still_merges(box):
    waiting, _ = box.merge()
    box.clock.advance(60)

    assert box.merge()[1].into == waiting.member


def test_due_message_that_joined_its_priority_still_merges(box):
    waiting, _ = box.merge(priority=50, mode="last")
    high = box.one(priority=60)
    box.clock.advance(5)
    assert box.take_one().id == high
    assert 50 < box.score(waiting) < 51

    _, reply = box.merge(body=b"new", mode="last", max_wait=60_000)

    assert reply.into == waiting.member
    assert 50 < box.score(waiting) < 51
    assert box.take_one().record.endswith(b"new")


def test_nothing_merges_into_an_expired_message(box):
    expired, _ = box.merge(range_ms=1000, expires=1000)
    box.clock.advance(3)

    fresh, reply = box.merge(range_ms=1000, expires=1000)

    assert reply.codes == "s"
    box.clock.advance(1)
    assert box.drained() == [fresh]
    assert box.order("dead") == [expired]


def test_keys_of_any_bytes_are_kept_apart(box):
    keys = [b"", b"\0", b"\0\0", bytes(range(256)), b"\xff" * 200, "ключ".encode(), b"a:b{c}"]
    ids = {key: box.merge(key=key)[0].member for key in keys}

    assert {key: box.merge(key=key)[1].into for key in keys} == ids
    assert set(box.state()["merge"]) == set(keys)
    box.clock.advance(5)
    assert len(box.take(100)) == len(keys)
    assert "merge" not in box.state()


def test_full_slot_refuses_a_new_window_and_still_merges(make_box):
    box = make_box(max_length=1)
    waiting, _ = box.merge()
    before = box.state()

    assert box.merge(key=b"other")[1] == scripts.SendReply(0, "F")
    assert box.state() == before
    assert box.merge()[1].into == waiting.member


def test_merged_id_is_a_duplicate_for_send_as_well(box):
    box.merge()
    (id,) = box.ids(kept=True)
    assert box.run(box.merge_command(id)).codes == "m"

    assert box.run(box.send_command([id])).codes == "d"


def test_merge_sent_again_in_its_session_gives_the_first_answer(box):
    waiting, _ = box.merge(mode="collect")
    (id,), session = box.ids(), box.session()
    command = box.merge_command(id, b"once", mode="collect", session=session)

    assert box.twice(lambda: command) == scripts.SendReply(1, "m", waiting.member)
    assert box.state()["records"][waiting].count(b"once") == 1


def test_merge_wakes_who_waits_for_something_sooner(box):
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)
    box.merge(range_ms=5000)
    assert box.counter("waiting") == 0

    waits = box.clock.now_ms + 300_000
    box.redis.hset(box.keys.slot, "waiting", waits)
    box.merge(range_ms=6000, key=b"later")
    assert box.counter("waiting") == waits
    box.merge(range_ms=4000, key=b"sooner")
    assert box.counter("waiting") == 0


def test_message_is_stored_if_the_waiting_record_is_missing_or_cut_short(box):
    for kept in (None, b"", b"1234567", 16):
        key = b"key %r" % kept
        waiting, _ = box.merge(key=key)
        box.break_record(waiting, box.state()["records"][waiting][:16] if kept == 16 else kept)

        id, reply = box.merge(mode="last", key=key)

        assert (reply.codes, box.state()["merge"][key].startswith(id)) == ("s", True)
        assert box.merge(mode="last", key=key)[1].codes == "m"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        *(({"range_ms": range_ms}, "time_range") for range_ms in (0, 10**12)),
        *(({"priority": priority}, "priority") for priority in (1, 16, 1_048_576)),
    ],
)
def test_time_range_and_priority_outside_their_limits_are_refused(box, options, field):
    before = box.state()

    with pytest.raises(Exception, match=f"RMQARG {field}"):
        box.merge(**options)

    assert box.state() == before


@pytest.mark.parametrize(
    ("text", "field"),
    [
        *((f"first {bad} 100 ", "options") for bad in ("", "-1", "1.5", "nan", "0x1", "1e3")),
        *((f"first 0 {bad} ", "options") for bad in ("", "-1", "+1", "inf", " 1", "1\0")),
        *((f"{bad} 0 100 ", "options") for bad in ("", "FIRST", "first\0", "1")),
        ("first 0 100", "options"), ("first 1000000000000 100 ", "max_wait"),
        ("first 0 0 ", "max_bytes"), ("first 0 16777217 ", "max_bytes"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_read_are_refused(box, text, field):
    (id,) = box.ids()
    command, before = box.merge_command(id), box.state()
    command.args[5] = command.args[5][:4] + text.encode() + id.member

    with pytest.raises(Exception, match=f"RMQARG {field}"):
        box.run(command)

    assert box.state() == before


def test_cancelled_window_is_gone_from_the_index(box):
    id, _ = box.merge()
    before = box.state()

    assert box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), id)) == "cancelled"

    assert box.changed(before)[("merge", b"key")] is GONE
    assert box.merge()[1].codes == "s"


@pytest.mark.parametrize("way", ["merge", "publish"])
def test_merge_into_a_full_slot_makes_room_as_a_delayed_send_does(make_box, way):
    box = make_box(max_length=3, overflow="drop_lowest")
    kept = box.send(2, priority=20)
    lowest = box.one(priority=17)
    (id,), now = box.ids(), box.clock.now_ms
    command = box.merge_command(id, range_ms=5000)
    if way == "publish":
        box.run(queries_scripts.stage_push(box.keys, "s", 0, 60_000, merging(id)))
    before = box.state()

    if way == "merge":
        assert box.run(command) == scripts.SendReply(4, "s")
    else:
        assert (
            box.run(queries_scripts.publish(box.handle, box.keys, box.session(), "s")).stored == 1
        )

    assert {k: v for k, v in box.changed(before).items() if k[0] != "stage:s"} == {
        ("slot", "accepted"): "4",
        ("slot", "dropped"): "1",
        ("store", lowest): GONE,
        ("records", lowest): GONE,
        ("store", id): timed(now + 5000, False),
        ("records", id): stored(4, due=now + 5000, key=b"key"),
        ("merge", b"key"): id + b"%d" % now,
    }
    before = box.state()
    command = box.merge_command(id, range_ms=5000)
    assert box.run(command).codes == "d"
    assert box.state() == before
    assert set(box.order()) == {*kept, id}


@pytest.mark.parametrize(("how", "due"), [("drop_lowest", 5000), ("reject", None)])
def test_merge_is_refused_where_the_slot_is_full_of_timed_messages_or_rejects(make_box, how, due):
    box = make_box(max_length=2, overflow=how)
    box.send(2, due=due)
    before = box.state()

    assert box.merge()[1] == scripts.SendReply(0, "F")

    assert box.state() == before


def test_room_for_a_merge_may_be_made_by_the_message_that_had_its_key(make_box):
    box = make_box(max_length=1, overflow="drop_lowest")
    due, _ = box.merge(range_ms=100, priority=40, mode="collect", body=b"x" * 50, most=60)
    box.clock.advance(1)
    box.redis.zadd(box.keys.store, {member_of(due): 40.5})  # as after it has joined its priority

    id, reply = box.merge(range_ms=5000, mode="collect", body=b"y" * 50, most=60)

    assert reply.codes == "s"
    assert box.order() == [id]
    assert box.state()["merge"][b"key"][:16] == id
