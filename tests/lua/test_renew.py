"""renew.lua on a real server."""

from __future__ import annotations

import time

import pytest

from rmq.kernel.consumer import scripts
from tests.lua.test_claim import NAME, STATES, A, left_ms, put, take


def renew(box, *names, owner=A, hold_ms=900_000):
    return box.run(scripts.renew(box.keys, names, [owner] * len(names), hold_ms))


@pytest.mark.parametrize("state", STATES)
def test_only_what_its_owner_is_consuming_is_held_for_longer(box, state):
    put(box, state)
    before, lived = box.state(), left_ms(box)

    assert renew(box, NAME) == [state == "mine"]

    assert box.state() == before
    assert left_ms(box) > 800_000 if state == "mine" else left_ms(box) <= lived


def test_renew_sent_again_does_the_same(box):
    take(box, NAME)

    assert box.twice(lambda: scripts.renew(box.keys, [NAME], [A], 900_000)) == [True]


def test_renew_may_shorten_too(box):
    take(box, NAME)

    assert renew(box, NAME, hold_ms=1000) == [True]
    assert 0 < left_ms(box) <= 1000


def test_claim_that_ran_out_is_not_brought_back(box):
    take(box, NAME, hold_ms=20)
    time.sleep(0.04)  # until Redis has forgotten it: its clock cannot be moved

    assert renew(box, NAME) == [False]
    assert box.redis.keys(box.keys.claim_stem + b"*") == []
