"""lib/scores/timed_score.lua through its scripts: equal due times go in the order of arrival."""

from __future__ import annotations

from random import Random

import pytest

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.producer import scripts
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE, handed_back, stored, timed

PLACES = 1024  # in one ms of one slot


def falling(box, count):
    """New ids, each smaller than the one before, so that order by id is not order of arrival."""
    return box.ids(count)[::-1]


def send(box, given, **options):
    assert box.run(box.send_command(given, **options)).codes == ""
    return given


def fill(box, *times):
    """Take the last place of each of these ms."""
    box.redis.zadd(box.keys.store, {b"full%d" % ms: timed(ms, False, PLACES - 1) for ms in times})


def test_equal_dues_go_by_arrival_in_one_send_and_across_sends(box):
    given = falling(box, 6)
    before = box.state()

    send(box, given[:3], due=1000)
    send(box, given[3:], due=1000)

    due = box.clock.now_ms + 1000
    assert box.changed(before) == {
        ("slot", "accepted"): "6",
        ("slot", "order"): "0",
        **{("store", id): timed(due, False, n) for n, id in enumerate(given)},
        **{("records", id): stored(n + 1, due=due) for n, id in enumerate(given)},
    }
    before = box.state()
    assert box.run(box.send_command(given, due=1000)).codes == "d" * 6
    assert box.state() == before
    box.clock.advance(1)
    assert [lease.id for lease in box.take(6)] == given


def test_times_given_in_any_order_are_told_apart_in_one_send(box):
    base = box.clock.now_ms + 5000
    dues = [base + ms for ms in (2, 0, 1, 0, 2, 1, 0)]
    given = falling(box, len(dues))
    parts = [part for due in dues for part in box.part(due=due)]

    box.run(scripts.send(box.handle, box.keys, box.session(), given, parts))

    box.clock.advance(10)
    wanted = sorted(range(len(dues)), key=lambda n: (dues[n], n))
    assert box.drained() == [given[n] for n in wanted]


def test_equal_dues_that_join_their_priority_go_by_arrival(box):
    given = falling(box, 5)
    for id in given:
        send(box, [id], due=box.clock.now_ms + 5000, priority=50)
    box.clock.advance(10)

    assert box.drained() == given


