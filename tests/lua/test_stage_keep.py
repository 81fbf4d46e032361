"""stage_keep.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.spark.scripts import stage_keep, stage_push
from tests.lua.box import Box


@pytest.fixture
def staged(box: Box) -> Box:
    """A slot with a stage of two entries, kept for a minute."""
    for place in range(2):
        box.run(stage_push(box.keys, "s", place, 60_000, [b"entry"]))
    return box


@pytest.mark.parametrize("length", [None, 2])
def test_keep_says_how_long_it_stays_and_changes_nothing_else(staged, length):
    before = staged.state()

    assert staged.twice(lambda: stage_keep(staged.keys, "s", 3_600_000, length)) == 2

    assert staged.state() == before
    assert 3_500_000 < staged.redis.pttl(staged.keys.stage_stem + b"s") <= 3_600_000


@pytest.mark.parametrize("length", [None, 2])
def test_keep_for_no_time_drops_it(staged, length):
    assert staged.run(stage_keep(staged.keys, "s", 0, length)) == 2

    assert staged.state().keys() == {"slot"}


@pytest.mark.parametrize("keep_ms", [0, 1000])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_stage_of_another_length_is_an_error_and_stays_as_it_is(staged, length, keep_ms):
    before, key = staged.state(), staged.keys.stage_stem + b"s"

    with pytest.raises(redis.ResponseError, match=r"RMQSTAGE rmq:.*:stage:s"):
        staged.run(stage_keep(staged.keys, "s", keep_ms, length))

    assert staged.state() == before
    assert staged.redis.pttl(key) > 59_000 - 1000


def test_missing_stage_is_none_to_keep_and_nothing_to_drop(box):
    assert box.run(stage_keep(box.keys, "s", 0)) == 0
    assert box.run(stage_keep(box.keys, "s", 1000)) == 0
    with pytest.raises(redis.ResponseError, match="RMQSTAGE"):
        box.run(stage_keep(box.keys, "s", 1000, 1))

    assert box.state().keys() == {"slot"}
