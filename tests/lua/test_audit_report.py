"""audit_report: where numbers begin, which were sent, which have no message; against sets."""

from __future__ import annotations

import random

import pytest
import redis

from rmq.kernel.producer import scripts
from tests.lua.numbers import P, Q, begin, open_of, told


def test_first_call_is_where_the_numbers_begin(box):
    box.twice(lambda: scripts.audit_report(box.keys, P, 0, 0))

    state = box.state()
    assert state["audit"] == {
        f"{P}:~:000000000000001:{box.clock.now_ms - 250}:000000000000000".encode(): 0.0
    }
    assert state["slot"]["audited"] == "1"
    assert "numbered" not in state["slot"]


def test_what_was_sent_is_open_and_known_since_now(box):
    begin(box)
    box.clock.advance(5)
    known_ms = box.clock.now_ms

    assert box.twice(lambda: scripts.audit_report(box.keys, P, 0, 7)) == 0

    assert box.state()["audit"] == {
        f"{P}:000000000000007:000000000000001:{known_ms}".encode(): 0.0,
        f"{P}:~:000000000000008:{known_ms}:000000000000007".encode(): 0.0,
    }
    assert box.counter("numbered") == 7


def test_what_no_message_has_is_accounted_for_once(box):
    begin(box)
    told(box, 10)

    assert told(box, 12, [(3, 4), (11, 12)], old=10) == 4
    after = box.state()
    box.clock.advance(0.25)
    assert told(box, 12, [(3, 4), (11, 12)], old=10) == 0
    assert box.state() == after

    assert open_of(box) == [(1, 2), (5, 10), (13, None)]
    assert box.counter("accounted") == 4
    assert box.counter("numbered") == 12


def test_numbers_ahead_of_what_was_told_are_accounted_for(box):
    begin(box)

    told(box, 0, [(5, 6)])

    assert open_of(box) == [(1, 4), (7, None)]
    told(box, 6, [(1, 4)])
    assert open_of(box) == [(7, None)]
    assert box.counter("numbered") == 6


def test_a_range_that_is_nearly_as_new_grows_and_keeps_its_age(box):
    begin(box)
    told(box, 3)
    since = box.clock.now_ms
    box.clock.advance(9)
    told(box, 5)
    box.clock.advance(2)
    told(box, 8)

    members = [m.decode().split(":")[1:4] for m in box.redis.zrange(box.keys.audit, 0, -1)]
    assert members[:2] == [
        [f"{5:015}", f"{1:015}", str(since)],
        [f"{8:015}", f"{6:015}", str(since + 11_000)],
    ]


def test_later_news_of_less_changes_nothing(box):
    begin(box)
    told(box, 9)
    before = box.state()

    told(box, 4, old=2)

    assert box.state() == before


def test_producers_are_apart(box):
    for one in (P, Q):
        begin(box, one)
        told(box, 5, producer=one)

    told(box, 5, [(2, 2)], producer=Q)

    assert open_of(box, P) == [(1, 5), (6, None)]
    assert open_of(box, Q) == [(1, 1), (3, 5), (6, None)]


def test_one_that_was_forgotten_begins_behind_what_it_told(box):
    told(box, 40, old=40)

    assert open_of(box) == [(41, None)]
    told(box, 42, old=40)
    assert open_of(box) == [(41, 42), (43, None)]


def test_a_newcomer_takes_along_who_was_silent_for_a_day_with_nothing_open(box):
    done, owing, ahead = "1" * 10, "2" * 10, "3" * 10
    for one in (done, owing, ahead):
        begin(box, one)
    told(box, 3, [(1, 3)], producer=done)
    told(box, 3, [(1, 2)], producer=owing)
    told(box, 1, [(1, 1), (4, 4)], producer=ahead)  # killed with 2 and 3 under way
    box.clock.advance(86_399)

    begin(box, "0" * 10)
    assert open_of(box, done)
    box.clock.advance(2)
    begin(box, "0" * 9 + "1")

    assert open_of(box, done) == []
    assert open_of(box, ahead) == []
    assert open_of(box, owing) == [(3, 3), (4, None)]


def test_a_producer_that_is_heard_of_stays(box):
    begin(box, "1" * 10)
    box.clock.advance(86_000)
    told(box, 0, producer="1" * 10)
    box.clock.advance(1000)
    begin(box, "0" * 10)

    assert open_of(box, "1" * 10)


def test_more_than_a_call_may_carry_is_refused(box):
    begin(box)
    before = box.state()
    for ranges in ([(1, 1001)], [(n, n) for n in range(1, 1002)], [(5, 4)], [(0, 1)]):
        with pytest.raises(redis.ResponseError, match="RMQARG"):
            told(box, 5, ranges)
    with pytest.raises(redis.ResponseError, match="RMQARG count"):
        box.raw("audit_report", (box.keys.slot, box.keys.audit), [b"", P, 0, 5, 1])

    assert box.state() == before
    assert told(box, 1000, [(n, n) for n in range(1, 1001)]) == 1000


def test_ranges_are_the_numbers_that_sets_say(box):
    chance = random.Random(7)
    begin(box)
    box.run(scripts.audit_report(box.keys, Q, 0, 50))
    accounted: set[int] = set()
    sent = 0
    for _ in range(300):
        box.clock.advance(chance.choice([0, 1, 20]))
        if chance.random() < 0.3:
            sent += chance.randrange(20)
            told(box, sent)
        else:
            first = chance.randrange(1, sent + 30)
            last = first + chance.choice([0, 0, 0, 1, 5, 40])
            fresh = set(range(first, last + 1)) - accounted
            assert told(box, 0, [(first, last)]) == len(fresh)
            accounted |= fresh

        ranges = open_of(box)
        rest = ranges[-1][0]
        numbers = [n for first, last in ranges[:-1] for n in range(first, (last or 0) + 1)]
        assert ranges[-1][1] is None
        assert numbers == [n for n in range(1, rest) if n not in accounted]
        assert rest > max(accounted | {sent})
    assert open_of(box, Q) == [(1, 50), (51, None)]