@pytest.mark.parametrize("batch", [1000, 1])
def test_a_full_ms_goes_on_in_the_next_one(box, batch):
    due = box.clock.now_ms + 5000
    given = falling(box, 3 * PLACES + 10 if batch > 1 else PLACES + 3)
    for at in range(0, len(given), 1000):
        page = given[at : at + 1000]
        for step in range(0, len(page), batch):
            send(box, page[step : step + batch], due=due)

    scores = [box.score(id) for id in given]
    assert scores == [timed(due + n // PLACES, False, n % PLACES) for n in range(len(given))]
    box.clock.advance(6)
    taken = []
    while batch_taken := box.take(1000):
        taken += [lease.id for lease in batch_taken]
    assert taken == given


@pytest.mark.slow
def test_one_hundred_thousand_of_one_moment_are_due_within_98_ms_and_in_order(box):
    due = box.clock.now_ms + 5000
    given = falling(box, 100_000)
    for at in range(0, len(given), 1000):
        send(box, given[at : at + 1000], due=due)

    assert box.score(given[-1]) < due + 98
    box.clock.advance(6)
    taken = []
    while batch := box.take(1000):
        taken += [lease.id for lease in batch]
    assert taken == given


def test_a_moment_for_which_many_wait_costs_a_send_some_20_looks(box):
    due = box.clock.now_ms + 5000
    fill(box, *range(due, due + 700))
    box.redis.config_resetstat()

    (id,) = send(box, box.ids(), due=due)

    assert box.score(id) == timed(due + 700, False)
    assert box.redis.info("commandstats")["cmdstat_zrevrangebyscore"]["calls"] <= 21


@pytest.mark.parametrize("seed", range(3))
def test_equal_dues_go_by_arrival_whatever_else_fills_the_ms_behind_them(box, seed):
    random = Random(seed)
    due = box.clock.now_ms + 5000
    fill(box, *range(due, due + 4), *(due + random.randrange(200) for _ in range(200)))
    scores = []
    for id in falling(box, 60):
        send(box, [id], due=due)
        scores.append(box.score(id))
        fill(box, int(scores[-1]), due + random.randrange(200))

    assert scores == sorted(set(scores))


def test_beyond_a_thousand_full_ms_messages_share_the_last_place_and_go_by_id(box):
    due = box.clock.now_ms + 5000
    fill(box, *range(due, due + 1000))  # as after a million sends

    given = falling(box, 3)
    send(box, given, due=due)

    assert {box.score(id) for id in given} == {timed(due + 999, False, PLACES - 1)}


def test_messages_that_wait_for_a_retry_go_in_the_order_in_which_they_failed(box):
    given = send(box, falling(box, 3), due=box.clock.now_ms)
    leases = box.take(3)
    assert [lease.id for lease in leases] == given
    before = box.state()

    assert box.nack(*leases, wait_ms=1000) == "rrr"

    wait = box.clock.now_ms + 1000
    seen = box.changed(before)
    assert {place: v for place, v in seen.items() if place[0] in ("store", "prepare")} == {
        **{("prepare", id): GONE for id in given},
        **{("store", id): timed(wait, True, n) for n, id in enumerate(given)},
    }
    box.clock.advance(2)
    again = box.take(3)
    assert [lease.id for lease in again] == given
    assert {lease.left for lease in again} == {15}


def test_snoozed_messages_keep_their_order(box):
    given = send(box, falling(box, 3))
    box.release(*box.take(3), wait_ms=1000)
    box.clock.advance(2)

    again = box.take(3)

    assert [lease.id for lease in again] == given
    assert {lease.left for lease in again} == {16}


def test_extended_then_released_message_comes_before_those_behind_it(box):
    given = send(box, falling(box, 3), due=box.clock.now_ms)
    first = box.take(3, lease_ms=1000, ordered=True)[0]
    box.run(box.extend_command([first], box.session(), 60_000))
    box.clock.advance(5)
    box.rollback()
    (first_now,) = [score for id, score in box.state()["prepare"].items() if id == first.id]

    box.release(first._replace(receipt=first_now))

    assert [box.score(id) for id in given] == [handed_back(n) for n in (-2, -1, 0)]
    taken = []
    while batch := box.take(1, ordered=True):
        taken += [lease.id for lease in batch]
        box.ack(*batch)
    assert taken == given


def test_messages_without_a_priority_that_are_redriven_keep_the_order_given(box):
    given = send(box, falling(box, 3), due=box.clock.now_ms)
    box.reject(*box.take(3))

    assert (
        box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), given)) == "111"
    )

    assert [lease.id for lease in box.take(3)] == given


def test_message_that_is_moved_to_a_moment_goes_behind_those_that_are_there(box):
    due = box.clock.now_ms + 5000
    moved = send(box, box.ids(1), due=60_000)
    given = send(box, box.ids(2), due=due)

    for _ in range(2):  # the second run changes nothing
        box.run(messages_scripts.reschedule(box.handle, box.keys, box.session(), moved[0], due))
        assert box.score(moved[0]) == timed(due, False, 2)

    box.run(messages_scripts.set_priority(box.keys, box.session(), given[0], 70))
    assert box.score(given[0]) == timed(due, True, 0)


def test_handed_back_message_is_due_when_it_was_for_who_looks(box):
    id = box.one(due=1000)
    box.clock.advance(5)
    box.release(box.take_one())

    seen = box.stats()
    assert (seen["due"], seen["later"], seen["priority"], seen["late_ms"]) == (1, 0, 0, 4000)
    assert box.run(consumer_scripts.next_ready([box.keys], False)) == [0]
    assert [
        found.id for found in box.run(topic_scripts.peek(box.keys, "store", low="1048576"))
    ] == [id]
    assert box.run(messages_scripts.set_priority(box.keys, box.session(), id, 50)) == "changed"
    assert box.stats()["priority"] == 1


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_due_messages_that_join_their_priority_are_paged_by_the_hundred(box, limit):
    given = send(box, box.ids(1000), due=1000, priority=50)
    box.clock.advance(2)
    box.redis.config_resetstat()

    taken = box.take(limit)

    calls = box.redis.info("commandstats")["cmdstat_zrangebyscore"]["calls"]
    assert calls <= 12
    assert [lease.id for lease in taken] == given[:limit]
