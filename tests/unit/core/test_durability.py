"""Durability levels: the values that are accepted."""

from __future__ import annotations

import pytest

import rmq


@pytest.mark.parametrize("level", [rmq.Replicated, rmq.Fsync])
def test_a_send_waits_for_a_minute_at_most(level: type[rmq.Replicated | rmq.Fsync]) -> None:
    assert level(1, 60).timeout == 60

    with pytest.raises(rmq.InvalidValue, match="at most 60 seconds"):
        level(1, 60.001)
