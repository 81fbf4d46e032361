"""redrive_send.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.features.dead_letters.scripts import Arrival
from rmq.kernel.topic import scripts
from tests.lua.box import Box, stored, timed
from tests.lua.moving import ANOTHER, arrival, bury, entry, hold, send, settle

ARRIVED = 9e15
HOUR_S = 3600


def test_a_letter_is_stored_and_noted_under_its_token(box: Box) -> None:
    (id,) = box.ids()
    before = box.state()

    assert send(box, arrival(box, id, priority=50, body=b"b")) == "s"

    changed = box.changed(before)
    assert changed["records", id] == stored(1, priority=50, body=b"b")
    assert box.redis.zscore(box.keys.arrivals, entry(id)) == ARRIVED + box.clock.now_ms // 1000
    assert box.redis.ttl(box.keys.arrivals) == 30 * 86_400
    assert box.take_one().left == 16


def test_a_second_time_stores_nothing_though_the_message_is_settled(box: Box) -> None:
    (id,) = box.ids()
    assert send(box, arrival(box, id)) == "s"
    box.ack(box.take_one())
    before = box.state()

    assert send(box, arrival(box, id)) == "s"

    assert box.changed(before) == {}


def test_another_message_of_the_id_is_a_conflict_also_when_it_is_settled(box: Box) -> None:
    waiting, settled = box.one(kept=True), box.one(kept=True)
    leases = {lease.id: lease for lease in box.take(2)}
    box.ack(leases[settled])
    (fresh,) = box.ids()
    record = box.state()["records"][waiting]

    letters = send(box, *(arrival(box, id) for id in (waiting, fresh, settled)))

    assert letters == "csc"
    assert box.state()["records"][waiting] == record


def test_a_refusal_is_final_for_its_token_and_says_the_same_again(box: Box) -> None:
    paused, large, unreadable = box.ids(3)
    box.redis.hset(box.keys.slot, "paused_send", 1)
    asked = [
        arrival(box, paused), Arrival(entry(large), b"t", b""),
        Arrival(entry(unreadable), b"x", b""),
    ]  # fmt: skip
    assert send(box, *asked) == "ptx"
    box.redis.hdel(box.keys.slot, "paused_send")
    before = box.state()

    assert send(box, *asked) == "ptx"

    assert box.changed(before) == {}
    assert send(box, arrival(box, paused, ANOTHER)) == "s"


def test_a_refusal_that_is_not_noted_is_tried_again(box: Box) -> None:
    paused, large = box.ids(2)
    box.redis.hset(box.keys.slot, "paused_send", 1)
    asked = [arrival(box, paused), Arrival(entry(large), b"t", b"")]
    before = box.state()

    for _ in range(2):
        assert send(box, *asked, notes_refusals=False) == "pt"
        assert box.changed(before) == {}

    box.redis.hdel(box.keys.slot, "paused_send")
    for _ in range(2):
        assert send(box, *asked, notes_refusals=False) == "st"
    assert box.redis.zcard(box.keys.arrivals) == 1


def test_a_full_slot_takes_as_many_as_it_has_room_for(box: Box) -> None:
    box.send(3)
    box.redis.hset(box.keys.slot, mapping={"capacity": 5, "overflow": "reject"})

    letters = send(box, *(arrival(box, id) for id in box.ids(4)))

    assert letters == "ssff"


def test_where_the_lowest_is_dropped_a_higher_one_takes_its_place(box: Box) -> None:
    low = box.one(priority=20)
    box.redis.hset(box.keys.slot, mapping={"capacity": 1, "overflow": "drop_lowest"})
    high, lower = box.ids(2)

    assert send(box, arrival(box, high, priority=900)) == "s"
    assert send(box, arrival(box, lower, priority=20)) == "f"

    assert low not in box.state()["records"]


def test_a_timed_letter_is_due_now(box: Box) -> None:
    (id,) = box.ids()

    send(box, arrival(box, id, due=0))

    assert box.score(id) == timed(box.clock.now_ms, False)


def test_notes_are_forgotten_an_hour_after_the_letter_is_gone_and_no_sooner(box: Box) -> None:
    open_id, gone, refused = box.ids(3)
    send(box, arrival(box, open_id), arrival(box, gone), Arrival(entry(refused), b"t", b""))
    box.redis.zadd(box.keys.arrivals, {entry(gone): box.clock.now_ms}, xx=True)
    box.clock.advance(HOUR_S - 1)
    send(box, arrival(box, box.ids()[0]))
    assert box.redis.zcard(box.keys.arrivals) == 4
    box.clock.advance(2)

    send(box, arrival(box, box.ids()[0]))

    left = box.redis.zrange(box.keys.arrivals, 0, -1)
    assert entry(open_id) in left
    assert len(left) == 3
    assert not {entry(gone), entry(refused)} & set(left)


def test_who_tidies_forgets_notes_after_an_hour_or_30_days_some_at_a_time(box: Box) -> None:
    (kept,) = bury(box, kept=True)
    hold(box, kept)
    settle(box, (entry(kept), True))
    given = box.ids(6)
    send(box, *(arrival(box, id) for id in given[:4]), Arrival(entry(given[4]), b"t", b""))
    box.redis.zadd(box.keys.arrivals, {entry(id): box.clock.now_ms for id in given[:3]}, xx=True)

    def tidied(limit: int) -> tuple[bool, int]:
        more = box.run(scripts.tidy(box.keys, limit)).more
        return more, box.redis.zcard(box.keys.arrivals)

    box.clock.advance(HOUR_S - 1)
    assert tidied(2) == (False, 6)
    box.clock.advance(2)
    assert [tidied(2) for _ in range(3)] == [(True, 4), (True, 2), (False, 2)]
    assert box.run(scripts.locate(box.keys, [kept])).codes == "m"
    assert box.redis.zscore(box.keys.arrivals, entry(given[3]))  # its letter may be there still
    box.clock.advance(30 * 24 * HOUR_S)
    assert tidied(2) == (False, 0)


def test_a_large_body_that_was_not_fetched_is_refused(box: Box) -> None:
    (id,) = box.ids()

    with pytest.raises(Exception, match="RMQBODY"):
        send(box, Arrival(entry(id), bytes([8, 0, 0, 50]), b"1234" + b"8 random"))
