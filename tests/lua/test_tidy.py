"""tidy.lua on a real server, and that nothing large is left to Redis' own expiry."""

from __future__ import annotations

import pytest

import rmq
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.retry import Levels
from rmq.kernel.topic import scripts
from tests.lua import group
from tests.lua.box import GONE

HOUR_MS = 3_600_000


def dead_letters(box, count):
    given = box.send(count)
    assert box.reject(*box.take(count)) == "d" * count
    return given


def tidy(box, limit=100):
    return box.run(scripts.tidy(box.keys, limit)).dropped


def test_dead_letters_past_their_retention_are_dropped_and_counted(make_box):
    box = make_box(dead_retention_ms=HOUR_MS)
    old = dead_letters(box, 3)
    box.clock.advance(1)
    young = dead_letters(box, 2)
    box.clock.advance(HOUR_MS / 1000 - 1)
    before = box.state()

    assert tidy(box) == 3
    assert box.changed(before) == {
        ("slot", "dead_dropped"): "3",
        **{(place, id): GONE for place in ("dead", "records", "failures") for id in old},
    }
    before = box.state()
    assert tidy(box) == 0
    assert box.state() == before
    assert set(box.order("dead")) == set(young)


def test_a_call_drops_no_more_than_its_limit(make_box):
    box = make_box(dead_retention_ms=HOUR_MS)
    dead_letters(box, 5)
    box.clock.advance(HOUR_MS / 1000)

    assert [tidy(box, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert box.counter("dead_dropped") == 5


def test_without_a_retention_every_dead_letter_stays(box):
    dead_letters(box, 2)
    box.clock.advance(10 * 365 * 86_400)
    before = box.state()

    assert tidy(box) == 0
    after = {k: v for k, v in box.state().items() if not k.startswith("settled")}
    assert after == {k: v for k, v in before.items() if not k.startswith("replay")}


def settle(box, count=1):
    ids = box.send(count, kept=True)
    assert box.ack(*box.take(count)) == "1" * count
    return ids


def remembered(box):
    state = box.state()
    return state.get("settled0", set()) | state.get("settled1", set())


def test_settled_ids_are_let_go_once_their_windows_have_passed(box):
    first = settle(box, 2)
    box.clock.advance(60)
    second = settle(box, 2)

    kept = []
    for _ in range(4):
        before = box.state()
        assert tidy(box) == 0
        kept.append(remembered(box))
        after = box.state()
        assert {k for k, v in before.items() if after.get(k) != v} <= {"settled0", "settled1"}
        assert tidy(box) == 0
        assert box.state() == after
        box.clock.advance(60)

    assert kept == [{*first, *second}, set(second), set(), set()]
    assert box.run(box.send_command(second)).codes == ""


def test_a_repeat_is_told_for_as_long_as_before_whoever_tidies(box):
    ids = settle(box)
    for advance in (0, 60):
        box.clock.advance(advance)
        tidy(box)
        assert box.run(box.send_command(ids)).codes == "d"


def test_no_settled_id_is_left_to_the_expiry_of_redis(box):
    for _ in range(3):
        settle(box)
        box.clock.advance(60)
        settled = [key for key in (box.keys.settled0, box.keys.settled1) if box.redis.exists(key)]
        assert {box.redis.pttl(key) for key in settled} == {-1}


def test_large_sets_are_freed_beside_the_main_thread(box):
    settle(box)
    (key,) = [key for key in (box.keys.settled0, box.keys.settled1) if box.redis.exists(key)]
    box.redis.sadd(key, *[b"%016d" % n for n in range(20_000)])
    box.clock.advance(120)
    box.redis.config_resetstat()

    tidy(box)

    assert not box.redis.exists(key)
    stats = box.redis.info("commandstats")
    assert stats["cmdstat_unlink"]["calls"] == 1
    assert "cmdstat_del" not in stats


@pytest.mark.parametrize("ahead_s", [61, 119, 120, 180, 86_400, 86_460])
@pytest.mark.fault("F21")
def test_turns_follow_a_clock_that_was_ahead_and_nothing_is_forgotten_early(box, ahead_s):
    box.clock.advance(ahead_s)
    during = settle(box)
    box.clock.advance(-ahead_s)

    for _ in range(2):  # known for a window after the clock is right again, however far it was
        box.clock.advance(29)
        settle(box)
        assert box.run(box.send_command(during)).codes == "d"

    sizes = []
    for _ in range(40):
        settle(box, 10)
        box.clock.advance(30)
        sizes.append(len(remembered(box)))
    assert max(sizes[10:]) <= 40  # two windows, and not all that came since
    assert box.run(box.send_command(during)).codes == ""


def delete_by_hand(box, *ids):
    """Delete messages as a person might, with redis-cli."""
    members = [member_of(id) for id in ids]
    for key in (box.keys.store, box.keys.prepare):
        box.redis.zrem(key, *members)
    box.redis.hdel(box.keys.records, *members)


@pytest.mark.parametrize("is_taken", [True, False])
def test_ordered_group_goes_on_after_its_message_was_deleted_by_hand(make_box, is_taken):
    box = group.grouped(make_box)
    first, *others = group.send(box, *"aaa")
    if is_taken:
        box.take(1)
    delete_by_hand(box, first)
    assert box.take(1) == []

    tidy(box)

    assert group.drained(box) == others
    group.nothing_left(box)


def test_group_of_several_goes_on_after_all_that_were_out_were_deleted_by_hand(make_box):
    box = group.grouped(make_box, rmq.Groups(order=False, concurrency=3))
    ids = group.send(box, *"aaaaaaa")
    box.take(1)
    delete_by_hand(box, *ids[:3])

    tidy(box)

    assert group.out(box) == ids[3:6]
    assert group.drained(box) == ids[3:]
    group.nothing_left(box)


def test_held_messages_that_were_deleted_by_hand_are_passed_over(make_box):
    box = group.grouped(make_box, rmq.Groups(order=False, concurrency=1))
    ids = group.send(box, *"aaaa")
    delete_by_hand(box, ids[1], ids[2])

    tidy(box)

    group.check(box)
    assert group.drained(box) == [ids[0], ids[3]]


def test_entry_is_gone_with_the_last_message_that_was_deleted_by_hand(make_box):
    box = group.grouped(make_box)
    names = [f"g{n}" for n in range(500)]
    ids = list[bytes]()
    for at in range(0, 500, 250):
        ids += group.send(box, *names[at : at + 250])
    delete_by_hand(box, *ids)

    calls = 0
    while any(name[0] == "/" for name in box.state()["slot"]):
        tidy(box)
        calls += 1

    assert 3 <= calls <= 20


def test_tidy_changes_nothing_of_groups_that_are_well(make_box):
    box = group.grouped(make_box, retry=Levels((1.0,)))
    group.send(box, *"aabbcc", None)
    box.nack(*box.take(2))
    box.take(1)
    group.pause(box, "b")
    before = group.check(box)

    tidy(box)

    assert box.changed(before) == {}
