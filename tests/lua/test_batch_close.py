"""batch_close.lua on a real server; tests/lua/test_batch_end has what it shares with batch_end."""

from __future__ import annotations

import pytest
import redis

from tests.lua.batching import NAME, add, close, fields, ids, open_batch
from tests.lua.box import Box


def test_a_close_changes_the_batch_alone(box: Box) -> None:
    open_batch(box)
    add(box, ids(2))
    before = fields(box)
    box.clock.advance(1)

    assert close(box) == ("o", "c", 2)

    assert fields(box) == before | {"#state": "c", "#touched": str(box.clock.now_ms)}
    assert "pending" not in box.state()


def test_a_wrong_argument_changes_nothing(box: Box) -> None:
    open_batch(box)
    before = fields(box)
    keys = (box.keys.slot, box.keys.batch(NAME), box.keys.pending, box.keys.targets)

    with pytest.raises(redis.ResponseError, match="RMQARG cancelled"):
        box.raw("batch_close", keys, ["", "2"])
    assert fields(box) == before
