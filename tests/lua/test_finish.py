"""finish.lua on a real server."""

from __future__ import annotations

import time

import pytest
import redis

from rmq.kernel.consumer import scripts
from tests.lua.test_claim import DONE, NAME, STATES, A, B, left_ms, put, take

TEN_YEARS_MS = 315_619_200_000


def finish(box, *names, owner=A, ttl_ms=900_000):
    return box.run(
        scripts.finish(box.keys, names, [owner] * len(names), [ttl_ms] * len(names))
    )  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_only_what_its_owner_is_consuming_becomes_consumed(box, state):
    put(box, state)
    before, lived = box.state(), left_ms(box)

    assert finish(box, NAME) == [state in ("mine", "done by me")]

    text = b"consumed %s %d" % (A, box.clock.now_ms)
    assert box.changed(before) == ({("claim:mail:order 7",): text} if state == "mine" else {})
    assert left_ms(box) > 800_000 if state == "mine" else left_ms(box) <= lived


def test_finish_sent_again_gives_the_same_answer_and_its_time_stays(box):
    take(box, NAME)

    assert box.twice(lambda: scripts.finish(box.keys, [NAME], [A], [900_000])) == [True]
    lived = left_ms(box)
    assert finish(box, NAME, ttl_ms=1_000) == [True]
    assert 800_000 < left_ms(box) <= lived


def test_each_is_remembered_as_long_as_it_asks(box):
    names, ttls = [b"a", b"b", b"c"], [1, 100_000, TEN_YEARS_MS]
    take(box, *names)

    assert box.run(scripts.finish(box.keys, names, [A] * 3, ttls)) == [True] * 3

    assert left_ms(box, b"a") <= 1
    assert 90_000 < left_ms(box, b"b") <= 100_000
    assert left_ms(box, b"c") > TEN_YEARS_MS - 10_000


def test_finished_claim_is_done_for_everybody_until_it_is_forgotten(box):
    take(box, NAME)
    finish(box, NAME, ttl_ms=80)

    assert take(box, NAME, owner=B) == [DONE]
    time.sleep(0.1)  # until Redis has forgotten it: its clock cannot be moved
    assert take(box, NAME, owner=B) == [("first", 0, 0)]


def test_name_twice_in_one_call_is_finished_by_its_owner_only(box):
    take(box, NAME)

    names, owners = [NAME, NAME, NAME], [B, A, B]
    assert box.run(scripts.finish(box.keys, names, owners, [1000] * 3)) == [False, True, False]

    assert box.redis.get(box.keys.claim_stem + NAME).startswith(b"consumed " + A)


@pytest.mark.parametrize("ttl_ms", [0, TEN_YEARS_MS + 1])
def test_life_outside_its_limits_is_refused_and_nothing_is_finished(box, ttl_ms):
    take(box, b"good", NAME)
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG ttl_ms"):
        box.run(scripts.finish(box.keys, [b"good", NAME], [A, A], [1000, ttl_ms]))

    assert box.state() == before
