"""sample.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.topic_admin import scripts

KEEP_MS = 60_000


def sample(box, places, created=None):
    command = scripts.sample(box.handle, places, KEEP_MS)
    if created is not None:
        command.args[0] = created
    return command


def history(box):
    return box.redis.hgetall(box.handle.history_key)


def test_figures_are_kept_in_their_places_and_expire(box):
    before = box.state()

    assert box.run(sample(box, {"10:7": b"a", "60:1": b"a"})) is True

    assert history(box) == {b"10:7": b"a", b"60:1": b"a"}
    assert 0 < box.redis.pttl(box.handle.history_key) <= KEEP_MS
    assert box.state() == before, "nothing of a slot"


def test_run_twice_it_writes_the_same_and_the_later_of_two_servers_stands(box):
    box.run(sample(box, {"10:7": b"a"}))
    box.run(sample(box, {"10:7": b"a"}))
    assert history(box) == {b"10:7": b"a"}

    box.run(sample(box, {"10:7": b"b"}))

    assert history(box) == {b"10:7": b"b"}


@pytest.mark.parametrize("pairs", [[], [b"10:7"], [b"10:7", b"a", b"60:1"], [b"x", b"y"] * 11])
def test_odd_and_too_many_and_no_pairs_are_refused(box, pairs):
    command = sample(box, {})
    command.args[2:] = pairs

    with pytest.raises(redis.ResponseError, match="RMQARG count"):
        box.run(command)

    assert not box.redis.exists(box.handle.history_key)
