"""unclaim.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.consumer import scripts
from tests.lua.box import GONE
from tests.lua.test_claim import NAME, STATES, A, B, left_ms, put, take


def unclaim(box, *names, owner=A):
    return box.run(scripts.unclaim(box.keys, names, [owner] * len(names)))


@pytest.mark.parametrize("state", STATES)
def test_only_what_its_owner_is_consuming_is_removed(box, state):
    put(box, state)
    before, lived = box.state(), left_ms(box)

    assert unclaim(box, NAME) == [state == "mine"]

    assert box.changed(before) == ({("claim:mail:order 7",): GONE} if state == "mine" else {})
    assert left_ms(box) <= lived


def test_unclaim_sent_again_removes_nothing_more_and_says_so(box):
    take(box, NAME)
    assert unclaim(box, NAME) == [True]
    take(box, NAME, owner=B)
    before = box.state()

    assert unclaim(box, NAME) == [False]

    assert box.state() == before


def test_name_twice_in_one_call_is_removed_once(box):
    take(box, NAME)

    assert unclaim(box, NAME, NAME) == [True, True]
    assert box.redis.keys(box.keys.claim_stem + b"*") == []
